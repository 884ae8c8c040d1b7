"""One view of one camera, as the map's functions take it."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import inverse_rigid, transform


class Shot(NamedTuple):
    """A depth frame with a pose, without a batch."""

    image: Tensor  # [3, h, w], in [-1, 1]
    depth: Tensor  # [h, w] metres, 0 where unknown
    intrinsics: Tensor  # [3, 3] float32
    world_from_camera: Tensor  # [4, 4] float32
    time_s: Tensor  # [] float64
    trusted: Tensor  # [] bool: valid, and its pose is one to write with


class Pixels(NamedTuple):
    """Where P points of the world fall in a picture."""

    row: Tensor  # [P] int64, clamped into the picture
    column: Tensor  # [P] int64
    z: Tensor  # [P] metres in front of the camera
    stretch: Tensor  # [P] metres along the ray for each metre of z
    inside: Tensor  # [P] bool


def pixels(
    points: Tensor, intrinsics: Tensor, world_from_camera: Tensor, height: int, width: int, margin: int = 0
) -> Pixels:
    """The nearest pixel of points [P, 3], inside if it is in the picture or `margin` pixels around it."""
    local = transform(inverse_rigid(world_from_camera), points)
    z = local[:, 2]
    safe = z.clamp(min=1e-3)
    x, y = local[:, 0] / safe, local[:, 1] / safe
    column = (x * intrinsics[0, 0] + intrinsics[0, 2]).round()
    row = (y * intrinsics[1, 1] + intrinsics[1, 2]).round()
    inside = (z > 0.05) & (column >= -margin) & (column < width + margin) & (row >= -margin) & (row < height + margin)
    stretch = (1 + x.square() + y.square()).sqrt()
    return Pixels(row.clamp(0, height - 1).long(), column.clamp(0, width - 1).long(), z, stretch, inside)


def known_depth(depth: Tensor, near_m: float, far_m: float) -> Tensor:
    """Depth with 0 for everything that is not a finite number in [near, far]."""
    return torch.where((depth >= near_m) & (depth <= far_m), depth, 0)
