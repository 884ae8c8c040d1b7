"""Streaming online learning of 3D and robotics state: a bounded memory learns while the camera moves."""

from streammem.errors import CheckpointError, ConfigError, NoKernel, ShapeError, SourceError, StreamMemError
from streammem.rules import RULES
from streammem.stream import Stream
from streammem.types import Frame, Gates, Tokens

__all__ = [
    "RULES",
    "CheckpointError",
    "ConfigError",
    "Frame",
    "Gates",
    "NoKernel",
    "ShapeError",
    "SourceError",
    "Stream",
    "StreamMemError",
    "Tokens",
]
