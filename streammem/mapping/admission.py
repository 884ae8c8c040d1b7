"""The map's door: frames that are no camera's of a mapper's kind are refused by their shapes alone."""

from collections.abc import Sequence

from streammem import shapes
from streammem.errors import ShapeError
from streammem.mapping.track import Tracker
from streammem.types import Frame


def admit(frame: Frame, tracked: Sequence[int] | None, tracker: Tracker) -> None:
    """Raises ShapeError where a frame is not one of one depth camera, or not of the size of those before.

    tracked: rows and columns of the tracker's last picture, None before the first.
    """
    if frame.depth is None or frame.intrinsics is None:
        missing = "depth" if frame.depth is None else "intrinsics"
        raise ShapeError(f"the frame has no {missing}; a map wants depth [1, h, w] and intrinsics [1, 3, 3]")
    size = shapes.check(frame.depth, "1 h w", "depth")
    shapes.check(frame.image, "1 3 h w", "image", **size)
    shapes.check(frame.intrinsics, "1 3 3", "intrinsics")
    if frame.world_from_camera is not None:
        shapes.check(frame.world_from_camera, "1 4 4", "world_from_camera")
    for name in ("time_s", "valid", "reset"):
        shapes.check(getattr(frame, name), "1", name)
    if tracked is not None and tracker.size(*size_of(frame)) != tuple(tracked):
        raise ShapeError(f"depth is {list(frame.depth.shape)}, unlike the frames before; wanted one size a stream")


def size_of(frame: Frame) -> tuple[int, int]:
    """Rows and columns of a frame."""
    return tuple(frame.depth.shape[1:])
