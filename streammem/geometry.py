"""Rigid motions, pinhole cameras and alignment: pure, batched, on any device.

A motion is a matrix [..., 4, 4] named by both frames: `world_from_camera @ point_in_camera` is a point in the world.
Camera axes are OpenCV's (x right, y down, z forward); pixel centres are at integer coordinates.
This is the only module that imports kornia.
"""

from dataclasses import dataclass

import torch
from kornia.geometry.conversions import quaternion_to_rotation_matrix, vector_to_skew_symmetric_matrix
from torch import Tensor

NEWTON_STEPS = 6  # from 10 % off to machine precision in float64


def transform(to_from: Tensor, points: Tensor) -> Tensor:
    """Moves points by a rigid motion.

        p' = R p + t

    Shapes: to_from [..., 4, 4]; points [..., *, 3] with any dimensions between the batch and the 3; result as points.
    Differs: computed in the type of the points.
    """
    between = points.ndim - 1 - (to_from.ndim - 2)
    T = to_from.to(points.dtype)
    if T.ndim == 2:
        return torch.addmm(T[:3, 3], points.reshape(-1, 3), T[:3, :3].mT).view(points.shape)
    T = T.reshape(*T.shape[:-2], *[1] * (between - 1), 4, 4)  # [..., 1, 4, 4]
    if between == 0:
        return (T[..., :3, :3] @ points[..., None])[..., 0] + T[..., :3, 3]
    return points @ T[..., :3, :3].mT + T[..., None, :3, 3]


def rotate(to_from: Tensor, vectors: Tensor) -> Tensor:
    """Turns directions (normals, rays) by the rotation of a rigid motion; shapes as `transform`."""
    return transform(_rigid(to_from[..., :3, :3], torch.zeros_like(to_from[..., :3, 3])), vectors)


def inverse_rigid(to_from: Tensor) -> Tensor:
    """Inverts rigid motions: [R t]^-1 = [R^T, -R^T t]. Shapes: [..., 4, 4]."""
    R, t = to_from[..., :3, :3], to_from[..., :3, 3]
    return _rigid(R.mT, -(R.mT @ t[..., None])[..., 0])


def se3_exp(xi: Tensor) -> Tensor:
    """Exponential map of SE(3), exact at a zero rotation too.

        T = [exp(w) J_l(w) v]
            [0      1       ]

    Shapes: xi [..., 6] = (v, w), translation first; result [..., 4, 4].
    Units: metres, radians.
    Source: Sola et al. 2018, arXiv:1812.01537, appendix D.
    Differs: by half angles and series of our own; kornia's groups are exact from 0.9 on, which needs Python 3.11.
    """
    v, w = xi[..., :3], xi[..., 3:]
    half_cos, half_sinc, _ = _half_angle(w)
    R = _rotation(torch.cat([half_cos, half_sinc * w], -1))
    return _rigid(R, (_left_jacobian(w) @ v[..., None])[..., 0])


def se3_log(to_from: Tensor) -> Tensor:
    """Logarithm of SE(3), the inverse of `se3_exp` for angles up to pi.

        w = 2 atan2(|q_v|, q_w) q_v / |q_v|;  v = J_l(w)^-1 t

    Shapes: to_from [..., 4, 4]; result [..., 6], translation first.
    Source: Sola et al. 2018, arXiv:1812.01537, appendix D.
    """
    t, xyzw = quaternion_from_motion(to_from)
    imaginary, real = xyzw[..., :3], xyzw[..., 3:]
    squared = imaginary.square().sum(-1, keepdim=True)
    small = squared < 1e-8
    norm = torch.where(small, 1.0, squared).sqrt()
    w = imaginary * torch.where(small, 2 + squared / 3, 2 * torch.atan2(norm, real) / norm)
    v, _ = torch.linalg.solve_ex(_left_jacobian(w), t[..., None])
    return torch.cat([v[..., 0], w], -1)


def orthonormalise(to_from: Tensor) -> Tensor:
    """Replaces the rotation by the nearest one (its polar factor); recorded poses are off by up to 1e-3.

        X <- X (3 I - X^T X) / 2

    Shapes: [..., 4, 4]. NaN stays NaN. For matrices within 10 % of a rotation; `rigid_error` says how far one is.
    Source: Higham 2008, Functions of Matrices, section 8.3 (Newton-Schulz iteration).
    """
    X = to_from[..., :3, :3]
    for _ in range(NEWTON_STEPS):
        X = 1.5 * X - 0.5 * X @ (X.mT @ X)
    return _rigid(X, to_from[..., :3, 3])


