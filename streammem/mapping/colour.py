"""Where the colour camera sits beside the depth camera, learnt while tracking: recursive least squares on two numbers.

Many depth cameras deliver colour that is not registered: another focal length, a few centimetres to the side. The
photometric term would then pull the pose the wrong way, by as much as the focal lengths differ.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import inverse_rigid
from streammem.mapping.odometry import Views, Weighing, compare, intensity_slopes, jacobian
from streammem.mapping.pyramid import Cloud

EVERY = 3  # of the points is enough
CORRELATED = 100.0 / EVERY  # neighbouring pixels err together: this many count as one
RETENTION = 0.95  # of the evidence a frame: linearised at an older estimate, it is worth less
REGISTERED, SIGMA = (1.0, 0.0), (0.03, 0.02)  # focal ratio and shift in metres, before any evidence
LOW, HIGH = (0.8, -0.1), (1.25, 0.1)


class ColourCamera(NamedTuple):
    """The estimate and its evidence, the prior not counted."""

    value: Tensor  # [2] ratio of focal lengths; shift along x, metres
    information: Tensor  # [2, 2] float64
    vector: Tensor  # [2] float64, information times what the evidence alone says


def registered(dtype=torch.float32, device=None) -> ColourCamera:
    """What is believed before the first frame: colour is registered."""
    value = torch.tensor(REGISTERED, dtype=dtype, device=device)
    zero = torch.zeros(2, dtype=torch.float64, device=device)
    return ColourCamera(value, torch.diag(zero), zero)


def learn(camera: ColourCamera, cloud: Cloud, views: Views, world_from_camera: Tensor, how: Weighing, trust: Tensor):
    """One frame's evidence, the pose's uncertainty taken out by a Schur complement.

        dr/ds = grad I . (u_ref - u) / s,   dr/db = dI/du s fx (1 / z_ref - 1 / z)
        L = H_cc - H_cx H_xx^-1 H_xc,  g = b_c - H_cx H_xx^-1 b_x
        P <- retention P + L,  e <- retention e + L c - g,  c <- (P + P_0)^-1 (e + P_0 c_0)

    Shapes: world_from_camera [1, 4, 4]; trust [] 1 or 0, whether the pose holds.
    """
    cloud = Cloud(*(x[..., ::EVERY].contiguous() for x in cloud))
    T = inverse_rigid(views.world_from_ref) @ world_from_camera[:, None]
    terms, _ = compare(cloud, views, T, how)
    poses = [jacobian(cloud.point, term.gradient) for term in terms]  # [R, 6, P]
    extra = intensity_slopes(cloud, views, T)  # [R, 2, P]
    J = torch.cat([torch.cat([poses[0], torch.zeros_like(extra)], 1), torch.cat([poses[1], extra], 1)], 2)  # [R, 8, 2P]
    weight = torch.cat([term.weight for term in terms], 1)[:, None]
    residual = torch.cat([term.residual for term in terms], 1)[..., None]
    H = ((J * weight) @ J.mT).double().sum(0) / CORRELATED
    b = ((J * weight) @ residual).double().sum(0)[:, 0] / CORRELATED
    eye = torch.eye(6, dtype=H.dtype, device=H.device)
    drop, info = torch.linalg.solve_ex(H[:6, :6] + 1e-6 * eye, torch.cat([H[:6, 6:], b[:6, None]], 1))  # [6, 3]
    L, g = H[6:, 6:] - H[6:, :6] @ drop[:, :2], b[6:] - H[6:, :6] @ drop[:, 2]
    good = (info == 0) & L.isfinite().all() & g.isfinite().all() & (trust > 0)
    low, high, start, sigma = (_row(x, b) for x in (LOW, HIGH, REGISTERED, SIGMA))
    P = torch.where(good, RETENTION * camera.information + L, camera.information)
    eta = torch.where(good, RETENTION * camera.vector + L @ camera.value.double() - g, camera.vector)
    value, _ = torch.linalg.solve_ex(P + torch.diag(sigma**-2), eta + sigma**-2 * start)
    return ColourCamera(value.clamp(low, high).to(camera.value), P, eta)


def _row(values: tuple[float, ...], like: Tensor) -> Tensor:
    """Constants made where `like` is: nothing is copied from the host inside a step."""
    return torch.stack([like.new_full((), value) for value in values])
