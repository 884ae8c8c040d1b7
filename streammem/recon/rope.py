"""Rotary positions in two dimensions; any integer position, -1 too."""

from typing import NamedTuple

import torch
from torch import Tensor

BASE = 100.0


class Rotation(NamedTuple):
    """Angles of N tokens for heads of one width."""

    cos: Tensor  # [N, K]: each quarter's angles twice, of rows and then of columns
    sin: Tensor  # [N, K]


def rotation(position: Tensor, head_width: int, dtype: torch.dtype) -> Rotation:
    """Cosines and sines of where the tokens are: angle_i = p / 100^(i / q), i in 0..q-1, q = K / 4.

    Shapes: position [N, 2] integers (y, x), of any sign.
    Source: rotary embedding, Su et al. 2021, arXiv:2104.09864, once for each axis of the image.
    """
    quarter = head_width // 4
    exponent = torch.arange(quarter, dtype=torch.float64, device=position.device) / quarter
    angle = (position.double()[..., None, None] * BASE**-exponent).expand(-1, -1, 2, -1).flatten(1)  # [N, K]
    return Rotation(angle.cos().to(dtype), angle.sin().to(dtype))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Turns each pair of quarters by the token's angle.

        x = [uY, vY, uX, vX];  u' = u cos - v sin;  v' = v cos + u sin

    Shapes: x [B, H, N, K].
    """
    uy, vy, ux, vx = x.chunk(4, -1)
    return x * by.cos + torch.cat([-vy, uy, -vx, ux], -1) * by.sin


def rotate_in_half(x: Tensor, by: Rotation) -> Tensor:
    """`rotate` with x rounded to float16 before and after, as the image encoder of the official weights was run."""
    return rotate(x.half().to(x.dtype), by).half().to(x.dtype)


def grid(rows: int, columns: int, device=None) -> Tensor:
    """Positions (y, x) of patches in row-major order, [rows * columns, 2]."""
    y = torch.arange(rows, device=device)[:, None].expand(rows, columns)
    x = torch.arange(columns, device=device)[None].expand(rows, columns)
    return torch.stack([y, x], -1).flatten(0, 1)
