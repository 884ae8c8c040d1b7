"""Maps of rays: what a view shows is asked by where it looks from, without a picture."""

import torch
from torch import Tensor

from streammem.geometry import transform, unproject


def ray_map(intrinsics: Tensor, first_from_camera: Tensor, height: int, width: int) -> Tensor:
    """Origin and direction of each pixel's ray, as the network was trained with them.

        origin = t;  direction = (R K^-1 (u, v, 1) + t) / |R K^-1 (u, v, 1) + t|

    Shapes: intrinsics [B, 3, 3], first_from_camera [B, 4, 4], in the axes of the first camera; result [B, h, w, 6].
    Source: CUT3R's code; so its "direction" is that of the point at depth 1 seen from the first camera, not the ray's.
    """
    ones = torch.ones(len(intrinsics), height, width, dtype=intrinsics.dtype, device=intrinsics.device)
    ahead = transform(first_from_camera, unproject(ones, intrinsics))  # [B, h, w, 3]
    direction = ahead / ahead.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    origin = first_from_camera[:, None, None, :3, 3].to(ahead).expand_as(ahead)
    return torch.cat([origin, direction], -1)
