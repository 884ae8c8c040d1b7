"""What can go wrong, by kind: one root, and a child for each place where the user can do something about it.

A message says what was wrong, what was expected and what would be right.
"""


class StreamMemError(Exception):
    """Root of every error that this library raises on purpose."""


class ConfigError(StreamMemError, ValueError):
    """A setting or an argument has a value that cannot be used."""


class ShapeError(StreamMemError, ValueError):
    """A tensor has another shape, type or structure than its reader wants."""


class CheckpointError(StreamMemError, RuntimeError):
    """A file of weights or state is missing, foreign, damaged, or made for something else."""


class SourceError(StreamMemError, OSError):
    """A recording or a camera cannot be read as what it claims to be."""


class NoKernel(StreamMemError, NotImplementedError):
    """There is no fused kernel for this rule, width or machine, or no chunk form of this rule."""
