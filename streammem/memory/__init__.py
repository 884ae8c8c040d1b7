"""The four axes of a memory rule, and what holds them together."""
