"""How far off: trajectories in metres, depth in millimetres, surfaces by their distance."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError, ShapeError, SourceError
from streammem.geometry import (
    align_rigid,
    inverse_rigid,
    motion_from_quaternion,
    quaternion_from_motion,
    rotation_angle,
)

PAIRS = 4_000_000  # distances that are held at once


class TrajectoryError(NamedTuple):
    """Absolute trajectory error: distances between camera centres after an alignment."""

    rmse_m: float
    mean_m: float
    median_m: float
    max_m: float
    poses: int  # compared; those that are not finite on either side are left out


class RelativeError(NamedTuple):
    """Relative pose error over a number of frames: root mean squares."""

    translation_m: float
    rotation_deg: float
    pairs: int


class DepthError(NamedTuple):
    """Absolute error of a rendered depth map where both it and the sensor have a depth."""

    mean_mm: float
    median_mm: float
    within_2cm: float  # share of the compared pixels
    coverage: float  # share of the sensor's pixels that were rendered


class SurfaceError(NamedTuple):
    """Agreement of two surfaces given by points; distances are capped."""

    precision: float  # share of the estimate within the threshold of the truth
    recall: float  # share of the truth within the threshold of the estimate
    f_score: float
    chamfer_m: float  # mean of the two mean distances


def trajectory_error(estimate: Tensor, truth: Tensor, align: str = "rigid") -> TrajectoryError:
    """Absolute trajectory error (ATE) of poses world_from_camera [T, 4, 4], frame by frame.

        e_t = |p_t - A p^_t|

    align: "rigid" takes the motion A that makes sum e_t^2 least, "similarity" a scale too,
        "first" makes the first poses equal, "none" none.
    """
    estimate, truth = _comparable(estimate, truth)
    if align in ("rigid", "similarity"):
        motion, scale = align_rigid(estimate[:, :3, 3], truth[:, :3, 3], align == "similarity")
        estimate = torch.cat([estimate[..., :3], estimate[..., 3:] * estimate.new_tensor([[scale]] * 3 + [[1]])], -1)
    elif align == "first":
        motion = truth[0] @ inverse_rigid(estimate[0])
    elif align == "none":
        motion = torch.eye(4, dtype=truth.dtype)
    else:
        raise ConfigError(f"align is {align!r}; wanted similarity, rigid, first or none")
    error = ((motion @ estimate)[:, :3, 3] - truth[:, :3, 3]).norm(dim=-1)
    rmse = float(error.square().mean().sqrt())
    return TrajectoryError(rmse, float(error.mean()), float(error.quantile(0.5)), float(error.max()), len(error))


def relative_error(estimate: Tensor, truth: Tensor, frames: int = 1) -> RelativeError:
    """Relative pose error (RPE) of poses [T, 4, 4] between poses `frames` apart.

    E_t = (Q_t^-1 Q_{t+n})^-1 (P_t^-1 P_{t+n})
    """
    _same_length(estimate, truth)
    moves = [inverse_rigid(poses[:-frames]) @ poses[frames:] for poses in (truth.double(), estimate.double())]
    error = inverse_rigid(moves[0]) @ moves[1]
    error = error[error.isfinite().all(-1).all(-1)]
    if not len(error):
        raise ShapeError(f"no two poses {frames} frames apart are finite in both trajectories")
    translation = error[:, :3, 3].square().sum(-1).mean().sqrt()
    rotation = rotation_angle(error).square().mean().sqrt()
    return RelativeError(float(translation), math.degrees(float(rotation)), len(error))


def depth_error(rendered: Tensor, measured: Tensor, nearest_m: float = 0.1, furthest_m: float = 3.5) -> DepthError:
    """Errors of one rendered depth map [h, w] against the sensor's, over the sensor's pixels in range; 0 is unknown."""
    wanted = (measured > nearest_m) & (measured < furthest_m)
    both = wanted & (rendered > 0) & rendered.isfinite()
    coverage = float(both.sum() / wanted.sum()) if bool(wanted.any()) else math.nan
    if not bool(both.any()):
        return DepthError(math.nan, math.nan, math.nan, coverage)
    error = (rendered - measured)[both].abs() * 1000
    return DepthError(float(error.mean()), float(error.median()), float((error < 20).float().mean()), coverage)


def average(errors: Sequence[DepthError]) -> DepthError:
    """The mean over frames of each figure; frames where it is not defined are left out."""
    columns = (np.array(column) for column in zip(*errors))
    return DepthError(*(float(np.nanmean(c)) if np.isfinite(c).any() else math.nan for c in columns))


def surface_error(estimate: Tensor, truth: Tensor, threshold_m: float = 0.02, cap_m: float = 0.1) -> SurfaceError:
    """Precision, recall and F-score at a threshold, and Chamfer distance with distances capped, of points [P, 3]."""
    to_truth = nearest_distance(estimate, truth, cap_m).clamp(max=cap_m)
    to_estimate = nearest_distance(truth, estimate, cap_m).clamp(max=cap_m)
    precision, recall = (float((d <= threshold_m).double().mean()) for d in (to_truth, to_estimate))
    f_score = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return SurfaceError(precision, recall, f_score, float(to_truth.mean() + to_estimate.mean()) / 2)


def nearest_distance(query: Tensor, reference: Tensor, cap_m: float) -> Tensor:
    """Distance [P] from each query point [P, 3] to the nearest reference point [R, 3]; inf beyond `cap_m`.

    Looks within an eighth of the cap first, and further only for those that found nothing.
    """
    nearest = torch.full_like(query[:, 0], math.inf)
    for radius in (cap_m / 8, cap_m / 4, cap_m / 2, cap_m):
        open_ones = nearest.isinf().nonzero()[:, 0]
        if len(open_ones):
            nearest[open_ones] = _within(query[open_ones], reference, radius)
    return nearest


def write_trajectory(path: str | Path, time_s: Sequence[float], world_from_camera: Tensor) -> None:
    """Writes poses [T, 4, 4] as TUM lines: time tx ty tz qx qy qz qw. Poses that are not finite are left out."""
    translation, xyzw = quaternion_from_motion(world_from_camera.double().cpu())
    rows = torch.cat([torch.as_tensor(time_s, dtype=torch.float64)[:, None], translation, xyzw], -1)
    rows = rows[rows.isfinite().all(-1)]
    np.savetxt(path, rows.numpy(), fmt=["%.6f"] + ["%.9f"] * 7, header="time tx ty tz qx qy qz qw")


def read_trajectory(path: str | Path) -> tuple[Tensor, Tensor]:
    """Times [T] and poses [T, 4, 4], float64, of a TUM trajectory. Raises: SourceError for another format."""
    try:
        rows = torch.from_numpy(np.loadtxt(path, ndmin=2))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as a trajectory: {error}") from error
    if rows.shape[-1] != 8:
        raise SourceError(f"{path} has {rows.shape[-1]} columns; wanted 8: time tx ty tz qx qy qz qw")
    return rows[:, 0], motion_from_quaternion(rows[:, 1:4], rows[:, 4:])


def _within(query: Tensor, reference: Tensor, radius: float) -> Tensor:
    """Distance [P] to the nearest reference point, inf beyond `radius`.

    Reference points are sorted into cells of the radius; a query looks into the 27 around its own, as nine runs of 3.
    """
    low = torch.minimum(query.amin(0), reference.amin(0))
    cells = [((points - low) / radius).floor().long() + 1 for points in (query, reference)]
    size = torch.maximum(*(c.amax(0) for c in cells)) + 2
    stride = torch.stack([torch.ones_like(size[0]), size[0], size[0] * size[1]])
    keys, order = (cells[1] * stride).sum(-1).sort()
    ordered = reference[order]
    rows = torch.tensor([[y, z] for y in (-1, 0, 1) for z in (-1, 0, 1)], device=keys.device)
    middle = (cells[0] * stride).sum(-1)[:, None] + (rows * stride[1:]).sum(-1)  # [P, 9]
    first = torch.searchsorted(keys, middle - 1)
    count = torch.searchsorted(keys, middle + 1, right=True) - first
    share = (count.sum(-1).cumsum(0) // PAIRS).unique_consecutive(return_counts=True)[1].tolist()
    parts = zip(query.split(share), first.split(share), count.split(share))
    nearest = torch.cat([_nearest(q, ordered, f, n) for q, f, n in parts])
    return torch.where(nearest <= radius, nearest, math.inf)


def _nearest(query: Tensor, reference: Tensor, first: Tensor, count: Tensor) -> Tensor:
    """Distance to the nearest of the reference points first .. first + count - 1 of each query's runs [P, 9]."""
    of_query = torch.arange(len(query), device=query.device).repeat_interleave(count.sum(-1))
    first, count = first.flatten(), count.flatten()
    run_starts = count.cumsum(0) - count
    within = torch.arange(len(of_query), device=query.device) - run_starts.repeat_interleave(count)
    candidate = first.repeat_interleave(count) + within
    distance = (query[of_query] - reference[candidate]).norm(dim=-1)
    return torch.full_like(query[:, 0], math.inf).scatter_reduce(0, of_query, distance, "amin")


def _same_length(estimate: Tensor, truth: Tensor) -> None:
    if estimate.shape != truth.shape or estimate.shape[-2:] != (4, 4):
        shapes = f"{list(estimate.shape)} and {list(truth.shape)}"
        raise ShapeError(f"trajectories are {shapes}; wanted [T, 4, 4] both, one pose a frame")


def _comparable(estimate: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    _same_length(estimate, truth)
    finite = (estimate.isfinite() & truth.isfinite()).all(-1).all(-1)
    if not bool(finite.any()):
        raise ShapeError("no frame has a finite pose in both trajectories")
    return estimate[finite].double(), truth[finite].double()
