"""Dense RGB-D alignment: Gauss-Newton over SE(3) for a batch of candidate poses against a batch of reference frames.

Every residual is a scalar field read at a point of the frame: with m the field's gradient in the camera's axes, its row
of the Jacobian is (m, p x m), whether the field is a tangent plane, a picture or a map.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import inverse_rigid, orthonormalise
from streammem.mapping.pyramid import Cloud, Reference
from streammem.mapping.twist import exponential

TUKEY = 3.6  # residuals beyond this many scales count for nothing
STUDENT = 5.0  # degrees of freedom of the photometric residual
NEAR_M = 0.05  # a point closer than this is behind the lens
LONGEST = 0.3  # longest step, metres and radians


class Weighing(NamedTuple):
    """What residuals are measured in."""

    spread_m: float  # added to the depth's noise: how far off the pose may still be
    intensity: float  # scale of the photometric residual
    photometric: float  # weight of the photometric term
    alike: float = 0.5  # least cosine between the normals of a point and of what it is compared with


class Views(NamedTuple):
    """What H candidates are compared with: R references each."""

    tables: Reference
    row: Tensor  # [H, R] int64, which of the tables' frames
    use: Tensor  # [H, R] 1 or 0
    world_from_ref: Tensor  # [H, R, 4, 4] float64

    def only(self, candidate: Tensor) -> "Views":
        """The views of some candidates, [H'] int64."""
        row, use, pose = (x.index_select(0, candidate) for x in (self.row, self.use, self.world_from_ref))
        return Views(self.tables, row, use, pose)


class Meeting(NamedTuple):
    """Where P points fall in the references of HR pairs of a candidate and a reference."""

    point: Tensor  # [HR, 3, P] in the reference's camera
    inverse_z: Tensor  # [HR, P]
    inside: Tensor  # [HR, P] 1 or 0: in the picture
    plane: Tensor  # [4, HR, P] the tangent plane there
    pixel: Tensor  # [2, HR, P] in the reference's colour picture
    first: Tensor  # [HR, 1] the reference's first row in the tables


class Rows(NamedTuple):
    """Residuals of HR pairs at P points, with what their Jacobians are made of."""

    residual: Tensor  # [HR, P]
    gradient: Tensor  # [HR, 3, P] in the camera
    weight: Tensor  # [HR, P]


class Reading(NamedTuple):
    """What a map says at P points of the world."""

    distance: Tensor  # [P] metres, positive in front of the surface
    gradient: Tensor  # [P, 3] of the distance
    precision: Tensor  # [P] 1 / m^2; 0 where never seen


class Fit(NamedTuple):
    """How well H candidates agree with their references."""

    inlier: Tensor  # [H, R] points on the reference's surface, within three scales
    overlap: Tensor  # [H, R] points that fall into the reference's picture
    compared: Tensor  # [H, R] points that met a surface there
    depth_error: Tensor  # [H, R] mean squared residual in scales, cut at 9
    intensity_error: Tensor  # [H, R] mean absolute residual in scales, cut at 3


def align(
    cloud: Cloud, views: Views, world_from_camera: Tensor, how: Weighing, steps: int, extra: Callable | None = None
):
    """Moves H candidate poses to where the cloud agrees with their views, by Gauss-Newton on T exp(xi).

        minimise  sum rho((n . T p - d) / s) + g sum rho((I_ref(T p) - I(p)) / c)

    Tukey's rho for depth, Student's for intensity. A system that cannot be solved leaves its candidate where it is.

    Shapes: world_from_camera [H, 4, 4] float64; result likewise, and the last system [H, 6, 6], scaled by noise.
    extra: T -> (A [H, 6, 6], b [H, 6]), terms to add, such as a map's or a prior's.
    """
    T, ref_from_world, references = world_from_camera, inverse_rigid(views.world_from_ref), views.row.shape[1]
    for _ in range(steps):
        terms, _ = compare(cloud, views, ref_from_world @ T[:, None], how)
        A, b = equations(cloud, terms, references)
        if extra is not None:
            A_extra, b_extra = extra(T)
            A, b = A + A_extra, b + b_extra
        T = T @ exponential(-solve(A, b))
    return orthonormalise(T), A


def compare(cloud: Cloud, views: Views, ref_from_camera: Tensor, how: Weighing) -> tuple[list[Rows], Fit]:
    """Depth and intensity residuals of every candidate [H, R, 4, 4] against its references."""
    T = ref_from_camera.to(cloud.point).flatten(0, 1)
    turn = T[:, :3, :3]
    back = turn.mT
    at = meet(cloud, views, T)
    normal = at.plane[:3].movedim(0, 1)  # [HR, 3, P]
    distance = (normal * at.point).sum(1) - at.plane[3]
    met = at.inside * ((normal * (turn @ cloud.normal)).sum(1) > how.alike)
    scale = 2 * cloud.variance + how.spread_m**2
    tukey = (1 - distance.square() / (scale * TUKEY**2)).clamp(min=0).square() * met
    change, right, down = intensity_change(cloud, views.tables, at)
    right, down = (right + cloud.slope[0]) / 2, (down + cloud.slope[1]) / 2
    uphill = uphill_of(views, at, right, down)
    student = (tukey > 0) / (1 + (change / how.intensity).square() / STUDENT)
    depth = Rows(distance, back @ normal, tukey / scale)
    photo = Rows(change, back @ uphill, student * (how.photometric / how.intensity**2))
    fit = _fit(distance.square() / scale, change.abs() / how.intensity, at.inside, met, views.row.shape)
    return [depth, photo], fit


def field_equations(cloud: Cloud, read: Callable[[Tensor], Reading], world_from_camera: Tensor, how: Weighing):
    """Normal equations of a map's signed distance at the cloud, by one pose, and how much of the cloud agrees.

        r = d(T p) / |grad d|,  m = R^T grad d / |grad d|,  s^2 = sigma^2 + 1 / precision + spread^2

    Shapes: world_from_camera [1, 4, 4]; results [1, 6, 6], [1, 6], and two counts []: known, agreeing.
    """
    T = world_from_camera.to(cloud.point)
    turn = T[:, :3, :3]
    field = read((turn @ cloud.point + T[:, :3, 3:])[0].mT)
    steep = field.gradient.norm(dim=-1).clamp(min=0.1)  # [P]
    normal = (field.gradient / steep[:, None]).mT[None]  # [1, 3, P]
    distance = (field.distance / steep)[None]
    alike = (normal * (turn @ cloud.normal)).sum(1) > how.alike
    known = cloud.usable * (field.precision > 0)
    scale = cloud.variance + 1 / field.precision.clamp(min=1) + how.spread_m**2
    tukey = (1 - distance.square() / (scale * TUKEY**2)).clamp(min=0).square() * known * alike
    A, b = equations(cloud, [Rows(distance, turn.mT @ normal, tukey / scale)], 1)
    return A, b, known.sum(), (known * alike * (distance.square() < 9 * scale)).sum()


def meet(cloud: Cloud, views: Views, ref_from_camera: Tensor) -> Meeting:
    """Projects the cloud into the references of HR pairs, ref_from_camera [HR, 4, 4]."""
    h, w = views.tables.size
    K = views.tables.intrinsics[views.row.view(-1)][:, :, :, None]  # [HR, 3, 3, 1]
    q = ref_from_camera[:, :3, :3] @ cloud.point + ref_from_camera[:, :3, 3:]
    close = q[:, 2] < NEAR_M
    inverse_z = 1 / torch.where(close, 1, q[:, 2])
    u, v = project_rows(q[:, 0], q[:, 1], inverse_z, K)
    inside = (u >= 0) & (u <= w - 1) & (v >= 0) & (v <= h - 1) & ~close
    inside = inside * (cloud.usable * views.use.view(-1, 1))
    first = (views.row * (h * w)).view(-1, 1)
    plane = _gather(views.tables.plane, _index(u.round(), v.round(), h, w) + first)
    scale, shift = views.tables.colour
    pixel = torch.stack(project_rows(scale * (q[:, 0] + shift), scale * q[:, 1], inverse_z, K))
    return Meeting(q, inverse_z, inside, plane, pixel, first)


def project_rows(x: Tensor, y: Tensor, inverse_z: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels of points given by coordinate; K [..., 3, 3, 1]."""
    return x * inverse_z * K[..., 0, 0, :] + K[..., 0, 2, :], y * inverse_z * K[..., 1, 1, :] + K[..., 1, 2, :]


def intensity_change(cloud: Cloud, tables: Reference, at: Meeting) -> tuple[Tensor, Tensor, Tensor]:
    """Reference's intensity less the cloud's, and its slopes per pixel to the right and down, [HR, P] each."""
    h, w = tables.size
    u, v = at.pixel[0].clamp(0, w - 1), at.pixel[1].clamp(0, h - 1)
    low_u, low_v = u.floor(), v.floor()
    i00, i01, i10, i11 = _gather(tables.patch, _index(low_u, low_v, h, w) + at.first)
    du, dv = u - low_u, v - low_v
    top, bottom = i00 + (i01 - i00) * du, i10 + (i11 - i10) * du
    return top + (bottom - top) * dv - cloud.intensity, i01 - i00 + (i11 - i10 - i01 + i00) * dv, bottom - top


def uphill_of(views: Views, at: Meeting, right: Tensor, down: Tensor) -> Tensor:
    """Gradient of the intensity by the point, [HR, 3, P] in the reference's camera."""
    scale, shift = views.tables.colour
    K = views.tables.intrinsics[views.row.view(-1)]
    x = right * at.inverse_z * (scale * K[:, 0, :1])
    y = down * at.inverse_z * (scale * K[:, 1, 1:2])
    return torch.stack([x, y, -(x * (at.point[:, 0] + shift) + y * at.point[:, 1]) * at.inverse_z], 1)


def intensity_slopes(cloud: Cloud, views: Views, ref_from_camera: Tensor) -> Tensor:
    """Change of the intensity residual by the colour camera's focal ratio and shift, [HR, 2, P].

    dr/ds = grad I . (u_ref - u) / s,  dr/db = dI/du s fx (1 / z_ref - 1 / z)
    """
    T = ref_from_camera.to(cloud.point).flatten(0, 1)
    at = meet(cloud, views, T)
    _, right, down = intensity_change(cloud, views.tables, at)
    scale, shift = views.tables.colour
    K = views.tables.intrinsics[views.row.view(-1)][:, :, :, None]
    x, y, z = cloud.point
    inverse_z = 1 / z.clamp(min=NEAR_M)
    u, v = project_rows(scale * (x + shift), scale * y, inverse_z, K)
    by_scale = (right * (at.pixel[0] - u) + down * (at.pixel[1] - v)) / scale
    return torch.stack([by_scale, right * scale * K[:, 0, 0] * (at.inverse_z - inverse_z)], 1)


def equations(cloud: Cloud, terms: list[Rows], references: int) -> tuple[Tensor, Tensor]:
    """Normal equations of the terms, each candidate's references summed.

        A = sum w J^T J,  b = sum w J^T r,  J = (m, p x m)

    Shapes: [H, 6, 6], [H, 6] float64.
    """
    A = b = 0
    for term in terms:
        J = jacobian(cloud.point, term.gradient)
        weighted = J * term.weight[:, None]
        A, b = A + weighted @ J.mT, b + weighted @ term.residual[..., None]
    A, b = A.unflatten(0, (-1, references)), b[..., 0].unflatten(0, (-1, references))
    return A.double().sum(1), b.double().sum(1)


def jacobian(point: Tensor, gradient: Tensor) -> Tensor:
    """Rows (m, p x m) by a twist of the camera: point [3, P], gradient [HR, 3, P] -> [HR, 6, P]."""
    px, py, pz = point
    x, y, z = gradient.unbind(1)
    return torch.stack([x, y, z, py * z - pz * y, pz * x - px * z, px * y - py * x], 1)


def solve(A: Tensor, b: Tensor) -> Tensor:
    """x = A^-1 b, shortened to LONGEST; 0 where A is not positive definite. Shapes: [H, 6, 6], [H, 6]."""
    L, info = torch.linalg.cholesky_ex(A)
    x = torch.cholesky_solve(b[..., None], L)[..., 0]
    x = torch.where((info == 0)[:, None] & x.isfinite().all(-1, keepdim=True), x, 0)
    return x / (x.abs().amax(-1, keepdim=True) / LONGEST).clamp(min=1)


def _index(u: Tensor, v: Tensor, h: int, w: int) -> Tensor:
    """Row of a pixel in a table; pixels outside are moved to the border."""
    return (v.clamp(0, h - 1) * w + u.clamp(0, w - 1)).long()


def _gather(table: Tensor, index: Tensor) -> Tensor:
    return table.index_select(0, index.view(-1)).mT.contiguous().view(4, *index.shape)


def _fit(depth: Tensor, intensity: Tensor, inside: Tensor, met: Tensor, shape: tuple[int, int]) -> Fit:
    compared = met.sum(-1)
    means = ((x * met).sum(-1) / compared.clamp(min=1) for x in (depth.clamp(max=9), intensity.clamp(max=3)))
    return Fit(*(x.view(shape) for x in (((depth < 9) * met).sum(-1), inside.sum(-1), compared, *means)))
