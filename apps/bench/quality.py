"""Map quality on a real recording: hindsight, streaming, and what the retention trades between them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from streammem.mapping.retention import Retention
from streammem.mapping.write import Write

from . import protocols
from .case import Case, Setup
from .chart import curve
from .figure import Measured, at_least, at_most
from .ours import Ours
from .peers import Floor, Frozen, Open3D
from .protocols import Method, Score, Shot

POINT = 0.01  # of a share


@dataclass(frozen=True)
class Demand:
    """How good a score must be beside Open3D's: factors of its errors, differences of its shares."""

    mean: float
    median: float
    within_2cm: float | None
    coverage: float


HINDSIGHT = Demand(mean=0.90, median=1.0, within_2cm=3 * POINT, coverage=-1 * POINT)
STREAMING = Demand(mean=0.70, median=0.55, within_2cm=None, coverage=-1 * POINT)


def frames(setup: Setup) -> tuple[Shot, ...]:
    """The recording's frames, as many as the workload asks for."""
    return protocols.load_kitchen(setup.recording().parent, setup.workload.quality.frames)


def plane(pose: np.ndarray, size: tuple[int, int] = (120, 160)) -> Shot:
    """A slanted plane, exactly, through the point 1.5 m before the origin."""
    height, width = size
    intrinsics = np.array([[width, 0, (width - 1) / 2], [0, width, (height - 1) / 2], [0, 0, 1]], np.float64)
    v, u = np.mgrid[:height, :width]
    rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(intrinsics).T @ pose[:3, :3].T
    normal = np.array([0.4, 0.2, -1.0])
    depth = (np.array([0, 0, 1.5]) - pose[:3, 3]) @ normal / (rays @ normal)
    return Shot(depth.astype(np.float32), np.full((*size, 3), 128, np.uint8), pose, intrinsics)


def plane_fault(name: str, method: Method, limit_mm: float = 3.0) -> str | None:
    """What is wrong with a map that was shown a plane from four places, or None."""
    seen = []
    for x in (0.0, 0.05, 0.1, 0.15):
        pose = np.eye(4)
        pose[0, 3] = x
        seen.append(plane(pose))
        method.write(seen[-1]._replace(time_s=x))
    found = protocols.score(method.render(seen[1]), seen[1].depth)
    if found.median_mm <= limit_mm and found.coverage > 0.9:
        return None
    return f"{name} renders a plane {found.median_mm:.2f} mm off, {found.coverage:.0%} of it"


def parity(setup: Setup) -> str | None:
    """Every map renders an exact plane within 3 mm before it is compared on anything."""
    maps = {"ours": Ours(setup.workload.quality), "Open3D": Open3D(setup.workload.quality.voxel_size_m)}
    return next((fault for name, x in maps.items() if (fault := plane_fault(name, x))), None)


def compare(ours: Score, theirs: Score, demand: Demand) -> list[Measured]:
    """The four figures of a protocol beside Open3D's, with what must be reached."""
    rows = []
    for metric in ("mean", "median"):
        factor, base = getattr(demand, metric), getattr(theirs, f"{metric}_mm")
        target = at_most(factor * base, f"<= {factor:.2f} x Open3D")
        rows.append(Measured(metric, "mm", getattr(ours, f"{metric}_mm"), base, "Open3D", target))
    for metric in ("within_2cm", "coverage"):
        points, base = getattr(demand, metric), getattr(theirs, metric)
        target = None if points is None else at_least(base + points, f">= Open3D {100 * points:+.0f} points")
        rows.append(Measured(metric, "", getattr(ours, metric), base, "Open3D", target))
    return rows


def beside(ours: Score, theirs: Score, name: str) -> list[Measured]:
    """Figures beside something that is no map: nothing must be reached."""
    label = name.replace(" ", "_")
    rows = (("mean_mm", "mm"), ("within_2cm", ""), ("coverage", ""))
    return [Measured(f"{x}_{label}", unit, getattr(ours, x), getattr(theirs, x), name) for x, unit in rows]


def hindsight(setup: Setup) -> Iterator[Measured]:
    """Held-out frames from the final map."""
    quality, seen = setup.workload.quality, frames(setup)
    ours = Ours(quality)
    score = protocols.hindsight(ours, seen)
    yield from compare(score, protocols.hindsight(Open3D(quality.voxel_size_m), seen), HINDSIGHT)
    yield from beside(score, protocols.hindsight(Floor(), seen), "last frame")
    yield from beside(score, protocols.hindsight(Frozen(), seen), "frozen")
    yield Measured("state", "MiB", ours.mapper.nbytes / 2**20)


def streaming(setup: Setup) -> Iterator[Measured]:
    """Each frame from the state before it is written."""
    quality, seen = setup.workload.quality, frames(setup)

    def scored(method: Method) -> Score:
        return protocols.streaming(method, seen, quality.warm_up)

    ours = scored(Ours(quality))
    yield from compare(ours, scored(Open3D(quality.voxel_size_m)), STREAMING)
    yield from beside(ours, scored(Floor()), "last frame")
    yield from beside(ours, scored(Frozen()), "frozen")


def retention(setup: Setup) -> Iterator[Measured]:
    """Both protocols as the retention changes, as rows and as a picture."""
    quality, seen = setup.workload.quality, frames(setup)
    protocol: dict[str, Callable[[Method], Score]] = {
        "hindsight": lambda method: protocols.hindsight(method, seen),
        "streaming": lambda method: protocols.streaming(method, seen, quality.warm_up),
    }
    peers = {name: run(Open3D(quality.voxel_size_m)) for name, run in protocol.items()}
    found: dict[str, list[Score]] = {name: [] for name in protocol}
    alone = {f"{frames:g}": _averaging(frames) for frames in setup.workload.retention}
    for label, write in {**alone, DEFAULT: Write()}.items():
        for name, run in protocol.items():
            score = run(Ours(quality, write=write))
            found[name].append(score)
            for x in ("mean_mm", "median_mm"):
                yield Measured(f"{name}_{x}@{label}", "mm", getattr(score, x), getattr(peers[name], x), "Open3D")
    curve(setup.out / "retention.svg", [*alone, DEFAULT], found, peers)


def _averaging(frames: float) -> Write:
    """A map whose vertices hold one value, the average over about so many frames, and no fast one."""
    return Write(retention=Retention(memory_frames=frames, wander_m=0.0, wander_s=1e-3, yielding=0.0))


DEFAULT = "default"
MAP = Case(parity, hindsight)
STREAM = Case(parity, streaming)
RETENTION = Case(parity, retention)