def rigid_error(to_from: Tensor) -> Tensor:
    """How far a matrix is from a rigid motion: the largest entry of |R^T R - I|, |det R - 1| and |last row - 0001|.

    Shapes: [..., 4, 4] -> [...]. A mirrored rotation is at least 2 away.
    """
    R = to_from[..., :3, :3]
    eye = torch.eye(4, dtype=to_from.dtype, device=to_from.device)
    gram = (R.mT @ R - eye[:3, :3]).abs().amax((-2, -1))
    mirrored = (torch.linalg.cross(R[..., 0], R[..., 1]) * R[..., 2]).sum(-1) - 1
    row = (to_from[..., 3, :] - eye[3]).abs().amax(-1)
    return torch.stack([gram, mirrored.abs(), row], -1).amax(-1)


def rotation_angle(to_from: Tensor) -> Tensor:
    """The angle of a motion's rotation in radians, accurate near 0 and near pi. Shapes: [..., 4, 4] -> [...]."""
    R = to_from[..., :3, :3]
    skew = torch.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], -1)
    return torch.atan2(skew.norm(dim=-1), R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1)


def motion_from_quaternion(translation: Tensor, xyzw: Tensor) -> Tensor:
    """Motions from translations [..., 3] and quaternions [..., 4], scalar last as TUM files write them."""
    return _rigid(_rotation(xyzw.roll(1, -1)), translation)


def quaternion_from_motion(to_from: Tensor) -> tuple[Tensor, Tensor]:
    """Translations [..., 3] and unit quaternions [..., 4], scalar last and not negative, of motions [..., 4, 4].

    4 q q^T is linear in R; its row of the largest diagonal is q up to scale, accurate at every angle.
    """
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in to_from[..., :3, :3].unbind(-2))
    rows = [
        [1 + a + e + i, h - f, c - g, d - b],
        [h - f, 1 + a - e - i, b + d, c + g],
        [c - g, b + d, 1 - a + e - i, f + h],
        [d - b, c + g, f + h, 1 - a - e + i],
    ]
    outer = torch.stack([torch.stack(row, -1) for row in rows], -2)  # [..., 4, 4]
    best = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]  # [..., 1, 1]
    wxyz = outer.take_along_dim(best, -2)[..., 0, :]
    wxyz = wxyz / wxyz.norm(dim=-1, keepdim=True)
    wxyz = torch.where(wxyz[..., :1] < 0, -wxyz, wxyz)
    return to_from[..., :3, 3], wxyz.roll(-1, -1)


