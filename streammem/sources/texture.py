"""Solid textures and the normals of solids, evaluated for all pixels of a picture at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PATTERNS = ("plain", "checker", "stripes", "noise")
LIGHT = (0.35, 0.25, 0.9)  # towards the lamp, in the world
# wave vectors and phases of the noise pattern, in periods of the texture
WAVES = ((1.0, 0.62, -0.45, 0.3), (-0.7, 1.31, 0.52, 1.7), (0.41, -1.13, 1.87, 4.1), (2.3, 1.7, 1.1, 2.2))


@dataclass(frozen=True)
class Texture:
    """A pattern that fills space and mixes two colours."""

    pattern: str = "plain"
    period_m: float = 0.3
    light: tuple[float, float, float] = (0.8, 0.8, 0.8)  # RGB in [0, 1]
    dark: tuple[float, float, float] = (0.3, 0.3, 0.3)


def paint(solids, index: Tensor, points: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Normals and shaded colours [h, w, 3] where solid `index` [h, w] is seen at world points 3 x [h, w]."""
    rows = [
        (*s.centre, math.cos(s.yaw), math.sin(s.yaw), *s.half, s.round, s.outward)
        + (1 / s.texture.period_m, PATTERNS.index(s.texture.pattern), *s.texture.light, *s.texture.dark)
        for s in solids
    ]
    table = torch.tensor(rows, device=index.device).T.contiguous()  # [18, solids]
    at = table.index_select(1, index.flatten()).view(-1, *index.shape)  # [18, h, w]
    c, s, half, inverse_period = at[3], at[4], at[5:8], at[10]
    x, y, z = (p - centre for p, centre in zip(points, at[:3]))
    local = [c * x + s * y, c * y - s * x, z]
    nx, ny, nz = _normal(local, half, at[8])
    normal = [at[9] * (c * nx - s * ny), at[9] * (s * nx + c * ny), at[9] * nz]
    mix = _mix([p * inverse_period for p in local], at[11])
    toward = sum(n * (light / math.hypot(*LIGHT)) for n, light in zip(normal, LIGHT))
    shade = toward.mul_(0.25).add_(0.7)
    colour = [torch.lerp(dark, light, mix).mul_(shade) for light, dark in zip(at[12:15], at[15:18])]
    return torch.stack(normal, -1), torch.stack(colour, -1)


def _normal(local: list[Tensor], half: list[Tensor], round: Tensor) -> list[Tensor]:
    """Outward normals in the solids' own axes: the side whose face is nearest, or away from the axis or the centre."""
    outside = [p.abs() - h for p, h in zip(local, half)]
    nearest = torch.maximum(torch.maximum(*outside[:2]), outside[2])
    flat = [torch.where(o == nearest, p.sign(), 0.0) for o, p in zip(outside, local)]
    height = torch.where(round > 1, local[2], 0.0)
    radius = (local[0] ** 2 + local[1] ** 2 + height**2).sqrt_().clamp_(min=1e-9)
    curved = (round > 1) | ((round > 0) & (radius - half[0] > outside[2]))
    cap = (round > 0) & ~curved
    flat = [flat[0].masked_fill_(cap, 0.0), flat[1].masked_fill_(cap, 0.0), torch.where(cap, local[2].sign(), flat[2])]
    return [torch.where(curved, r / radius, f) for r, f in zip((local[0], local[1], height), flat)]


def _mix(at: list[Tensor], pattern: Tensor) -> Tensor:
    """Share of the light colour, [h, w] in [0, 1], at points in periods of the texture."""
    turn = [(p + shift) * (2 * math.pi) for p, shift in zip(at, (0.13, 0.29, 0.41))]
    waves = [t.sin() for t in turn]
    checker = waves[0].mul(3).clamp_(-1, 1) * waves[1].mul_(3).clamp_(-1, 1) * waves[2].mul_(3).clamp_(-1, 1)
    stripes = (turn[0] + turn[1] + turn[2]).sin_().mul_(3).clamp_(-1, 1)
    noise = sum((turn[0] * a + turn[1] * b + turn[2] * c + phase).sin_() for a, b, c, phase in WAVES) / len(WAVES)
    value = torch.where(pattern == 1, checker, torch.where(pattern == 2, stripes, noise))
    return value.mul_(0.5).add_(0.5).masked_fill_(pattern == 0, 1.0)
