"""What a run remembers of itself, none of it growing with the stream; what does grow goes to files, line by line."""

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import quaternion_from_motion

FASTEST_S, PER_E = 1e-5, 100  # histogram of seconds: bins of 1 %
BINS = 1700  # up to 240 s


class Spread:
    """Durations as a histogram: count, mean and quantiles to 1 % of themselves, in constant memory."""

    def __init__(self):
        self.bins, self.count, self.total_s = [0] * BINS, 0, 0.0

    def add(self, seconds: float) -> None:
        """One more duration."""
        at = int(PER_E * math.log(max(seconds, FASTEST_S) / FASTEST_S))
        self.bins[min(at, BINS - 1)] += 1
        self.count, self.total_s = self.count + 1, self.total_s + seconds

    def quantile(self, share: float) -> float:
        """Seconds that a share of the durations stay below; NaN of none."""
        left = share * self.count
        for at, count in enumerate(self.bins):
            left -= count
            if left <= 0 < count:
                return FASTEST_S * math.exp((at + 0.5) / PER_E)
        return math.nan


class Sight(NamedTuple):
    """A frame that was learnt, and where from."""

    frame: int
    world_from_camera: Tensor  # [4, 4] float64


class Sights:
    """Between n and 2n frames from all over a stream of unknown length: full, every second one goes."""

    def __init__(self, least: int):
        self.least, self.stride, self.kept = least, 1, []

    def add(self, frame: int, world_from_camera: Tensor) -> None:
        """One more frame, later than those before."""
        if self.least == 0 or frame % self.stride:
            return
        self.kept.append(Sight(frame, world_from_camera))
        while len(self.kept) > 2 * self.least:
            self.stride *= 2
            self.kept = [sight for sight in self.kept if sight.frame % self.stride == 0]

    def chosen(self) -> list[Sight]:
        """At most n, evenly apart."""
        count = min(self.least, len(self.kept))
        return [self.kept[(2 * i + 1) * len(self.kept) // (2 * count)] for i in range(count)]


class Journal:
    """How far the stream has come, and how it went."""

    def __init__(self, previews: int):
        self.frames = 0  # read so far: the number of the next one
        self.counts: Counter[str] = Counter()  # frames by "status: reason"
        self.sights = Sights(previews)
        self.stages: dict[str, Spread] = {}  # durations since it was started

    def enter(self, status: str, reason: str, world_from_camera: Tensor) -> bool:
        """Writes a frame down; whether its pose can be believed."""
        self.counts[f"{status}: {reason}"] += 1
        learnt = status in ("tracked", "weak") and bool(world_from_camera.isfinite().all())
        if learnt:
            self.sights.add(self.frames, world_from_camera)
        self.frames += 1
        return learnt

    def statuses(self) -> Counter[str]:
        """Frames by status alone."""
        totals: Counter[str] = Counter()
        for name, count in self.counts.items():
            totals[name.partition(":")[0]] += count
        return totals

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Takes the time of what is inside."""
        start = perf_counter()
        yield
        self.stages.setdefault(stage, Spread()).add(perf_counter() - start)

    def dump(self) -> str:
        """What a resumed run needs, as JSON; durations stay out."""
        sights = [(sight.frame, sight.world_from_camera.flatten().tolist()) for sight in self.sights.kept]
        return json.dumps(
            {"frames": self.frames, "counts": self.counts, "stride": self.sights.stride, "sights": sights}
        )

    def read(self, text: str) -> None:
        """Goes on from what `dump` gave."""
        said = json.loads(text)
        self.frames, self.counts = said["frames"], Counter(said["counts"])
        self.sights.stride = said["stride"]
        rows = ((frame, torch.tensor(pose, dtype=torch.float64).view(4, 4)) for frame, pose in said["sights"])
        self.sights.kept = [Sight(frame, pose) for frame, pose in rows]


class Lines:
    """A text file that grows line by line; a resumed run cuts off what came after its save, and goes on."""

    def __init__(self, path: Path, heading: str, keep: int = 0, of: Path | None = None):
        """keep: bytes to go on from, of the file `of`; 0 starts anew. `cut`: they were not there, so it starts anew."""
        of = of or path
        there = of.stat().st_size if of.is_file() else 0
        self.path, self.at, self.cut = path, keep, there < keep
        if keep and not self.cut:
            if of.resolve() != path.resolve():
                shutil.copyfile(of, path)
            self.file = open(path, "r+b")
            self.file.truncate(keep)
            self.file.seek(keep)
        else:
            self.file, self.at = open(path, "wb"), 0
            self.write(heading)

    def write(self, text: str) -> None:
        """Appends; on disk after `sync`."""
        self.at += self.file.write(text.encode())

    def sync(self) -> int:
        """The length that is safely on disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.at


def tum_line(time_s: float, world_from_camera: Tensor) -> str:
    """A pose as TUM trajectories have it: time tx ty tz qx qy qz qw."""
    translation, xyzw = quaternion_from_motion(world_from_camera.double().cpu())
    numbers = " ".join(f"{value:.9f}" for value in (*translation.tolist(), *xyzw.tolist()))
    return f"{time_s:.6f} {numbers}\n"
