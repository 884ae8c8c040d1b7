"""One view of one camera, as the map's functions take it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Shot(NamedTuple):
    """A depth frame with a pose, without a batch."""

    image: Tensor  # [3, h, w], in [-1, 1]
    depth: Tensor  # [h, w] metres, 0 where unknown
    intrinsics: Tensor  # [3, 3] float32
    world_from_camera: Tensor  # [4, 4] float32
    time_s: Tensor  # [] float64
    trusted: Tensor  # [] bool: valid, and its pose is one to write with


class Pixels(NamedTuple):
    """Where points fall in a picture; all of one shape."""

    row: Tensor  # int32, clamped into the picture
    column: Tensor  # int32
    z: Tensor  # metres in front of the camera
    stretch: Tensor  # metres along the ray for each metre of z
    inside: Tensor  # bool


def pixels(x: Tensor, y: Tensor, z: Tensor, intrinsics: Tensor, height: int, width: int, margin: int = 0) -> Pixels:
    """The nearest pixel of points in the camera's frame, inside if in the picture or `margin` pixels around it."""
    safe = z.clamp(min=1e-3)
    x, y = x / safe, y / safe
    column = (x * intrinsics[0, 0] + intrinsics[0, 2]).round()
    row = (y * intrinsics[1, 1] + intrinsics[1, 2]).round()
    inside = (z > 0.05) & (column >= -margin) & (column < width + margin) & (row >= -margin) & (row < height + margin)
    stretch = (1 + x.square() + y.square()).sqrt()
    return Pixels(row.clamp(0, height - 1).int(), column.clamp(0, width - 1).int(), z, stretch, inside)


def known_depth(depth: Tensor, near_m: float, far_m: float) -> Tensor:
    """Depth with 0 for everything that is not a finite number in [near, far]."""
    return torch.where((depth >= near_m) & (depth <= far_m), depth, 0)
