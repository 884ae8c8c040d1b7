"""Sim(3) between chunks: against the equation in numpy, under outliers, and where there is nothing to align."""

import numpy as np
import pytest
import torch
from nolook import never_looks

from streammem.errors import ConfigError, ShapeError
from streammem.geometry import align_rigid, se3_exp
from streammem.recon.align import ALIGNED, DEGENERATE, DISAGREE, TOO_FEW, Robust, eigen4
from streammem.recon.similarity import Similarity, between, identity


def reference(a, b, confidence, how):
    """Umeyama's rotation by a singular value decomposition, the symmetric scale, and the weights, one stream."""
    weight = confidence
    for step in range(how.huber_steps + how.tukey_steps):
        share = (weight / weight.sum())[:, None]
        c, d = (share * a).sum(0), (share * b).sum(0)
        U, _, Vt = np.linalg.svd((share * (b - d)).T @ (a - c))
        R = U @ np.diag([1, 1, np.linalg.det(U) * np.linalg.det(Vt)]) @ Vt
        s = np.sqrt((share * (b - d) ** 2).sum() / (share * (a - c) ** 2).sum())
        t = d - s * R @ c
        r = np.linalg.norm(b - s * a @ R.T - t, axis=1)
        m = np.sort(r)[(len(r) - 1) // 2]
        if step < how.huber_steps:
            weight = confidence * np.minimum(1, how.huber * m / np.maximum(r, 1e-300))
        else:
            weight = confidence * np.maximum(0, 1 - (r / (how.tukey * m)) ** 2) ** 2
    return s, R, t, m


def some(batch=1, dtype=torch.float64):
    """A similarity of each stream."""
    motion = se3_exp(torch.randn(batch, 6, dtype=torch.float64))
    return Similarity(torch.rand(batch, dtype=torch.float64) * 2 + 0.3, motion[:, :3, :3], motion[:, :3, 3])


def matched(batch=2, count=301, noise=0.02, outliers=0.0):
    """Points on both sides, and how much they count."""
    truth, source = some(batch), torch.randn(batch, count, 3, dtype=torch.float64)
    target = truth.points(source) + noise * torch.randn(batch, count, 3, dtype=torch.float64)
    wrong = torch.rand(batch, count) < outliers
    target[wrong] = 6 * torch.rand(int(wrong.sum()), 3, dtype=torch.float64)
    return truth, source, target, torch.rand(batch, count, dtype=torch.float64) * 5 + 1


def error(found, truth):
    """Largest differences of scale, as a share, and of motions."""
    scale = (found.scale / truth.scale - 1).abs().max()
    return float(torch.stack([scale, (found.rotation - truth.rotation).abs().max()]).max())


@pytest.mark.parametrize("outliers", [0.0, 0.1])
def test_it_is_the_equation(outliers):
    how = Robust(starts=0)
    _, source, target, confidence = matched(3, 301, outliers=outliers)
    found = how(source, target, confidence)
    for i in range(3):
        s, R, t, m = reference(*(x[i].numpy() for x in (source, target, confidence)), how)
        assert float(found.similarity.scale[i]) == pytest.approx(s, rel=1e-9)
        assert np.allclose(found.similarity.rotation[i], R, atol=1e-9)
        assert np.allclose(found.similarity.translation[i], t, atol=1e-8)
        assert float(found.residual[i]) == pytest.approx(m, rel=1e-8)


def test_exact_points_are_aligned_exactly():
    truth, source, target, confidence = matched(noise=0)
    found = Robust()(source, target, confidence)
    assert error(found.similarity, truth) < 1e-9 and float(found.residual.max()) < 1e-9
    assert found.status_code.tolist() == [ALIGNED] * 2 and found.used.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("outliers", [0.1, 0.3, 0.4])
def test_outliers_count_for_nothing(outliers):
    truth, source, target, confidence = matched(4, 2000, noise=0.01, outliers=outliers)
    found = Robust()(source, target, confidence)
    plain = align_rigid(source, target, with_scale=True)
    assert error(found.similarity, truth) < 0.01
    assert float((plain[1] / truth.scale - 1).abs().max()) > 0.02  # where least squares would be
    assert torch.allclose(found.used, torch.tensor(1 - outliers, dtype=torch.float64), atol=0.1)


def test_a_start_from_triples_changes_where_it_ends_but_by_rounding():
    _, source, target, confidence = matched(2, 500, noise=0.05)
    one, other = (Robust(starts=n, huber_steps=40, tukey_steps=40)(source, target, confidence) for n in (0, 64))
    assert error(one.similarity, other.similarity) < 1e-6


def test_confidence_decides_between_two_stories():
    truth, source, target, confidence = matched(1, 400, noise=0.001)
    other = some()
    target[:, 200:] = other.points(source[:, 200:])
    confidence[:, :200], confidence[:, 200:] = 10, 1
    assert error(Robust()(source, target, confidence).similarity, truth) < 1e-2
    confidence[:, 200:] = 0
    assert error(Robust()(source, target, confidence).similarity, truth) < 1e-3


def test_forth_and_back_is_nothing():
    """A one-sided regression would shrink the world a little at every reset."""
    _, source, target, confidence = matched(1, 4000, noise=0.3)
    there, back = Robust()(source, target, confidence), Robust()(target, source, confidence)
    assert float(there.similarity.scale * back.similarity.scale) == pytest.approx(1, abs=0.01)
    forth, over = align_rigid(source, target, True)[1], align_rigid(target, source, True)[1]
    assert float(forth * over) < 0.97


def test_forty_noisy_resets_keep_the_scale():
    scale, gone = identity(1), 1.0
    shape = torch.randn(1, 800, 3, dtype=torch.float64)
    for _ in range(40):
        one, other = (shape + 0.1 * torch.randn_like(shape) for _ in range(2))
        scale = scale.after(Robust()(one, other, torch.ones(1, 800)).similarity)
        gone *= float(align_rigid(one, other, True)[1])
    assert float(scale.scale) == pytest.approx(1, abs=0.05) and gone < 0.75


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("nothing counts", TOO_FEW), ("nan", TOO_FEW), ("few", TOO_FEW), ("one point", DEGENERATE),
        ("line", DEGENERATE), ("source is a point", DEGENERATE), ("plane", ALIGNED), ("some nan", ALIGNED),
        ("huge", ALIGNED), ("tiny", ALIGNED), ("strangers", DISAGREE), ("mirror", DISAGREE),
    ],
)  # fmt: skip
def test_degenerate_inputs_are_a_status(kind, status):
    truth, source, target, confidence = matched(2, 200, noise=0.0)
    if kind == "nothing counts":
        confidence[0] = 0
    elif kind == "nan":
        source[0] = float("nan")
    elif kind == "few":
        confidence[0, 10:] = float("nan")
    elif kind == "one point":
        source[0], target[0] = source[0, :1], target[0, :1]
    elif kind == "source is a point":
        source[0] = source[0, :1]
    elif kind == "line":
        source[0] = source[0, :1] * torch.rand(200, 1)
        target[0] = truth.points(source)[0]
    elif kind == "plane":
        source[..., 2] = 0
        target = truth.points(source)
    elif kind == "some nan":
        source[0, :50], target[0, 50:70], confidence[0, 70:90] = float("nan"), float("inf"), float("-inf")
    elif kind in ("huge", "tiny"):
        scale = 1e12 if kind == "huge" else 1e-6
        source, target = source * scale, truth.points(source * scale)
    elif kind == "strangers":
        target[0] = torch.randn(200, 3)
    elif kind == "mirror":
        target[0] = truth.points(source * torch.tensor([1.0, 1, -1]))[0]
    found = Robust()(source, target, confidence)
    assert int(found.status_code[0]) == status and int(found.status_code[1]) == ALIGNED
    assert all(x.isfinite().all() for x in found.similarity)
    if status == ALIGNED:
        assert error(found.similarity, truth) < 1e-6
    else:
        assert torch.equal(found.similarity.rotation[0], torch.eye(3, dtype=torch.float64))


