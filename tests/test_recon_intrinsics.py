"""The focal length that points tell, alone and over a stream."""

import numpy as np
import pytest
import torch
from nolook import never_looks

from streammem.errors import ConfigError
from streammem.geometry import unproject
from streammem.recon.intrinsics import Fitted, Fixed, Median, focal_length, matrix


def reference(points, steps=10):
    """The words of the specification, in float64, one view."""
    h, w, _ = points.shape
    p = np.stack(np.meshgrid(np.arange(w) - w // 2, np.arange(h) - h // 2), -1).reshape(-1, 2).astype(np.float64)
    with np.errstate(all="ignore"):
        s = points[..., :2].reshape(-1, 2) / points[..., 2:].reshape(-1, 1)
    s[~np.isfinite(s).all(1)] = 0
    f = (s * p).sum(1).mean() / (s * s).sum(1).mean()
    for _ in range(steps):
        weight = 1 / np.maximum(np.linalg.norm(p - f * s, axis=1), 1e-8)
        f = (weight * (s * p).sum(1)).mean() / (weight * (s * s).sum(1)).mean()
    return f


def views(*focals, height=21, width=34, dtype=torch.float64):
    """Points [B, h, w, 3] of random depth under exact cameras."""
    depth = torch.rand(len(focals), height, width, dtype=dtype) * 3 + 0.5
    return unproject(depth, matrix(torch.tensor(focals, dtype=dtype), height, width))


def test_it_is_the_equation():
    points = views(30.0, 55.0) + 0.05 * torch.randn(2, 21, 34, 3, dtype=torch.float64)
    points[0, 3, 4, 2] = 0
    points[1, 5] = float("nan")
    wanted = [reference(one.numpy().copy()) for one in points]
    assert focal_length(points).tolist() == pytest.approx(wanted, rel=1e-9)
    assert focal_length(points.float()).tolist() == pytest.approx(wanted, rel=1e-4)


def test_exact_points_give_the_exact_focal_length():
    assert focal_length(views(30.0, 200.0, 7.5)).tolist() == pytest.approx([30.0, 200.0, 7.5], rel=1e-9)


def test_a_third_of_outliers_moves_it_little():
    points = views(40.0)
    wrong = torch.rand(1, 21, 34) < 0.33
    points[wrong] = torch.rand(int(wrong.sum()), 3, dtype=torch.float64) + torch.tensor([-0.5, -0.5, 0.5])
    plain = focal_length(points, steps=0)
    assert abs(float(focal_length(points)) - 40) < 1 < abs(float(plain) - 40)


def test_views_that_tell_nothing_are_nan_and_leave_the_median_alone():
    lens, blank = Median(3), torch.full((1, 21, 34, 3), float("nan"), dtype=torch.float32)
    assert focal_length(blank).isnan().all()
    state, K = lens.step(lens.init(1), blank)
    assert K[0, 0, 0] == 34  # nothing known yet: a long side
    for focal in (30.0, 90.0, 31.0, 32.0, 33.0):
        state, K = lens.step(state, views(focal, dtype=torch.float32))
        state, same = lens.step(state, blank)
        assert torch.equal(K, same)
    assert float(K[0, 0, 0]) == pytest.approx(32, rel=1e-4) and int(state.count) == 5
    assert state.values.shape == (1, 3)


def test_streams_are_independent():
    lens = Median(4)
    together, alone = lens.init(2), lens.init(1)
    for a, b in [(30.0, 50.0), (33.0, 41.0), (31.0, 45.0)]:
        points = views(a, b, dtype=torch.float32)
        together, K = lens.step(together, points)
        alone, one = lens.step(alone, points[1:])
        assert torch.equal(K[1:], one)


def test_no_lens_has_a_focal_length_of_a_pixel():
    for lens in (Fitted(), Median(3)):
        for focal in (0.5, 5000.0):
            _, K = lens.step(lens.init(1), views(focal, dtype=torch.float32))
            assert K[0, 0, 0] == 34


def test_fitted_and_fixed():
    points = views(30.0, 50.0, dtype=torch.float32)
    _, K = Fitted().step(Fitted().init(2), points)
    assert K[:, 0, 0].tolist() == pytest.approx([30, 50], rel=1e-4) and K[0, :2, 2].tolist() == [17, 10]
    _, K = Fixed(30, 31, 16.5, 10).step(Fixed(30, 31, 16.5, 10).init(2), points)
    assert K[1].tolist() == [[30, 0, 16.5], [0, 31, 10], [0, 0, 1]]
    with pytest.raises(ConfigError, match="positive focal lengths"):
        Fixed(0, 1, 1, 1)
    with pytest.raises(ConfigError, match="views is 0"):
        Median(0)


@pytest.mark.parametrize("lens", [Fitted(), Median(3), Fixed(30, 30, 17, 10)], ids=lambda lens: type(lens).__name__)
def test_a_step_never_looks(lens):
    never_looks(lens.step, lens.init(2), views(30.0, 40.0, dtype=torch.float32))
