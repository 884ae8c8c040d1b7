"""Rigid motions are a group, cameras see what they project, alignment undoes what was done."""

import math

import pytest
import torch
from kornia.geometry.liegroup import So3
from torch._subclasses.fake_tensor import FakeTensorMode

from streammem.geometry import (
    Camera,
    align_rigid,
    inverse_rigid,
    motion_from_quaternion,
    orthonormalise,
    project,
    quaternion_from_motion,
    rigid_error,
    rotate,
    rotation_angle,
    scale_intrinsics,
    se3_exp,
    se3_log,
    transform,
    unproject,
)

ANGLES = (0.0, 1e-12, 1e-8, 1e-4, 0.0999, 0.1001, 1.0, 3.0, math.pi - 1e-6, math.pi - 1e-12)
EYE = torch.eye(4, dtype=torch.float64)


def twists(angle: float) -> torch.Tensor:
    """Twists [3, 4, 6] with rotations by one angle about random axes."""
    xi = torch.randn(3, 4, 6, dtype=torch.float64)
    axis = xi[..., 3:] / xi[..., 3:].norm(dim=-1, keepdim=True)
    return torch.cat([xi[..., :3], angle * axis], -1)


def lens(fx=500.0, fy=520.0, cx=20.0, cy=14.0) -> torch.Tensor:
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=torch.float64)


@pytest.mark.parametrize("angle", ANGLES)
def test_exponential_is_the_matrix_exponential(angle):
    xi = twists(angle)
    v, w = xi[..., :3], xi[..., 3:]
    zero = torch.zeros_like(w[..., 0])
    rows = [[zero, -w[..., 2], w[..., 1], v[..., 0]], [w[..., 2], zero, -w[..., 0], v[..., 1]]]
    rows += [[-w[..., 1], w[..., 0], zero, v[..., 2]], [zero] * 4]
    hat = torch.stack([torch.stack(row, -1) for row in rows], -2)
    torch.testing.assert_close(se3_exp(xi), torch.linalg.matrix_exp(hat), rtol=0, atol=1e-12)


