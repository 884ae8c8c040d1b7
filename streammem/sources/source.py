"""What every source is: frames in order, again and again, from any frame on."""

import abc
from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from streammem.types import Frame


class Source(abc.ABC):
    """A recorded or made-up stream of one camera: an iterable of frames with B = 1, read when asked for.

    Iterating starts over at the first frame; `since(i)` continues a stream. `counters` says what happened to the
    frames of the last iteration, by name; `invalid: REASON` counts masked frames.
    """

    name: str
    again: bool = True  # whether a frame can be read a second time; a live camera's cannot
    camera_intrinsics: Tensor | None  # [3, 3] float32, pixels, of the images as they come out; None where unknown

    def __init__(self, name: str, camera_intrinsics: Tensor | None, known: dict[str, int] | None = None):
        self.name = name
        self.camera_intrinsics = camera_intrinsics
        self.known = known or {}  # counts that hold before a frame is read
        self.counters = Counter(self.known)

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Frame:
        """Frame `index`, the same however it is reached."""

    def __iter__(self) -> Iterator[Frame]:
        return self.since(0)

    def since(self, start: int) -> Iterator[Frame]:
        """Frames from number `start` on, to continue a stream that ended before it."""
        self.restart_counters()
        for index in range(start, len(self)):
            self.counters["frames"] += 1
            yield self[index]

    def restart_counters(self) -> None:
        """Counts from the start, as at the beginning of an iteration."""
        self.counters.clear()
        self.counters.update(self.known)
