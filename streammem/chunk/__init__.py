"""Sequences in chunks: what T steps of a rule compute, with few large operations in place of many small ones."""
