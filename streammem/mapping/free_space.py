"""Free space is evidence too: a ray that went by says that nothing is closer than it saw."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.errors import ConfigError
from streammem.mapping.frames import Pixels
from streammem.mapping.keys import SIDE
from streammem.mapping.retention import Present, Retention
from streammem.mapping.tokens import Rays, Sampling

INF = float("inf")


@dataclass(frozen=True)
class FreeSpace:
    """How strongly passing rays speak.

    Raises: ConfigError for a strength below 0 or a share outside [0, 1].
    """

    strength: float = 0.05  # evidence of a frame's passing rays, in that of a frame that sees the surface; 0: none
    fast: float = 0.45  # share by which what is read at once follows them
    gone: float = 0.1  # share by which both follow where all neighbours are passed too: no outline, something left
    doubt: float = 0.35  # evidence of a frame that saw emptiness, before anything was there, in that of a surface
    most: int = 20  # frames of emptiness that count
    far_m: float = 4.0  # how far off whole blocks are seen to be empty

    def __post_init__(self):
        if not self.strength >= 0 or not 0 <= self.fast <= 1 or not 0 <= self.gone <= 1:
            raise ConfigError(f"{self}; wanted strength from 0 on, fast and gone in [0, 1]")
        if not self.doubt >= 0 or not 0 <= self.most <= 255 or not self.far_m >= 0:
            raise ConfigError(f"{self}; wanted doubt and far_m from 0 on, and most in [0, 255]")


class Sight(NamedTuple):
    """What the rays of a frame say of the space before their ends."""

    surely: Tensor  # [h, w] depth up to which they passed, -inf where unknown
    incidence: Tensor  # [h, w] the least around each pixel


def sight(rays: Rays, depth: Tensor, sampling: Sampling) -> Sight:
    """Of a frame's depth [h, w], 0 where unknown."""
    surely = torch.where(depth > 0, depth - sampling.noise.sigma(depth), -INF)
    return Sight(surely, _incidence(rays, sampling.stride_px, depth.shape))


def clear(
    how: FreeSpace, sampling: Sampling, keep: Retention, old: Present, seen: Pixels, sight: Sight, top_m: float
) -> tuple[Present, Tensor]:
    """One-sided bias: only "closer than I say" is an error.

        bound = min(top, (depth - sigma - z) * stretch * incidence)   at vertices farther than the band in front
        e = min(0, m - bound);   c = strength / frame_noise^2
        share = max(c / (precision + c), gone where all 26 neighbours in the block are passed too)
        m -= e share   slow;    value -= e max(share, fast)   at once

    Each vertex is a token of its own with a one-hot key: the ray through it is the nearest pixel's. Things that left
    disappear, and the field beside an outline is that of what is seen past it.

    Also returns the vertices that are passed with all their neighbours, [A, 512] bool.

    Shapes: old, seen [A, 512].
    """
    at = (seen.row * sight.surely.shape[1] + seen.column).view(-1)
    surely, incidence = (picture.view(-1).index_select(0, at).view(seen.z.shape) for picture in sight)
    ahead = (surely - seen.z) * seen.stretch
    bound = (ahead * incidence).clamp(max=top_m)
    passed = seen.inside & (ahead > sampling.band_m)
    hit = passed & (old.precision > 0) & (old.value < bound)
    evidence = how.strength / keep.frame_noise_m**2
    rise = torch.where(hit, evidence / (old.precision + evidence), 0)
    deep = inner(passed)
    if how.strength > 0:
        rise = torch.where(hit & deep, rise.clamp(min=how.gone), rise)
    fast = torch.where(hit, rise.clamp(min=how.fast if how.strength > 0 else 0), 0)

    def lifted(value: Tensor, share: Tensor) -> Tensor:
        return value + share * (bound - value).clamp(min=0)

    value = lifted(old.value, fast)
    slow = torch.where(hit, lifted(old.slow, rise), old.slow)
    return Present(slow, old.precision, value, old.left, old.touched | hit), deep


def inner(passed: Tensor) -> Tensor:
    """Vertices [A, 512] that are passed with all their neighbours in the block, the diagonal ones too."""
    cube = passed.view(-1, SIDE, SIDE, SIDE)
    for axis in (1, 2, 3):
        beside = cube.narrow(axis, 1, SIDE - 1) & cube.narrow(axis, 0, SIDE - 1)  # each vertex with the next
        middle = beside.narrow(axis, 1, SIDE - 2) & beside.narrow(axis, 0, SIDE - 2)
        cube = torch.cat([beside.narrow(axis, 0, 1), middle, beside.narrow(axis, SIDE - 2, 1)], axis)
    return cube.view(passed.shape)


def _incidence(rays: Rays, stride_px: int, size: tuple[int, int]) -> Tensor:
    """The least incidence around each pixel [h, w], from the rays' grid: a bound must not be too large."""
    grid = -F.max_pool2d(-rays.incidence.view(1, 1, *rays.grid), 3, 1, 1)[0, 0]
    row, column = (
        ((torch.arange(side, device=grid.device) - first) / stride_px).round().long().clamp(0, most - 1)
        for side, first, most in zip(size, rays.phase, rays.grid)
    )
    return grid[row[:, None], column]


def visible_blocks(seen: Pixels, radius_m: float, depth: Tensor) -> Tensor:
    """Blocks [M] bool of which a part may be in front of what their rays saw.

    Shapes: seen [M], centres of blocks in a picture 16 times smaller than the depth.
    """
    farthest = F.max_pool2d(F.max_pool2d(depth[None, None], 16, ceil_mode=True), 3, 1, 1)[0, 0]
    row, column = seen.row.clamp(max=farthest.shape[0] - 1), seen.column.clamp(max=farthest.shape[1] - 1)
    return seen.inside & (seen.z - radius_m < farthest[row, column])
