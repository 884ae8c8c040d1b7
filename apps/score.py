"""How good a finished run is: against what the sensor saw, and against the truth where the source knows it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import Camera, align_rigid, motion_from_quaternion, transform
from streammem.mapping import Mapper, Mesh, View
from streammem.metrics import DepthError, TrajectoryError, average, depth_error, trajectory_error
from streammem.sources import Source, Synthetic
from streammem.types import Frame

from .journal import Sight

MOST_POSES = 20_000  # of a trajectory that are held at once; a longer one is thinned
MOST_VERTICES = 200_000


class Look(NamedTuple):
    """A frame of the stream beside what the final map shows from there."""

    frame: int
    camera: Camera
    image: Tensor  # [3, h, w] in [-1, 1]
    depth: Tensor  # [h, w] what the sensor saw
    view: View
    measured: DepthError  # against the sensor
    exact: DepthError | None  # against the truth, where the source knows it


class SurfaceOffset(NamedTuple):
    """Distances of mesh vertices to the exact surface, in millimetres."""

    mean_mm: float
    median_mm: float
    p95_mm: float


class Score(NamedTuple):
    """Everything that can be said; None where there is nothing to compare with."""

    measured: DepthError | None
    exact: DepthError | None
    trajectory: TrajectoryError | None
    surface: SurfaceOffset | None


class Paths(NamedTuple):
    """The trajectory, thinned, and the true one at the same instants."""

    found: Tensor  # [T, 4, 4]
    true: Tensor | None  # [T, 4, 4]; NaN where there is none
    scaled: bool = False  # whether the found one has a scale of its own, and is compared up to it


def looks(
    mapper: Mapper,
    sights: list[Sight],
    again: Callable[[int], Frame],
    truth: Callable[[int], Tensor | None],
    scaled: bool,
) -> Iterator[Look]:
    """Reads the frames again, one by one, and renders the map from where they were.

    again: a frame by its number, with depth and intrinsics; truth: its exact depth [h, w], or None. scaled: the map's
    scale is its own, and depths are compared with the truth after their medians were made equal.
    """
    near_m, far_m = mapper.settings.near_m, mapper.settings.max_depth_m
    for sight in sights:
        frame = again(sight.frame)
        depth = frame.depth[0].cpu()
        camera = Camera(frame.intrinsics[0], sight.world_from_camera, *depth.shape)
        view = View(*(part.cpu() for part in mapper.raycast(camera)))
        true = truth(sight.frame)
        rendered = _scaled(view.depth, true) if scaled and true is not None else view.depth
        exact = None if true is None else depth_error(rendered, true, near_m, far_m)
        measured = depth_error(view.depth, depth, near_m, far_m)
        yield Look(sight.frame, camera, frame.image[0].cpu(), depth, view, measured, exact)


def score(shown: list[Look], paths: Paths, mesh: Mesh | None, source: Source) -> Score:
    """The figures of a run."""
    measured = average([look.measured for look in shown]) if shown else None
    exact = average([look.exact for look in shown]) if shown and shown[0].exact is not None else None
    comparable = paths.true is not None and bool(paths.true.isfinite().all(-1).all(-1).sum() >= 3)
    trajectory = (
        trajectory_error(paths.found, paths.true, "similarity" if paths.scaled else "rigid") if comparable else None
    )
    known = mesh is not None and len(mesh.vertices) and isinstance(source, Synthetic)
    return Score(measured, exact, trajectory, _offset(mesh, paths, source) if known else None)


def paths(found: Path, true: Path | None, scaled: bool = False) -> Paths:
    """Reads trajectories in TUM format, at most `MOST_POSES` evenly apart; the true one is paired by its stamps."""
    with open(found) as file:
        total = sum(not line.startswith("#") for line in file)
    stride = max(1, -(-total // MOST_POSES))
    with open(found) as file:
        lines = [line for i, line in enumerate(line for line in file if line[0] != "#") if i % stride == 0]
    if true is None or not true.is_file():
        return Paths(_poses(lines), None, scaled)
    rows = {line.split(" ", 1)[0]: i for i, line in enumerate(lines)}
    nothing = "nan " * 8
    beside = [nothing] * len(lines)
    with open(true) as file:
        for line in file:
            stamp = line.split(" ", 1)[0]
            if stamp in rows:
                beside[rows[stamp]] = line
    return Paths(_poses(lines), _poses(beside), scaled)


def aligned(paths: Paths) -> Tensor:
    """The found camera centres [T, 3], moved onto the true ones as well as a motion can; a similarity where scaled."""
    found, across = paths.found[:, :3, 3], true_from_found(paths)
    return found if across is None else transform(across[0], across[1] * found)


def true_from_found(paths: Paths) -> tuple[Tensor, Tensor] | None:
    """The motion [4, 4], and the scale before it, that align the centres; None where three are not known."""
    if paths.true is None:
        return None
    both = paths.true.isfinite().all(-1).all(-1)
    if int(both.sum()) < 3:
        return None
    return align_rigid(paths.found[both][:, :3, 3], paths.true[both][:, :3, 3], paths.scaled)


def _scaled(depth: Tensor, true: Tensor) -> Tensor:
    """The depth whose median is that of the truth, over the pixels that both know."""
    both = (depth > 0) & depth.isfinite() & (true > 0)
    return depth * (true[both].median() / depth[both].median()) if bool(both.any()) else depth


def _poses(lines: list[str]) -> Tensor:
    values = torch.tensor([[float(word) for word in line.split()] for line in lines], dtype=torch.float64)
    values = values.view(-1, 8)
    return motion_from_quaternion(values[:, 1:4], values[:, 4:])


def _offset(mesh: Mesh, paths: Paths, source: Synthetic) -> SurfaceOffset | None:
    points = mesh.vertices[:: max(1, len(mesh.vertices) // MOST_VERTICES)]
    if paths.true is not None:
        across = true_from_found(paths)
        if across is None:
            return None
        points = transform(across[0], across[1].to(points) * points)
    distance = source.scene.distance(points.to(source.camera_intrinsics.device)).abs().cpu() * 1000
    return SurfaceOffset(float(distance.mean()), float(distance.quantile(0.5)), float(distance.quantile(0.95)))
