"""Layers with learned parameters around the rules."""
