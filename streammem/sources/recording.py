"""A recording on disk: entries that name files, read one by one when asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streammem.errors import SourceError, StreamMemError
from streammem.sources.door import Door
from streammem.sources.images import read_colour, read_depth
from streammem.sources.source import Source
from streammem.types import Frame

CAMERAS = {  # fx fy cx cy of 640x480 pixels, as their datasets state them
    "freiburg1": (517.3, 516.5, 318.6, 255.3),
    "freiburg2": (520.9, 521.0, 325.1, 249.7),
    "freiburg3": (535.4, 539.2, 320.1, 247.6),
    "bonn": (542.822841, 542.576870, 315.593520, 237.756098),
    "7scenes": (585.0, 585.0, 320.0, 240.0),
}
UNPOSED = np.full((4, 4), np.nan)


class Entry(NamedTuple):
    """The files of one frame."""

    colour: Path
    depth: Path | None  # None: this frame has none, and is masked if the recording has depth
    world_from_camera: np.ndarray | None  # [4, 4]; None: this frame has none
    time_s: float


class Recording(Source):
    """Frames from entries. An unreadable or refused frame is masked and counted; if none can be read, that raises.

    The first readable frame is read at once: it sets the structure and the size, and its faults are errors.
    """

    def __init__(
        self,
        name: str,
        entries: Sequence[Entry],
        intrinsics: np.ndarray | None,
        conventions: dict,  # of the `Door`
        known: dict[str, int] | None = None,
    ):
        super().__init__(name, None, known)
        self.entries = list(entries)
        self.intrinsics = intrinsics
        self.has_depth = any(entry.depth is not None for entry in self.entries)
        self.has_poses = any(entry.world_from_camera is not None for entry in self.entries)
        self.door = Door(**conventions, counters=self.counters)
        first = self._first_frame()
        self.camera_intrinsics = None if first.intrinsics is None else first.intrinsics[0]
        self.restart_counters()

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Frame:
        entry = self.entries[index]
        if self.has_depth and entry.depth is None:
            return self.door.masked("no depth file", entry.time_s)
        try:
            files = self._read(entry)
        except SourceError:
            return self.door.masked("unreadable file", entry.time_s)
        try:
            return self._admit(entry, files)
        except StreamMemError:
            return self.door.masked("refused at the door", entry.time_s)

    def _read(self, entry: Entry) -> tuple[np.ndarray, np.ndarray | None]:
        return read_colour(entry.colour), None if entry.depth is None else read_depth(entry.depth)

    def _admit(self, entry: Entry, files: tuple[np.ndarray, np.ndarray | None]) -> Frame:
        pose = entry.world_from_camera
        if self.has_poses and pose is None:
            pose = UNPOSED
        return self.door(*files, self.intrinsics, pose, entry.time_s)

    def _first_frame(self) -> Frame:
        reason = "there are no frames"
        for entry in self.entries:
            if self.has_depth and entry.depth is None:
                continue
            try:
                files = self._read(entry)
            except SourceError as error:
                reason = str(error)
                continue
            return self._admit(entry, files)
        raise SourceError(f"{self.name}: none of {len(self.entries)} frames can be read; the last fault: {reason}")


def camera_matrix(intrinsics) -> np.ndarray:
    """K [3, 3] from a camera's name in `CAMERAS`, (fx, fy, cx, cy), a 3x3 or a 4x4 matrix."""
    if isinstance(intrinsics, str):
        if intrinsics not in CAMERAS:
            raise SourceError(f"camera {intrinsics!r} is not known; wanted {', '.join(CAMERAS)}, or fx fy cx cy")
        intrinsics = CAMERAS[intrinsics]
    numbers = np.asarray(intrinsics, dtype=np.float64)
    if numbers.size == 4:
        fx, fy, cx, cy = numbers.ravel()
        return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])
    if numbers.size in (9, 16):
        side = 3 if numbers.size == 9 else 4
        return numbers.reshape(side, side)[:3, :3]
    raise SourceError(f"intrinsics are {numbers.size} numbers; wanted fx fy cx cy, or a 3x3 or 4x4 matrix")


def read_numbers(path: Path) -> np.ndarray:
    """The table of numbers in a text file, [rows, columns]; `#` starts a comment, commas are spaces."""
    try:
        text = path.read_text().replace(",", " ")
        return np.atleast_2d(np.loadtxt(text.splitlines(), ndmin=2))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as a table of numbers: {error}") from error
