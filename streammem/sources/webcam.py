"""A live camera: what it sees now, without an end."""

from collections.abc import Iterator
from time import monotonic

from streammem.errors import SourceError
from streammem.sources.door import Door
from streammem.sources.recording import camera_matrix
from streammem.sources.source import Source
from streammem.types import Frame

try:
    import cv2
except ImportError:
    cv2 = None

PATIENCE = 30
FOR_EVER = 2**31  # frames of a stream whose end nobody knows


class Webcam(Source):
    """Frames without depth or pose from a camera of this machine (needs OpenCV), stamped when they arrive.

    path: the camera's number, as the system counts them, or a device or stream that OpenCV opens.
    intrinsics: as in `Folder`; None where unknown. limit: end after so many frames.

    A live stream has no past: frames come in order, once; a picture that does not arrive is masked and counted, and
    after `PATIENCE` of them in a row the camera counts as gone.
    Raises: SourceError where OpenCV is absent, or there is no such camera.
    """

    again = False

    def __init__(
        self,
        path: int | str = 0,
        intrinsics=None,
        rate_hz: float = 30.0,
        limit: int | None = None,
    ):
        if cv2 is None:
            raise SourceError("a webcam needs OpenCV: pip install opencv-python-headless (or streammem[video])")
        number = int(path) if str(path).isdigit() else path
        super().__init__(f"webcam-{number}", None)
        self.K = None if intrinsics is None else camera_matrix(intrinsics)
        self.door = Door(counters=self.counters)
        self.length = FOR_EVER if limit is None else limit
        self.capture = cv2.VideoCapture(number)
        self.capture.set(cv2.CAP_PROP_FPS, rate_hz)
        arrived, picture = self.capture.read() if self.capture.isOpened() else (False, None)
        if not arrived:
            raise SourceError(f"webcam {number!r} cannot be opened; wanted the number of a camera, such as 0")
        self.started_s = monotonic()
        first = self._frame(picture)
        self.camera_intrinsics = None if first.intrinsics is None else first.intrinsics[0]
        self.restart_counters()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Frame:
        raise SourceError(f"{self.name} is live: frame {index} is gone; wanted frames in order")

    def since(self, start: int) -> Iterator[Frame]:
        self.restart_counters()
        missed = 0
        for _ in range(start, self.length):
            arrived, picture = self.capture.read()
            missed = 0 if arrived else missed + 1
            if missed > PATIENCE:
                return
            self.counters["frames"] += 1
            yield self._frame(picture) if arrived else self.door.masked("no picture arrived", self._now_s())

    def _frame(self, picture) -> Frame:
        return self.door(picture[..., ::-1], intrinsics=self.K, time_s=self._now_s())

    def _now_s(self) -> float:
        return monotonic() - self.started_s
