"""Colour streams: a video file, or a folder of pictures."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from streammem.errors import SourceError
from streammem.sources.door import Door
from streammem.sources.folder import PICTURES, numbered
from streammem.sources.images import read_colour
from streammem.sources.recording import camera_matrix
from streammem.sources.source import Source
from streammem.types import Frame

try:
    import cv2
except ImportError:
    cv2 = None


class Video(Source):
    """Frames without depth or pose, from a video file (needs OpenCV) or a folder of numbered pictures.

    intrinsics: as in `Folder`; None where unknown. rate_hz: frames a second, where a file does not say.
    every, limit: take every n-th frame, and at most so many.

    A picture that cannot be decoded is masked and counted; a file that ends before its stated length just ends.
    Reading frame i of a file decodes those before it.
    """

    def __init__(
        self,
        path: str | Path,
        intrinsics=None,
        rate_hz: float = 30.0,
        every: int = 1,
        limit: int | None = None,
    ):
        path = Path(path)
        super().__init__(path.stem, None)
        self.K = None if intrinsics is None else camera_matrix(intrinsics)
        self.door = Door(counters=self.counters)
        self.reader = _Pictures(path, rate_hz) if path.is_dir() else _File(path, rate_hz)
        self.numbers = range(self.reader.length)[::every][:limit]
        first = next((read for read in self.reader.read(self.numbers) if read[0] is not None), None)
        if first is None:
            raise SourceError(f"{path}: none of {len(self.numbers)} pictures can be read")
        frame = self._frame(*first)
        self.camera_intrinsics = None if frame.intrinsics is None else frame.intrinsics[0]
        self.restart_counters()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Frame:
        for picture, time_s in self.reader.read([self.numbers[index]]):
            return self._frame(picture, time_s)
        raise IndexError(f"{self.name} ends before frame {index} of {len(self)}")

    def since(self, start: int) -> Iterator[Frame]:
        self.restart_counters()
        for picture, time_s in self.reader.read(self.numbers[start:]):
            self.counters["frames"] += 1
            yield self._frame(picture, time_s)

    def _frame(self, picture: np.ndarray | None, time_s: float) -> Frame:
        if picture is None:
            return self.door.masked("unreadable file", time_s)
        return self.door(picture, intrinsics=self.K, time_s=time_s)


class _Pictures:
    def __init__(self, folder: Path, rate_hz: float):
        files = [file for file in folder.iterdir() if file.suffix.lower() in PICTURES]
        if not files:
            raise SourceError(f"{folder} holds no pictures; wanted {', '.join(PICTURES)}")
        self.files, self.rate_hz = list(numbered(files).values()), rate_hz
        self.length = len(files)

    def read(self, numbers: Iterable[int]) -> Iterator[tuple[np.ndarray | None, float]]:
        for number in numbers:
            try:
                yield read_colour(self.files[number], upright=True), number / self.rate_hz
            except SourceError:
                yield None, number / self.rate_hz


class _File:
    def __init__(self, path: Path, rate_hz: float):
        if cv2 is None:
            raise SourceError(f"{path}: reading video files needs OpenCV: pip install opencv-python-headless")
        if not path.is_file():
            raise SourceError(f"{path} is neither a video file nor a folder of pictures")
        capture = cv2.VideoCapture(str(path))
        self.path, self.length = path, int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self.rate_hz = capture.get(cv2.CAP_PROP_FPS) or rate_hz
        capture.release()
        if self.length < 1:
            raise SourceError(f"{path} cannot be read as a video")

    def read(self, numbers: Iterable[int]) -> Iterator[tuple[np.ndarray | None, float]]:
        capture = cv2.VideoCapture(str(self.path))
        at = 0
        try:
            for number in numbers:
                while at < number and capture.grab():
                    at += 1
                arrived, picture = capture.read()
                if not arrived:
                    return
                at += 1
                yield picture[..., ::-1], number / self.rate_hz
        finally:
            capture.release()
