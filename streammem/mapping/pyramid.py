"""Pictures at several resolutions, and the tables that an alignment reads.

Pictures are stored channel by channel, points along the last dimension, because that is how they are read fastest.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.geometry import pixel_grid, scale_intrinsics

EDGE = 0.03  # relative step in depth between neighbours that is an edge, not a slope


class Layer(NamedTuple):
    """N pictures at one resolution."""

    depth: Tensor  # [N, h, w] metres, 0 where unknown
    intensity: Tensor  # [N, h, w], brightness less its surroundings
    intrinsics: Tensor  # [N, 3, 3]


class Cloud(NamedTuple):
    """P points of the frame whose pose is sought."""

    point: Tensor  # [3, P] in the camera, metres
    normal: Tensor  # [3, P] in the camera; 0 where unknown
    intensity: Tensor  # [P]
    slope: Tensor  # [2, P] of the intensity, per pixel to the right and down
    variance: Tensor  # [P] of the depth, m^2
    usable: Tensor  # [P] 1 or 0


class Reference(NamedTuple):
    """N frames with known poses, as tables of pixels."""

    plane: Tensor  # [N h w, 4] normal and distance of the tangent plane, in the camera; 0 where unknown
    patch: Tensor  # [N h w, 4] intensity at the pixel, right of it, below it, and both
    intrinsics: Tensor  # [N, 3, 3]
    colour: Tensor  # [2] the colour camera: focal length and shift to the depth camera's, see `colour_pixel`
    size: tuple[int, int]  # h, w


def halve(layer: Layer) -> Layer:
    """Half the rows and columns: mean intensity, mean depth of the nearest surface among four pixels.

    A pixel needs two depths within EDGE of the nearest one. Shapes: Layer of [N, h, w] with even h, w.
    """
    quarter = [layer.depth[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
    known = [torch.where(z > 0, z, float("inf")) for z in quarter]
    near = torch.minimum(torch.minimum(known[0], known[1]), torch.minimum(known[2], known[3])) * (1 + EDGE)
    count = sum((z <= near).to(near) * (near < float("inf")) for z in known)
    total = sum(torch.where(z <= near, q, 0) for z, q in zip(known, quarter))
    depth = torch.where(count >= 2, total / count.clamp(min=1), 0)
    intensity = F.avg_pool2d(layer.intensity[:, None], 2)[:, 0]
    return Layer(depth, intensity, scale_intrinsics(layer.intrinsics, 0.5, 0.5))


def contrast(intensity: Tensor, reach: int = 5) -> Tensor:
    """Brightness less the mean of its surroundings, so that exposure does not matter. Shapes: [N, h, w]."""
    padded = F.pad(intensity[:, None], (reach // 2,) * 4, mode="replicate")
    return intensity - F.avg_pool2d(padded, reach, 1)[:, 0]


def contrasted(layer: Layer) -> Layer:
    """The layer with its brightness relative to the surroundings."""
    return layer._replace(intensity=contrast(layer.intensity))


def surface(layer: Layer) -> tuple[Tensor, Tensor]:
    """Points and unit normals towards the camera, [N, 3, h, w]; a normal is 0 at edges and unknown depth.

    n = (p_down - p_up) x (p_right - p_left), normalised
    """
    z = layer.depth
    K = layer.intrinsics.to(z)[:, :, :, None, None]
    u, v = pixel_grid(*z.shape[-2:], z)
    p = torch.stack([(u - K[:, 0, 2]) / K[:, 0, 0] * z, (v - K[:, 1, 2]) / K[:, 1, 1] * z, z], 1)
    left, right, up, down = p[..., 1:-1, :-2], p[..., 1:-1, 2:], p[..., :-2, 1:-1], p[..., 2:, 1:-1]
    (ax, ay, az), (bx, by, bz) = (down - up).unbind(1), (right - left).unbind(1)
    x, y, w = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    n = torch.stack([x, y, w], 1) * (x * x + y * y + w * w).clamp(min=1e-24).rsqrt()[:, None]
    here = z[:, 1:-1, 1:-1]
    flat = here > 0
    for a, b in ((left[:, 2], right[:, 2]), (up[:, 2], down[:, 2])):
        flat = flat & (a > 0) & (b > 0) & ((a - b).abs() < 2 * EDGE * here) & ((a + b - 2 * here).abs() < EDGE * here)
    return p, F.pad(n * flat[:, None], (1, 1, 1, 1))


def reference(layer: Layer, colour: Tensor) -> Reference:
    """Tables of N reference frames."""
    p, n = surface(layer)
    plane = torch.cat([n, (n * p).sum(1, keepdim=True)], 1)  # [N, 4, h, w]
    i = F.pad(layer.intensity[:, None], (0, 1, 0, 1), mode="replicate")
    patch = torch.cat([i[..., :-1, :-1], i[..., :-1, 1:], i[..., 1:, :-1], i[..., 1:, 1:]], 1)
    plane, patch = (a.movedim(1, -1).reshape(-1, 4) for a in (plane, patch))
    return Reference(plane, patch, layer.intrinsics, colour, tuple(layer.depth.shape[-2:]))


def cloud(layer: Layer, colour: Tensor, stride: int, sigma: Callable[[Tensor], Tensor]) -> Cloud:
    """Every `stride`-th pixel both ways of the only picture of a layer; sigma: depth -> noise, metres."""

    def grid(a: Tensor) -> Tensor:
        return a[..., stride // 2 :: stride, stride // 2 :: stride].flatten(-2).contiguous()

    p, n = surface(layer)
    intensity = registered(layer, p, colour)[None]
    right = F.pad(intensity, (1, 1), mode="replicate")
    down = F.pad(intensity[None], (0, 0, 1, 1), mode="replicate")[0]
    slope = torch.cat([right[..., 2:] - right[..., :-2], down[:, 2:] - down[:, :-2]]) / 2
    p, n = grid(p[0]), grid(n[0])
    usable = (n * n).sum(0) > 0.5
    return Cloud(p, n, grid(intensity[0]), grid(slope), sigma(p[2]).square(), usable.to(p))


def registered(layer: Layer, points: Tensor, colour: Tensor) -> Tensor:
    """The intensity [h, w] that belongs to each depth pixel, when colour is seen by a camera beside the depth's.

        u = s fx (x + b) / z + cx,  v = s fy y / z + cy

    Shapes: one picture; points [1, 3, h, w]; colour [2] = (s, b metres), (1, 0) when colour is registered already.
    """
    h, w = layer.depth.shape[-2:]
    x, y, z = points[0]
    K, inverse_z = layer.intrinsics[0], 1 / torch.where(z > 0, z, 1)
    u = colour[0] * (x + colour[1]) * inverse_z * K[0, 0] + K[0, 2]
    v = colour[0] * y * inverse_z * K[1, 1] + K[1, 2]
    at = torch.stack([2 * u / (w - 1) - 1, 2 * v / (h - 1) - 1], -1)[None]
    return F.grid_sample(layer.intensity[None], at, padding_mode="border", align_corners=True)[0, 0]
