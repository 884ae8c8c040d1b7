"""Ray casting: what any camera would see of the map. Coarse rays find surfaces, each pixel then finds its own."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.errors import ConfigError
from streammem.mapping.read import Field, colour, gradient, nearest, read

INF = float("inf")
MOST_ALONE = 76_800  # pixels that may each look for a surface of their own; a larger picture may have a quarter of it


@dataclass(frozen=True)
class Cast:
    """How rays are cast.

    Raises: ConfigError for values that cast nothing.
    """

    near_m: float = 0.2
    coarse: int = 4  # pixels between coarse rays
    polish: int = 8  # evaluations to pin a crossing down
    steepest: float = 2.6  # slope of the distance, 1 where all agree; beyond it an outline is disputed: no surface

    def __post_init__(self):
        if not self.near_m > 0 or self.coarse < 1 or self.polish < 2:
            raise ConfigError(f"{self}; wanted near_m > 0, coarse >= 1 and polish >= 2")


class View(NamedTuple):
    """What a camera sees of the map."""

    depth: Tensor  # [h, w] metres along the optical axis; 0 where the map has no surface
    normal: Tensor  # [h, w, 3] in the world, towards the free side; 0 where there is no surface
    colour: Tensor  # [h, w, 3] in [0, 1]
    variance: Tensor  # [h, w] m^2, of the signed distance there; inf where there is no surface


class Fan(NamedTuple):
    """R rays from one point."""

    origin: Tensor  # [3]
    direction: Tensor  # [R, 3] in the world; one metre along the optical axis each
    norm: Tensor  # [R]

    def at(self, z: Tensor) -> Tensor:
        return self.origin + self.direction * z[:, None]


def fan(intrinsics: Tensor, world_from_camera: Tensor, row: Tensor, column: Tensor) -> Fan:
    """Rays through a grid of pixels: rows [r] and columns [c], row first."""
    v, u = torch.meshgrid(row, column, indexing="ij")
    x = (u.reshape(-1) - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (v.reshape(-1) - intrinsics[1, 2]) / intrinsics[1, 1]
    local = torch.stack([x, y, torch.ones_like(x)], -1)
    return Fan(world_from_camera[:3, 3], local @ world_from_camera[:3, :3].mT, local.norm(dim=-1))


def march(field: Field, rays: Fan, how: Cast) -> tuple[Tensor, Tensor]:
    """First change from free to occupied along each ray, by nearest vertices: z before and after it, inf for none.

    A step is 0.7 of the distance where it is known, 2.5 voxels elsewhere: less than the band, so that no surface is
    stepped over.
    """
    voxel = field.lattice.voxel_size_m
    z = torch.full_like(rays.norm, how.near_m)
    free = torch.full_like(z, INF)  # the last z, if it was known to be free
    before, after = free, free
    longest = 2.5 * voxel
    for _ in range(int((field.far_m - how.near_m) * 1.25 / longest)):
        distance, precision, _ = nearest(field, rays.at(z))
        known = precision > field.known_precision
        hit = known & (distance <= 0) & (free < INF) & (after == INF)
        before, after = torch.where(hit, free, before), torch.where(hit, z, after)
        free = torch.where(known & (distance > 0), z, INF)
        step = torch.where(known, (0.7 * distance).clamp(min=voxel), longest)
        z = torch.where((after < INF) | (z > field.far_m), z, z + step / rays.norm)
    return before, after


def pin(field: Field, rays: Fan, low: Tensor, high: Tensor, steps: int) -> Tensor:
    """Crossing from free to occupied at z >= low: sphere tracing until it is bracketed, regula falsi after; inf: none.

    A ray that goes past the surface at `low` jumps to the one at `high`.
    """
    voxel = field.lattice.voxel_size_m
    z = low
    free, free_value = torch.full_like(z, -1.0), torch.zeros_like(z)
    full, full_value = torch.full_like(z, INF), torch.zeros_like(z)
    for _ in range(steps):
        there = read(field, rays.at(z))
        bracketed = full < INF
        front = there.known & (there.distance > 0)
        behind = there.known & (there.distance <= 0)
        moved = front & (~bracketed | (z < full))
        free, free_value = torch.where(moved, z, free), torch.where(moved, there.distance, free_value)
        crossed = behind & (free >= 0)
        full, full_value = torch.where(crossed, z, full), torch.where(crossed, there.distance, full_value)
        free = torch.where(~there.known & ~bracketed, -1.0, free)
        bracketed = full < INF
        share = (free_value / (free_value - full_value).clamp(min=1e-9)).clamp(0.02, 0.98)
        step = torch.where(there.known, (0.9 * there.distance).clamp(min=0.3 * voxel), voxel)
        step = torch.where(behind, -2 * voxel, step) / rays.norm
        past = (z + step > low + 3 * voxel) & (z < high - 2 * voxel)
        onwards = torch.where(past, high - voxel, z + step)
        z = torch.where(bracketed, free + (full - free) * share, onwards)
    return torch.where((full - free) * rays.norm < 2 * voxel, z, INF)


def raycast(field: Field, intrinsics: Tensor, world_from_camera: Tensor, height: int, width: int, how: Cast) -> View:
    """The map's surface as a camera would see it.

    Shapes: intrinsics [3, 3], world_from_camera [4, 4], of the type of the map.
    """
    guess, low, high, smooth = _coarse(field, intrinsics, world_from_camera, height, width, how)
    device, voxel = intrinsics.device, field.lattice.voxel_size_m
    row, column = (torch.arange(side, device=device, dtype=intrinsics.dtype) for side in (height, width))
    rays = fan(intrinsics, world_from_camera, row, column)
    there = read(field, rays.at(guess))
    slope = gradient(field, there)
    move = -there.distance / (slope * rays.direction).sum(-1).clamp(max=-0.15)
    alone = smooth | (low > guess - 4 * voxel)  # nothing nearer beside it, that might hide it
    fine = alone & there.known & (move.abs() * rays.norm < voxel)
    surface = _Surface(torch.where(fine, guess + move, 0), slope, there.precision)

    rest = ~fine & (low < INF)
    pick = torch.nonzero_static(rest, size=max(len(rest) // 4, min(len(rest), MOST_ALONE)), fill_value=len(rest))[:, 0]
    inside = pick.clamp(max=len(rest) - 1)
    some = Fan(rays.origin, rays.direction[inside], rays.norm[inside])
    found = pin(field, some, low[inside] - 1.5 * voxel, high[inside], how.polish)
    found = torch.where(found < INF, found, 0)
    there = read(field, some.at(found))
    surface = _Surface(*map(partial(_put, pick), surface, (found, gradient(field, there), there.precision)))
    return _view(field, rays, surface, how, height, width)


class _Surface(NamedTuple):
    depth: Tensor  # [R] 0 where there is none
    slope: Tensor  # [R, 3]
    precision: Tensor  # [R]


def _put(place: Tensor, into: Tensor, rows: Tensor) -> Tensor:
    """`into` with some rows replaced; a place past its end is padding."""
    return torch.cat([into, into[:1]]).index_copy(0, place, rows)[:-1]


def _coarse(field: Field, intrinsics: Tensor, world_from_camera: Tensor, height: int, width: int, how: Cast):
    """A guess for every pixel, the range of its neighbours' surfaces, and whether they are one surface; all [h w]."""
    step, voxel = how.coarse, field.lattice.voxel_size_m
    r, c = -(-height // step), -(-width // step)
    middle = (step - 1) / 2
    row, column = (torch.arange(n, device=intrinsics.device) * step + middle for n in (r, c))
    rays = fan(intrinsics, world_from_camera, row.to(intrinsics.dtype), column.to(intrinsics.dtype))
    before, after = march(field, rays, how)
    pinned = pin(field, rays, before, before, how.polish)
    z = torch.where(pinned < INF, pinned, after).view(1, 1, r, c)
    around = F.pad(z, (1, 1, 1, 1), mode="replicate")
    low = -F.max_pool2d(-around, 3, 1)
    high = F.max_pool2d(torch.where(around < INF, around, -INF), 3, 1)
    inverse = 1 / z  # affine over the picture wherever the surface is a plane; 0 for none
    smooth = F.max_pool2d(_bend(inverse) * z.square(), 3, 1, 1) < voxel

    def spread(a: Tensor) -> Tensor:
        return a.repeat_interleave(step, -2).repeat_interleave(step, -1)[0, 0, :height, :width].reshape(-1)

    guess = 1 / F.interpolate(inverse, scale_factor=step, mode="bilinear", align_corners=False).clamp(min=1e-3)
    return guess[0, 0, :height, :width].reshape(-1), spread(low), spread(high), spread(smooth)


def _bend(a: Tensor) -> Tensor:
    """Largest second difference of a picture [1, 1, r, c], across, down and along the diagonal."""
    p = F.pad(a, (1, 1, 1, 1), mode="replicate")
    across = p[..., 1:-1, 2:] + p[..., 1:-1, :-2] - 2 * a
    down = p[..., 2:, 1:-1] + p[..., :-2, 1:-1] - 2 * a
    twist = (p[..., 2:, 2:] + p[..., :-2, :-2] - p[..., 2:, :-2] - p[..., :-2, 2:]) / 4
    return torch.stack([across.abs(), down.abs(), twist.abs()]).amax(0)


def _view(field: Field, rays: Fan, surface: _Surface, how: Cast, height: int, width: int) -> View:
    seen, shape = (surface.depth > 0) & (surface.slope.norm(dim=-1) < how.steepest), (height, width)
    normal = torch.where(seen[:, None], F.normalize(surface.slope, dim=-1), 0)
    shade = torch.where(seen[:, None], colour(field, rays.at(surface.depth)), 0)
    variance = torch.where(seen, 1 / surface.precision.clamp(min=field.known_precision), INF)
    return View(
        torch.where(seen, surface.depth, 0).view(shape),
        normal.view(*shape, 3),
        shade.view(*shape, 3),
        variance.view(shape),
    )
