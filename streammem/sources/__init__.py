"""Streams of frames: recorded, made up, or handed in by the user."""

from streammem.errors import SourceError
from streammem.sources.check import Finding, FirstFramesCheck, check_frames
from streammem.sources.door import Door, frame_from
from streammem.sources.folder import Folder
from streammem.sources.prefetch import Prefetch
from streammem.sources.source import Source
from streammem.sources.synthetic import Synthetic
from streammem.sources.tum import TUM
from streammem.sources.video import Video

SOURCES = {"synthetic": Synthetic, "folder": Folder, "tum": TUM, "video": Video}

__all__ = [
    "SOURCES",
    "TUM",
    "Door",
    "Finding",
    "FirstFramesCheck",
    "Folder",
    "Prefetch",
    "Source",
    "Synthetic",
    "Video",
    "check_frames",
    "frame_from",
    "open_source",
]


def open_source(spec: str, **options) -> Source:
    """The source that a text names: "synthetic", "folder:PATH", "tum:PATH" or "video:PATH", with its options."""
    kind, colon, path = spec.partition(":")
    if kind not in SOURCES or (kind == "synthetic") == bool(colon):
        kinds = ", ".join(name if name == "synthetic" else f"{name}:PATH" for name in SOURCES)
        raise SourceError(f"source is {spec!r}; wanted one of {kinds}")
    return SOURCES[kind](*[path] * bool(colon), **options)
