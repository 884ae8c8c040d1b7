"""Streams of frames: recorded, made up, or handed in by the user."""

from streammem.errors import SourceError
from streammem.sources.check import Finding, FirstFramesCheck, check_frames
from streammem.sources.door import Door, frame_from
from streammem.sources.folder import Folder
from streammem.sources.prefetch import Prefetch
from streammem.sources.source import Source
from streammem.sources.synthetic import Synthetic, SyntheticColour
from streammem.sources.tum import TUM
from streammem.sources.video import Video
from streammem.sources.webcam import Webcam

SOURCES = {
    "synthetic": Synthetic,
    "synthetic:rgb": SyntheticColour,
    "folder": Folder,
    "tum": TUM,
    "video": Video,
    "webcam": Webcam,
}
PLACELESS = ("synthetic", "synthetic:rgb", "webcam")  # kinds that need no path; a webcam may have its number as one
SPECS = "synthetic, synthetic:rgb, folder:PATH, tum:PATH, video:PATH, webcam or webcam:NUMBER"

__all__ = [
    "PLACELESS",
    "SOURCES",
    "SPECS",
    "TUM",
    "Door",
    "Finding",
    "FirstFramesCheck",
    "Folder",
    "Prefetch",
    "Source",
    "Synthetic",
    "SyntheticColour",
    "Video",
    "Webcam",
    "check_frames",
    "frame_from",
    "open_source",
    "parsed",
]


def open_source(spec: str, **options) -> Source:
    """The source that a text names, as in `SPECS`, with its options."""
    kind, path = parsed(spec)
    if kind not in SOURCES:
        raise SourceError(f"source is {spec!r}; wanted one of {SPECS}")
    return SOURCES[kind](*[] if path is None else [path], **options)


def parsed(spec: str) -> tuple[str, str | None]:
    """Kind and path that a text names; the kind may be none of ours.

    Raises: SourceError for a path too many or too few.
    """
    if spec in SOURCES and spec in PLACELESS:
        return spec, None
    kind, colon, path = spec.partition(":")
    if kind.startswith("synthetic") or (kind in SOURCES and not (colon and path)):
        raise SourceError(f"source is {spec!r}; wanted {SPECS}")
    return kind, path if colon else None
