"""Ray casting: what any camera would see of the map. Coarse rays find surfaces, each pixel then finds its own."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import inverse_rigid, transform
from streammem.mapping.read import Field, colour, gradient, nearest, read

INF = float("inf")
TILE_PX, SPREAD = 32, 8  # of the picture that blocks are put into, and how many of them one may cover to each side
REACH = 1.1  # a sphere looks larger than its radius by its depth, off the middle of the picture
STRIP_PX = 2**16  # pixels that are worked on at once, on a CPU: caches hold them
STEPS = 4  # of a ray between two looks for those that are done


@dataclass(frozen=True)
class Cast:
    """How rays are cast.

    Raises: ConfigError for values that cast nothing.
    """

    near_m: float = 0.2
    coarse: int = 4  # pixels between coarse rays
    polish: int = 8  # evaluations to pin a crossing down
    steepest: float = 3.0  # slope of the distance, 1 where all agree; beyond it an outline is near, and no surface is
    facing: float = 0.55  # seen whose slope turns away from the ray, by this cosine: it may be what frames dispute

    def __post_init__(self):
        if not self.near_m > 0 or self.coarse < 1 or self.polish < 2 or not 0 <= self.facing <= 1:
            raise ConfigError(f"{self}; wanted near_m > 0, coarse >= 1, polish >= 2 and facing in [0, 1]")


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

    def of(self, some: Tensor) -> "Fan":
        return Fan(self.origin, self.direction[some], self.norm[some])


def fan(intrinsics: Tensor, world_from_camera: Tensor, row: Tensor, column: Tensor) -> Fan:
    """Rays through a grid of pixels: rows [r] and columns [c], row first."""
    v, u = torch.meshgrid(row, column, indexing="ij")
    x = (u.reshape(-1) - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (v.reshape(-1) - intrinsics[1, 2]) / intrinsics[1, 1]
    local = torch.stack([x, y, torch.ones_like(x)], -1)
    return Fan(world_from_camera[:3, 3], local @ world_from_camera[:3, :3].mT, local.norm(dim=-1))


def march(field: Field, rays: Fan, first: Tensor, last: Tensor, how: Cast) -> tuple[Tensor, Tensor]:
    """First change from free to occupied along each ray, by nearest vertices: z before and after it, inf for none.

    A step is 0.7 of the distance where it is known, 2.5 voxels elsewhere: less than the band, so that no surface is
    stepped over. A ray begins at `first`, and is done where it has changed or is past `last`; those that are not are
    looked for every few steps, which waits for the device.

    Shapes: rays R; first, last [R], z.
    """
    voxel = field.lattice.voxel_size_m
    before = after = torch.full_like(first, INF)
    left = (first < last).nonzero()[:, 0]
    walk = Walk(first[left].clamp(min=how.near_m), *(torch.full_like(first[left], INF) for _ in range(3)))
    ray, end = rays.of(left), last[left]
    while len(left):
        for _ in range(STEPS):
            distance, precision, _ = nearest(field, ray.at(walk.z))
            walk = stepped(walk, distance, precision > field.known_precision, ray.norm, voxel)
        before, after = before.index_copy(0, left, walk.before), after.index_copy(0, left, walk.after)
        on = ((walk.after == INF) & (walk.z <= end)).nonzero()[:, 0]
        left, ray, end, walk = left[on], ray.of(on), end[on], Walk(*(part[on] for part in walk))
    return before, after


class Walk(NamedTuple):
    """Where rays are."""

    z: Tensor  # [R]
    free: Tensor  # [R] the last z, if it was known to be free, else inf
    before: Tensor  # [R] z before the first change to occupied, inf for none
    after: Tensor  # [R] and after it


def stepped(walk: Walk, distance: Tensor, known: Tensor, norm: Tensor, voxel: float) -> Walk:
    """One step along each ray that has not met a surface."""
    z, free, before, after = walk
    hit = known & (distance <= 0) & (free < INF) & (after == INF)
    before, after = torch.where(hit, free, before), torch.where(hit, z, after)
    step = torch.where(known, (0.7 * distance).clamp(min=voxel), 2.5 * voxel)
    return Walk(
        torch.where(after < INF, z, z + step / norm), torch.where(known & (distance > 0), z, INF), before, after
    )


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
    coarse = _coarse(field, intrinsics, world_from_camera, height, width, how)
    device = intrinsics.device
    row, column = (torch.arange(side, device=device, dtype=intrinsics.dtype) for side in (height, width))
    strip = max(1, STRIP_PX // width) if device.type == "cpu" else height
    views = []
    for top in range(0, height, strip):
        some = slice(top * width, (top + strip) * width)
        rays = fan(intrinsics, world_from_camera, row[top : top + strip], column)
        surface = _fine(field, rays, *(part[some] for part in coarse), how)
        views.append(_view(field, rays, surface, how))
    depth, normal, shade, variance = (torch.cat(parts) for parts in zip(*views))
    shape = (height, width)
    return View(depth.view(shape), normal.view(*shape, 3), shade.view(*shape, 3), variance.view(shape))


class _Surface(NamedTuple):
    depth: Tensor  # [R] 0 where there is none
    slope: Tensor  # [R, 3]
    precision: Tensor  # [R]


def _fine(field: Field, rays: Fan, guess: Tensor, low: Tensor, high: Tensor, smooth: Tensor, how: Cast) -> _Surface:
    """The surface along each ray: one step from the guess where that will do, a search among its neighbours' else."""
    voxel = field.lattice.voxel_size_m
    there = read(field, rays.at(guess))
    slope = gradient(field, there)
    move = -there.distance / (slope * rays.direction).sum(-1).clamp(max=-0.15)
    alone = smooth | (low > guess - 4 * voxel)  # nothing nearer beside it, that might hide it
    fine = alone & there.known & (move.abs() * rays.norm < voxel)
    surface = _Surface(torch.where(fine, guess + move, 0), slope, there.precision)

    pick = (~fine & (low < INF)).nonzero()[:, 0]
    some = rays.of(pick)
    found = pin(field, some, low[pick] - 1.5 * voxel, high[pick], how.polish)
    found = torch.where(found < INF, found, 0)
    there = read(field, some.at(found))
    new = (found, gradient(field, there), there.precision)
    return _Surface(*(whole.index_copy(0, pick, part) for whole, part in zip(surface, new)))


