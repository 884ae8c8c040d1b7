"""Small motions of a camera as six numbers: what a Gauss-Newton step and a velocity are made of."""

import torch
from torch import Tensor

from streammem.geometry import inverse_rigid

SERIES = 8  # terms of the exponential; 5e-9 at half a radian


def exponential(xi: Tensor) -> Tensor:
    """exp of twists [..., 6], by its series: `geometry.se3_exp` at a tenth of the time, for steps below a radian."""
    X = hat(xi)
    eye = torch.eye(4, dtype=xi.dtype, device=xi.device)
    T = eye + X / SERIES
    for k in range(SERIES - 1, 0, -1):
        T = eye + X @ T / k
    return T


def hat(xi: Tensor) -> Tensor:
    """Twists [..., 6] as 4 x 4 matrices."""
    x, y, z, a, b, c = xi.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -c, b, x, c, o, -a, y, -b, a, o, z, o, o, o, o], -1).unflatten(-1, (4, 4))


def offset(start: Tensor, T: Tensor) -> Tensor:
    """The motion from `start` to T in the axes of `start`, to first order in the rotation. Shapes: [..., 6]."""
    D = inverse_rigid(start) @ T
    R = D[..., :3, :3]
    turn = torch.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], -1)
    return torch.cat([D[..., :3, 3], turn / 2], -1)
