"""Figures against evo, scipy-free references and cases known by hand."""

import math

import numpy as np
import pytest
import torch

from streammem.errors import ConfigError, ShapeError, SourceError
from streammem.geometry import motion_from_quaternion, se3_exp
from streammem.metrics import (
    DepthError,
    average,
    depth_error,
    nearest_distance,
    read_trajectory,
    relative_error,
    surface_error,
    trajectory_error,
    write_trajectory,
)


def walk(poses: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    """A smooth trajectory [T, 4, 4] and an estimate of it that drifts."""
    steps = se3_exp(torch.tensor([0.05, 0.01, 0.02, 0.03, 0.05, -0.02]).double() + 0.01 * torch.randn(poses, 6))
    noise = se3_exp(0.003 * torch.randn(poses, 6, dtype=torch.float64))
    start = se3_exp(torch.randn(6, dtype=torch.float64))
    truth, estimate = [torch.eye(4).double()], [start]
    for step, off in zip(steps[1:], noise[1:]):
        truth.append(truth[-1] @ step)
        estimate.append(estimate[-1] @ step @ off)
    return torch.stack(estimate), torch.stack(truth)


def test_trajectory_errors_are_those_of_evo(tmp_path):
    metrics = pytest.importorskip("evo.core.metrics", reason="evo is not installed (extra: peers)")
    file_interface = pytest.importorskip("evo.tools.file_interface")
    estimate, truth = walk()
    times = 100.0 + torch.arange(30) / 30
    for name, poses in (("estimate", estimate), ("truth", truth)):
        write_trajectory(tmp_path / name, times, poses)
    ours, theirs = (file_interface.read_tum_trajectory_file(tmp_path / name) for name in ("estimate", "truth"))

    relative = metrics.RPE(metrics.PoseRelation.translation_part, 3, metrics.Unit.frames, all_pairs=True)
    relative.process_data((theirs, ours))
    turning = metrics.RPE(metrics.PoseRelation.rotation_angle_deg, 3, metrics.Unit.frames, all_pairs=True)
    turning.process_data((theirs, ours))
    found = relative_error(estimate, truth, frames=3)
    assert found.translation_m == pytest.approx(relative.get_statistic(metrics.StatisticsType.rmse), rel=1e-5)
    assert found.rotation_deg == pytest.approx(turning.get_statistic(metrics.StatisticsType.rmse), rel=1e-5)
    assert found.pairs == 27

    for align in ("none", "first", "rigid"):
        absolute = metrics.APE(metrics.PoseRelation.translation_part)
        if align == "first":
            ours.align_origin(theirs)
        if align == "rigid":
            ours.align(theirs)
        absolute.process_data((theirs, ours))
        found = trajectory_error(estimate, truth, align)
        assert found.rmse_m == pytest.approx(absolute.get_statistic(metrics.StatisticsType.rmse), rel=1e-5)
        assert found.max_m == pytest.approx(absolute.get_statistic(metrics.StatisticsType.max), rel=1e-5)
        assert found.median_m == pytest.approx(absolute.get_statistic(metrics.StatisticsType.median), rel=1e-5)


def test_poses_that_are_not_finite_are_left_out():
    estimate, truth = walk()
    whole = trajectory_error(estimate[1:], truth[1:])
    estimate[0] = torch.nan
    assert trajectory_error(estimate, truth) == whole
    assert whole.poses == 29
    assert relative_error(estimate, truth).pairs == 28
    with pytest.raises(ShapeError, match="no frame"):
        trajectory_error(torch.full((3, 4, 4), torch.nan), truth[:3])
    with pytest.raises(ShapeError, match="one pose a frame"):
        trajectory_error(estimate[:5], truth)
    with pytest.raises(ConfigError, match="rigid, first or none"):
        trajectory_error(estimate, truth, "sim3")


def test_a_trajectory_file_is_read_as_written(tmp_path):
    _, truth = walk()
    truth[4] = torch.nan
    times = 1.3e9 + torch.arange(30, dtype=torch.float64) / 30
    write_trajectory(tmp_path / "t.tum", times, truth)
    read_times, poses = read_trajectory(tmp_path / "t.tum")
    kept = [i for i in range(30) if i != 4]
    torch.testing.assert_close(read_times, times[kept], rtol=0, atol=1e-6)
    torch.testing.assert_close(poses, truth[kept], rtol=0, atol=1e-8)
    (tmp_path / "bad").write_text("1 2 3\n")
    with pytest.raises(SourceError, match="wanted 8"):
        read_trajectory(tmp_path / "bad")
    with pytest.raises(SourceError, match="cannot be read"):
        read_trajectory(tmp_path / "absent")


def test_depth_errors_by_hand():
    measured = torch.tensor([[1.0, 2.0, 3.0, 0.0], [4.0, 1.0, 1.0, 1.0]])
    rendered = torch.tensor([[1.01, 1.95, 3.0, 1.0], [4.0, 0.0, 1.0, math.nan]])
    error = depth_error(rendered, measured)
    assert error.mean_mm == pytest.approx(15, abs=1e-3)  # 10, 50, 0, 0 of the pixels in range and rendered
    assert error.median_mm == pytest.approx(0, abs=1e-3)
    assert error.within_2cm == pytest.approx(3 / 4)
    assert error.coverage == pytest.approx(4 / 6)
    nothing = depth_error(torch.zeros(2, 4), measured)
    assert nothing.coverage == 0 and math.isnan(nothing.mean_mm)


def test_depth_errors_are_averaged_over_frames():
    one, two = DepthError(10, 5, 0.9, 1.0), DepthError(30, 15, 0.5, 0.5)
    none = DepthError(math.nan, math.nan, math.nan, 0.0)
    assert average([one, two, none]) == DepthError(20, 10, pytest.approx(0.7), 0.5)


def test_nearest_distance_is_that_of_all_pairs():
    query, reference = torch.rand(500, 3).double(), torch.rand(400, 3).double()
    exact = (query[:, None] - reference).norm(dim=-1).amin(1)
    cap = float(exact.median()) * 1.5
    found = nearest_distance(query, reference, cap)
    near = exact <= cap
    assert 0 < int(near.sum()) < 500
    torch.testing.assert_close(found[near], exact[near])
    assert found[~near].isinf().all()


def test_surfaces_at_a_known_distance():
    grid = torch.stack(torch.meshgrid(*[torch.arange(40) * 0.01] * 2, indexing="ij"), -1).reshape(-1, 2)
    plane = torch.cat([grid, torch.zeros(1600, 1)], -1)
    half = plane[plane[:, 0] < 0.195]
    error = surface_error(half + torch.tensor([0, 0, 0.015]), plane, threshold_m=0.02)
    assert error.precision == 1.0
    assert 0.5 < error.recall < 0.55  # one more row of points is within 2 cm
    assert error.f_score == pytest.approx(2 * error.recall / (1 + error.recall))
    assert surface_error(plane + torch.tensor([0, 0, 0.03]), plane).f_score == 0
    assert surface_error(plane + torch.tensor([0, 0, 0.03]), plane).chamfer_m == pytest.approx(0.03, rel=1e-4)


def test_trajectory_file_has_the_columns_of_tum(tmp_path):
    pose = motion_from_quaternion(torch.tensor([[1.0, 2, 3]]).double(), torch.tensor([[0.0, 0, 0, 1]]).double())
    write_trajectory(tmp_path / "t", [5.5], pose)
    assert np.loadtxt(tmp_path / "t").tolist() == [5.5, 1, 2, 3, 0, 0, 0, 1]
