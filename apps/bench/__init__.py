"""The benchmark program."""