def _coarse(field: Field, intrinsics: Tensor, world_from_camera: Tensor, height: int, width: int, how: Cast):
    """A guess for every pixel, the range of its neighbours' surfaces, and whether they are one surface; all [h w]."""
    step, voxel = how.coarse, field.lattice.voxel_size_m
    r, c = -(-height // step), -(-width // step)
    middle = (step - 1) / 2
    row, column = (torch.arange(n, device=intrinsics.device) * step + middle for n in (r, c))
    rays = fan(intrinsics, world_from_camera, row.to(intrinsics.dtype), column.to(intrinsics.dtype))
    first, last = _range(field, intrinsics, world_from_camera, row, column, how)
    before, after = march(field, rays, first, last, how)
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


def _range(field: Field, intrinsics: Tensor, world_from_camera: Tensor, row: Tensor, column: Tensor, how: Cast):
    """Where rays through rows [r] and columns [c] enter the first block and leave the last, z [r c] each.

    Each block covers a square of tiles, as large as the sphere around it looks at its nearest, but no larger than
    `SPREAD` tiles to each side; blocks nearer than that cover the whole picture.
    """
    block, device = field.table.block, row.device
    radius_m = field.lattice.block_size_m * 3**0.5 / 2
    centre = transform(inverse_rigid(world_from_camera), (block + 0.5) * field.lattice.block_size_m)
    z = centre[:, 2]
    nearest_z = (z - radius_m).clamp(min=how.near_m)
    tiles = [int(n[-1] // TILE_PX) + 1 for n in (row, column)]
    focal = intrinsics.diagonal()[:2].flip(0)
    middle = intrinsics[:2, 2].flip(0) + focal * centre[:, :2].flip(1) / nearest_z.maximum(z)[:, None]
    reach = focal.max() * radius_m / nearest_z * REACH
    lowest, highest = ((middle + side * reach[:, None]).div(TILE_PX).floor() for side in (-1, 1))  # [n, 2] tiles
    live = field.table.code[:-1] >= 0
    ahead = live & (z + radius_m > how.near_m)
    wide = ahead & (reach > SPREAD * TILE_PX / 2)
    first = torch.full((tiles[0] * tiles[1] + 1,), INF, device=device)
    last = torch.zeros_like(first)
    offset = torch.arange(SPREAD + 1, device=device)
    tile_row, tile_column = (lowest[:, i, None] + offset for i in (0, 1))  # [n, SPREAD + 1]
    in_row = (tile_row <= highest[:, :1]) & (tile_row >= 0) & (tile_row < tiles[0])
    in_column = (tile_column <= highest[:, 1:]) & (tile_column >= 0) & (tile_column < tiles[1])
    covered = in_row[:, :, None] & in_column[:, None] & (ahead & ~wide)[:, None, None]
    tile = torch.where(covered, tile_row[:, :, None] * tiles[1] + tile_column[:, None], len(first) - 1).long().view(-1)
    each = (slice(None), None, None)
    first = first.scatter_reduce(0, tile, nearest_z[each].expand(covered.shape).reshape(-1), "amin")[:-1]
    last = last.scatter_reduce(0, tile, (z + radius_m)[each].expand(covered.shape).reshape(-1), "amax")[:-1]
    first = first.minimum(torch.where(wide, nearest_z, INF).amin())
    last = last.maximum(torch.where(wide, z + radius_m, 0).amax()).clamp(max=field.far_m)
    r, c = (n.div(TILE_PX).long() for n in (row, column))
    picked = (r[:, None] * tiles[1] + c).view(-1)
    return first[picked], last[picked]


def _bend(a: Tensor) -> Tensor:
    """Largest second difference of a picture [1, 1, r, c], across, down and along the diagonal."""
    p = F.pad(a, (1, 1, 1, 1), mode="replicate")
    across = p[..., 1:-1, 2:] + p[..., 1:-1, :-2] - 2 * a
    down = p[..., 2:, 1:-1] + p[..., :-2, 1:-1] - 2 * a
    twist = (p[..., 2:, 2:] + p[..., :-2, :-2] - p[..., 2:, :-2] - p[..., :-2, 2:]) / 4
    return torch.stack([across.abs(), down.abs(), twist.abs()]).amax(0)


def _view(field: Field, rays: Fan, surface: _Surface, how: Cast) -> View:
    """Of R rays, in a row."""
    slope, along = surface.slope.norm(dim=-1), -(surface.slope * rays.direction).sum(-1) / rays.norm
    seen = (surface.depth > 0) & ((slope < how.steepest) | (along > how.facing * slope))
    normal = torch.where(seen[:, None], F.normalize(surface.slope, dim=-1), 0)
    shade = torch.where(seen[:, None], colour(field, rays.at(surface.depth)), 0)
    variance = torch.where(seen, 1 / surface.precision.clamp(min=field.known_precision), INF)
    return View(torch.where(seen, surface.depth, 0), normal, shade, variance)
