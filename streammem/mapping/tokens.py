"""A depth frame as the map sees it: jittered samples along its rays, each with a value and its noise."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import transform
from streammem.mapping.frames import Shot

REACH_PX = 2  # how far a ray looks for its neighbours, when it measures its slope and its edges
GOLDEN, PLASTIC = 0.6180339887498949, 0.7548776662466927  # irrational steps whose multiples spread evenly


@dataclass(frozen=True)
class DepthNoise:
    """How a depth camera errs.

        sigma(z) = axial_m + quadratic_per_m (z - 0.4)^2

    Units: metres.
    Source: Nguyen, Izadi, Lovell 2012, "Modeling Kinect Sensor Noise"; the defaults are theirs.
    """

    axial_m: float = 0.0012
    quadratic_per_m: float = 0.0019

    def sigma(self, z: Tensor) -> Tensor:
        return self.axial_m + self.quadratic_per_m * (z - 0.4).square()


@dataclass(frozen=True)
class Sampling:
    """Which points of a frame are written.

    Raises: ConfigError for values that sample nothing.
    """

    stride_px: int = 3  # every so many pixels both ways; the start moves, so that every pixel has its turn
    samples: int = 6  # on each ray, spread over the band
    band_m: float = 0.06  # half width of the band around the surface
    steepest: float = 12.0  # tangent between a surface and the image plane, from which on it is taken for an edge
    min_incidence: float = 0.15  # cosine below which a surface counts as seen at this cosine
    noise: DepthNoise = field(default_factory=DepthNoise)

    def __post_init__(self):
        if self.stride_px < 1 or self.samples < 2 or not self.band_m > 0 or not 0 < self.min_incidence <= 1:
            raise ConfigError(f"{self}; wanted stride_px >= 1, samples >= 2, band_m > 0 and min_incidence in (0, 1]")


class Rays(NamedTuple):
    """R = r x c rays of a frame, on a grid over the image."""

    direction: Tensor  # [R, 3] in the camera, z = 1
    depth: Tensor  # [R] metres along z
    incidence: Tensor  # [R] cosine between the ray and the surface's normal, in (0, 1]
    colour: Tensor  # [R, 3] in [0, 1]
    usable: Tensor  # [R] bool: known depth, on a surface
    phase: Tensor  # [2] int64, row and column of the first ray
    grid: tuple[int, int]  # (r, c)


class MapTokens(NamedTuple):
    """J samples on each of R rays, sample first; P = J R."""

    point: Tensor  # [P, 3] in the world, metres
    value: Tensor  # [P] signed distance to the surface, positive in front
    sigma_m: Tensor  # [P] noise of the value
    usable: Tensor  # [P] bool


def rays_of(shot: Shot, how: Sampling, turn: Tensor) -> Rays:
    """Every `stride_px`-th pixel both ways, from a start that takes every place in `stride_px`^2 turns.

    A ray whose neighbours on both sides are across an edge is a flying pixel, and not usable; beside an edge the slope
    is that of the side which is not.

    Shapes: turn [] int64.
    """
    h, w = shot.depth.shape
    s = how.stride_px
    phase = torch.stack([turn % s, (turn // s + 2 * (turn % s)) % s])
    row = torch.arange(0, h - s + 1, s, device=turn.device) + phase[0]
    column = torch.arange(0, w - s + 1, s, device=turn.device) + phase[1]

    def at(dy: int, dx: int) -> Tensor:
        return shot.depth[(row + dy).clamp(0, h - 1)[:, None], (column + dx).clamp(0, w - 1)].reshape(-1)

    z, K = at(0, 0), shot.intrinsics
    du, level_u = _slope(z, at(0, -REACH_PX), at(0, REACH_PX), how.steepest * REACH_PX / K[0, 0])
    dv, level_v = _slope(z, at(-REACH_PX, 0), at(REACH_PX, 0), how.steepest * REACH_PX / K[1, 1])
    x = ((column - K[0, 2]) / K[0, 0]).expand(len(row), -1).reshape(-1)
    y = ((row - K[1, 2]) / K[1, 1])[:, None].expand(-1, len(column)).reshape(-1)
    incidence = _incidence(z, du * K[0, 0] / REACH_PX, dv * K[1, 1] / REACH_PX, x, y).clamp(min=how.min_incidence)
    colour = shot.image[:, row[:, None], column].reshape(3, -1).mT * 0.5 + 0.5
    usable = (z > 0) & level_u & level_v & shot.trusted
    return Rays(
        torch.stack([x, y, torch.ones_like(x)], -1), z, incidence, colour, usable, phase, (len(row), len(column))
    )


def _slope(z: Tensor, before: Tensor, after: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Change of depth over REACH_PX pixels, and whether a surface has it: of both sides, or the flatter."""
    limit, inf = share * z, float("inf")
    back = torch.where(before > 0, z - before, inf)
    ahead = torch.where(after > 0, after - z, inf)
    both = (back.abs() < limit) & (ahead.abs() < limit)
    slope = torch.where(both, (back + ahead) / 2, torch.where(back.abs() < ahead.abs(), back, ahead))
    return torch.where(slope.isfinite(), slope, 0), slope.abs() < limit


def _incidence(z: Tensor, zx: Tensor, zy: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Cosine between the ray (x, y, 1) and the normal of a surface whose depth changes by zx, zy a unit of x and y.

    The points z(x, y) (x, y, 1) have the normal (zx, zy, -(z + x zx + y zy)), whose product with the ray is -z.
    """
    normal_norm = (zx.square() + zy.square() + (z + x * zx + y * zy).square()).sqrt()
    return z / (normal_norm * (1 + x.square() + y.square()).sqrt()).clamp(min=1e-9)


def tokens_of(rays: Rays, world_from_camera: Tensor, how: Sampling, turn: Tensor) -> MapTokens:
    """Samples on rays around the surface, the distance corrected by incidence.

        o_j = band (2 (j + u_j) / J - 1);  x_j = direction (z + o_j / |direction|);  value_j = -o_j incidence

    u is an additive recurrence over rays, samples and turns, even in each of them and the same in every run.
    """
    J, R = how.samples, len(rays.depth)
    j = torch.arange(J, device=turn.device)[:, None]
    u = (torch.arange(R, device=turn.device) * GOLDEN + (j + turn.double()) * PLASTIC).frac().float()
    offset = how.band_m * (2 * (j + u) / J - 1)  # [J, R] metres along the ray
    z = rays.depth + offset / rays.direction.norm(dim=-1)
    point = transform(world_from_camera, (rays.direction * z[..., None]).view(-1, 3))
    value = (-offset * rays.incidence).view(-1)
    sigma_m = how.noise.sigma(rays.depth)
    return MapTokens(point, value, sigma_m.expand(J, -1).reshape(-1), rays.usable.expand(J, -1).reshape(-1))