@pytest.mark.parametrize("angle", ANGLES)
def test_logarithm_undoes_the_exponential(angle):
    xi = twists(angle)
    torch.testing.assert_close(se3_log(se3_exp(xi)), xi, rtol=0, atol=1e-12 if angle < 3.1 else 1e-8)
    torch.testing.assert_close(se3_exp(se3_log(se3_exp(xi))), se3_exp(xi), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        rotation_angle(se3_exp(xi)), torch.full((3, 4), angle, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_rotation_agrees_with_kornia():
    xi = twists(1.3)
    expected = So3.exp(xi[..., 3:].reshape(-1, 3)).matrix().reshape(3, 4, 3, 3)
    torch.testing.assert_close(se3_exp(xi)[..., :3, :3], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_exponential_and_logarithm_have_gradients(at):
    xi = (at * torch.randn(2, 6, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: se3_log(se3_exp(x)), xi)
    assert torch.autograd.gradcheck(se3_exp, xi)


def test_motions_are_a_group():
    a, b = se3_exp(twists(1.0)), se3_exp(twists(2.0))
    torch.testing.assert_close(inverse_rigid(a) @ a, EYE.expand_as(a), rtol=0, atol=1e-14)
    torch.testing.assert_close(inverse_rigid(a @ b), inverse_rigid(b) @ inverse_rigid(a), rtol=0, atol=1e-14)
    points = torch.randn(3, 4, 5, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(transform(a @ b, points), transform(a, transform(b, points)))


@pytest.mark.parametrize("between", [(), (5,), (5, 6)])
def test_transform_takes_any_dimensions_between_batch_and_point(between):
    T = se3_exp(twists(1.0))
    points = torch.randn(3, 4, *between, 3, dtype=torch.float64)
    one = T[1, 2]
    expected = points[1, 2] @ one[:3, :3].T + one[:3, 3]
    torch.testing.assert_close(transform(T, points)[1, 2], expected)
    torch.testing.assert_close(transform(one, points[1, 2]), expected)
    torch.testing.assert_close(rotate(T, points)[1, 2], points[1, 2] @ one[:3, :3].T)


@pytest.mark.parametrize("angle", ANGLES)
def test_quaternions_survive_the_round_trip(angle):
    T = se3_exp(twists(angle))
    translation, xyzw = quaternion_from_motion(T)
    torch.testing.assert_close(motion_from_quaternion(translation, xyzw), T, rtol=0, atol=1e-12)
    torch.testing.assert_close(xyzw.norm(dim=-1), torch.ones(3, 4).double())
    assert (xyzw[..., 3] >= 0).all()


def test_quaternion_is_written_scalar_last():
    quarter = math.sqrt(0.5)
    T = motion_from_quaternion(torch.zeros(3).double(), torch.tensor([0, 0, quarter, quarter]).double())
    torch.testing.assert_close(T[:3, 0], torch.tensor([0.0, 1, 0]).double())  # x turns to y about z


def test_nearest_rotation_is_that_of_the_singular_values():
    T = se3_exp(twists(1.0))
    T[..., :3, :3] += 0.02 * torch.randn(3, 4, 3, 3)
    U, _, Vt = torch.linalg.svd(T[..., :3, :3])
    straight = orthonormalise(T)
    torch.testing.assert_close(straight[..., :3, :3], U @ Vt, rtol=0, atol=1e-13)
    assert rigid_error(straight).max() < 1e-13 < 1e-2 < rigid_error(T).max()
    assert orthonormalise(torch.full((4, 4), torch.nan)).isnan().any()


def test_rigid_error_sees_mirrors_scales_and_last_rows():
    for wrong in (torch.diag(torch.tensor([1.0, 1, -1, 1])), torch.diag(torch.tensor([1.1, 1.1, 1.1, 1])), 2 * EYE):
        assert rigid_error(wrong) > 0.1
    assert rigid_error(EYE) == 0


def test_projection_undoes_unprojection():
    depth = 0.5 + torch.rand(2, 3, 30, 40, dtype=torch.float64)
    K = lens().expand(2, 3, 3, 3)
    u, v, z = project(unproject(depth, K), K)
    torch.testing.assert_close(z, depth)
    torch.testing.assert_close(u, torch.arange(40.0).double().expand_as(u), atol=1e-11, rtol=0)
    torch.testing.assert_close(v, torch.arange(30.0).double()[:, None].expand_as(v), atol=1e-11, rtol=0)


def test_pixel_centres_are_integers():
    point = unproject(torch.full((30, 40), 2.0).double(), lens())[14, 20]
    torch.testing.assert_close(point, torch.tensor([0.0, 0, 2]).double())


def test_scaled_intrinsics_keep_the_edges_of_the_image():
    K = lens()
    half = scale_intrinsics(K, 0.5, 0.25)
    for size, row in ((40, 0), (30, 1)):
        for edge in (-0.5, size - 0.5):
            ray = (edge - K[row, 2]) / K[row, row]
            share = (edge + 0.5) / size
            scaled = (0.5, 0.25)[row] * size * share - 0.5
            assert float(ray * half[row, row] + half[row, 2]) == pytest.approx(scaled)


def test_rays_of_a_camera_reach_its_points():
    camera = Camera(lens(), se3_exp(twists(1.0))[0, 0], 30, 40)
    depth = 1 + torch.rand(30, 40, dtype=torch.float64)
    centre, direction = camera.rays()
    points = transform(camera.world_from_camera, unproject(depth, camera.intrinsics))
    torch.testing.assert_close(centre + depth[..., None] * direction, points)
    small = camera.scaled(0.5)
    assert (small.height, small.width) == (15, 20)
    torch.testing.assert_close(small.intrinsics[0, 2], torch.tensor(9.75).double())


@pytest.mark.parametrize("with_scale", [False, True])
def test_alignment_finds_the_motion(with_scale):
    source = torch.randn(4, 20, 3, dtype=torch.float64)
    T, s = se3_exp(twists(2.5))[0], 1.7 if with_scale else 1.0
    found, scale = align_rigid(source, transform(T, s * source), with_scale)
    torch.testing.assert_close(found, T)
    torch.testing.assert_close(scale, torch.full((4,), s).double())


def test_alignment_never_mirrors():
    source = torch.randn(20, 3, dtype=torch.float64)
    found, _ = align_rigid(source, source * torch.tensor([1.0, 1, -1]).double())
    assert rigid_error(found) < 1e-12


def test_motions_never_look_at_the_device():
    with FakeTensorMode():
        xi, depth, K = torch.randn(2, 6), torch.rand(2, 30, 40), torch.rand(2, 3, 3)
        T = se3_exp(xi)
        assert se3_log(orthonormalise(T)).shape == (2, 6)
        assert transform(inverse_rigid(T), unproject(depth, K)).shape == (2, 30, 40, 3)
        assert quaternion_from_motion(T)[1].shape == (2, 4)