def pixel_grid(height: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Columns u [w] and rows v [h, 1] of an image, in the type and on the device of `like`."""
    u = torch.arange(width, dtype=like.dtype, device=like.device)
    return u, torch.arange(height, dtype=like.dtype, device=like.device)[:, None]


def unproject(depth: Tensor, intrinsics: Tensor) -> Tensor:
    """Points in the camera of every pixel.

        p = z ((u - cx) / fx, (v - cy) / fy, 1)

    Shapes: depth [..., h, w], intrinsics [..., 3, 3]; result [..., h, w, 3]. Units: metres, pixels. No skew.
    """
    K = intrinsics.to(depth.dtype)[..., None, None, :, :]  # [..., 1, 1, 3, 3]
    u, v = pixel_grid(*depth.shape[-2:], depth)
    x = (u - K[..., 0, 2]) / K[..., 0, 0] * depth
    y = (v - K[..., 1, 2]) / K[..., 1, 1] * depth
    return torch.stack([x, y, depth.expand_as(x)], -1)


def project(points: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels (u, v) and depth z of points in the camera; u and v mean nothing where z <= 0.

    Shapes: points [..., *, 3], intrinsics [..., 3, 3]; results [..., *]. Units: metres, pixels. No skew.
    """
    K = intrinsics.to(points.dtype)
    K = K.reshape(*K.shape[:-2], *[1] * (points.ndim - 1 - (K.ndim - 2)), 3, 3)  # [..., 1..., 3, 3]
    x, y, z = points.unbind(-1)
    return K[..., 0, 0] * x / z + K[..., 0, 2], K[..., 1, 1] * y / z + K[..., 1, 2], z


def scale_intrinsics(intrinsics: Tensor, across: float, down: float) -> Tensor:
    """Intrinsics of the image resized by `across` in width and `down` in height; pixel edges, not centres, stay put.

    fx' = sx fx;  cx' = sx (cx + 1/2) - 1/2
    """
    K = intrinsics.clone()
    for row, factor in ((0, across), (1, down)):
        K[..., row, row] *= factor
        K[..., row, 2] = factor * (K[..., row, 2] + 0.5) - 0.5
    return K


def align_rigid(source: Tensor, target: Tensor, with_scale: bool = False) -> tuple[Tensor, Tensor]:
    """The motion, and the scale, that bring matched points closest in the least squares sense.

        target ~ s R source + t

    Shapes: source, target [..., P, 3]; results target_from_source [..., 4, 4] and s [...] (1 unless `with_scale`).
    With a scale, a point moves to `transform(target_from_source, s * source)`.
    Source: Umeyama 1991, IEEE PAMI 13(4), eqs. (40) to (42).
    Differs: the decomposition waits for the device; never inside a step.
    """
    a, b = source.mean(-2, keepdim=True), target.mean(-2, keepdim=True)
    covariance = (target - b).mT @ (source - a) / source.shape[-2]
    U, D, Vt = torch.linalg.svd(covariance)
    sign = torch.ones_like(D)
    sign[..., 2] = torch.linalg.det(U) * torch.linalg.det(Vt)
    R = U @ (sign[..., None] * Vt)
    spread = (source - a).square().sum(-1).mean(-1)
    scale = (D * sign).sum(-1) / spread if with_scale else torch.ones_like(spread)
    t = b[..., 0, :] - scale[..., None] * (R @ a.mT)[..., 0]
    return _rigid(R, t), scale


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at a pose: what a readout is asked for."""

    intrinsics: Tensor  # [3, 3], pixels
    world_from_camera: Tensor  # [4, 4], metres
    height: int  # rows
    width: int  # columns

    def scaled(self, factor: float) -> "Camera":
        """The same camera with `factor` times the rows and columns, rounded to whole pixels."""
        height, width = max(1, round(self.height * factor)), max(1, round(self.width * factor))
        K = scale_intrinsics(self.intrinsics, width / self.width, height / self.height)
        return Camera(K, self.world_from_camera, height, width)

    def rays(self) -> tuple[Tensor, Tensor]:
        """The centre [3] and each pixel's direction [h, w, 3] in the world: centre + z * direction has depth z."""
        K = self.intrinsics
        ones = torch.ones(self.height, self.width, dtype=K.dtype, device=K.device)
        T = self.world_from_camera.to(K)
        return T[:3, 3], rotate(T, unproject(ones, K))


def _rigid(rotation: Tensor, translation: Tensor) -> Tensor:
    top = torch.cat([rotation, translation[..., None]], -1)  # [..., 3, 4]
    row = torch.zeros_like(top[..., :1, :])
    row[..., 3] = 1
    return torch.cat([top, row], -2)


def _rotation(wxyz: Tensor) -> Tensor:
    return quaternion_to_rotation_matrix(wxyz.reshape(-1, 4)).reshape(*wxyz.shape[:-1], 3, 3)


def _half_angle(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cos(a / 2), sin(a / 2) / a and (a - sin a) / a^3 of the angle a = |w|, [..., 1] each, smooth at 0."""
    squared = w.square().sum(-1, keepdim=True)
    small = squared < 1e-2
    s = torch.where(small, squared, 0.0)
    a = torch.where(small, 1.0, squared).sqrt()
    cosine = 1 - s / 8 * (1 - s / 48 * (1 - s / 120 * (1 - s / 224)))
    sinc = 0.5 * (1 - s / 24 * (1 - s / 80 * (1 - s / 168 * (1 - s / 288))))
    cubic = (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110)))) / 6
    return (
        torch.where(small, cosine, torch.cos(a / 2)),
        torch.where(small, sinc, torch.sin(a / 2) / a),
        torch.where(small, cubic, (a - torch.sin(a)) / a**3),
    )


def _left_jacobian(w: Tensor) -> Tensor:
    """J_l(w) = I + (1 - cos a) / a^2 [w] + (a - sin a) / a^3 [w]^2, [..., 3, 3]."""
    _, half_sinc, cubic = _half_angle(w)
    hat = vector_to_skew_symmetric_matrix(w.reshape(-1, 3)).reshape(*w.shape[:-1], 3, 3)
    eye = torch.eye(3, dtype=w.dtype, device=w.device)
    return eye + 2 * half_sinc[..., None] ** 2 * hat + cubic[..., None] * (hat @ hat)