def test_the_decomposition_is_one():
    A = torch.randn(50, 4, 4, dtype=torch.float64)
    A = A + A.mT
    A[0], A[1], A[2] = torch.eye(4), torch.zeros(4, 4), torch.diag(torch.tensor([1.0, 1, 2, 2]))
    values, V = eigen4(A)
    assert torch.allclose(V @ torch.diag_embed(values) @ V.mT, A, atol=1e-12)
    assert torch.allclose(V.mT @ V, torch.eye(4, dtype=torch.float64).expand_as(V), atol=1e-12)
    assert torch.allclose(values.sort(-1).values, torch.linalg.eigvalsh(A), atol=1e-12)


def test_similarities_are_a_group_that_moves_cameras_and_points_alike():
    one, other = some(2), some(2)
    points = torch.randn(2, 5, 7, 3, dtype=torch.float64)
    assert torch.allclose(one.after(other).points(points), one.points(other.points(points)))
    pose = se3_exp(torch.randn(2, 6, dtype=torch.float64))
    rigid = lambda T: Similarity(torch.ones(2, dtype=torch.float64), T[:, :3, :3], T[:, :3, 3])  # noqa: E731
    seen = rigid(pose).points(points)
    stretched = rigid(one.poses(pose)).points(points * one.scale[:, None, None, None])
    assert torch.allclose(stretched, one.points(seen))
    assert torch.allclose(between(one.poses(pose), pose).poses(pose), one.poses(pose))
    assert torch.allclose(identity(2).points(points), points)


def test_of_many_points_some_are_taken():
    truth, source, target, confidence = matched(1, 1001, noise=0.01, outliers=0.2)
    few = Robust(most_points=300)(source, target, confidence).similarity
    assert error(few, truth) < 0.01
    assert error(few, Robust()(source[:, ::4], target[:, ::4], confidence[:, ::4]).similarity) == 0


def test_alignment_never_looks():
    _, source, target, confidence = matched(2, 40)
    never_looks(Robust(), source, target, confidence)


def test_what_aligns_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least 3 points"):
        Robust(least_points=2)
    with pytest.raises(ShapeError, match="confidence"):
        Robust()(torch.zeros(1, 5, 3), torch.zeros(1, 5, 3), torch.zeros(1, 4))
