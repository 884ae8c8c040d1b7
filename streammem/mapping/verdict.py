"""Whether a pose can be trusted: a status and a reason, as numbers on the device, as words on the host."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STATUS = ("tracked", "weak", "lost", "skipped")
TRACKED, WEAK, LOST, SKIPPED = range(4)

REASON = (
    "agrees with what it is compared with",
    "first frame: the world starts here",
    "too little usable depth",
    "shares too little with any view that is remembered",
    "surfaces do not lie where the remembered views have them",
    "brightness differs from the remembered views",
    "some direction of motion shows in nothing that is seen",
    "moved farther than a camera can between two frames",
    "found again, not yet confirmed by the frames after",
    "far from where it started: small errors may have added up",
    "surfaces do not lie where the map has them",
)
AGREES, FIRST, EMPTY, APART, SURFACE, BRIGHTNESS, DEGENERATE, JUMP, AGAIN, DRIFT, MAP = range(len(REASON))


@dataclass(frozen=True)
class Limits:
    """Where doubt starts: (lost, weak) for each kind of evidence. Shares of points; metres; scales of the residual."""

    usable: float = 0.05  # least share of pixels with depth and slope: less is skipped
    overlap: tuple[float, float] = (0.2, 0.35)
    inlier: tuple[float, float] = (0.5, 0.65)
    intensity: tuple[float, float] = (0.8, 0.5)
    map_inlier: tuple[float, float] = (0.25, 0.45)
    sigma_m: float = 0.04  # standard deviation of the position by one alignment; more is weak
    jump: tuple[float, float] = (1.0, 0.6)  # metres or radians from the prediction
    drift_m: float = 0.06  # standard deviation of the position since the start


class Evidence(NamedTuple):
    """What a verdict rests on; all [] on the device."""

    usable: Tensor  # share of the pixels
    overlap: Tensor  # share of the usable points inside the best compared view
    inlier: Tensor  # share of those that lie on its surfaces
    intensity: Tensor  # mean residual of the brightness, in scales
    map_known: Tensor  # share of the usable points where the map knows something
    map_inlier: Tensor  # share of those that lie on its surfaces
    edge_m: Tensor  # standard deviation of the position, by this alignment
    drift_m: Tensor  # standard deviation of the position since the start
    jump: Tensor  # metres or radians from the prediction
    solved: Tensor  # bool: the system could be solved
    first: Tensor  # bool
    again: Tensor  # bool: lost until now, or found again lately


def judge(e: Evidence, limits: Limits) -> tuple[Tensor, Tensor]:
    """The gravest of all findings: (status [], reason []) int64.

    A pose that is found again must agree without a doubt: what would make another one weak makes it lost.
    """
    mapped = e.map_known > 0.5
    findings = [
        (SKIPPED, EMPTY, e.usable < limits.usable),
        (TRACKED, FIRST, e.first),
        *_both(APART, e.overlap, limits.overlap, below=True, strict=e.again),
        *_both(SURFACE, e.inlier, limits.inlier, below=True, strict=e.again),
        *_both(BRIGHTNESS, e.intensity, limits.intensity, below=False, strict=e.again),
        *_both(MAP, torch.where(mapped, e.map_inlier, 1), limits.map_inlier, below=True),
        (LOST, DEGENERATE, ~e.solved),
        (WEAK, DEGENERATE, ~(e.edge_m <= limits.sigma_m)),
        *_both(JUMP, e.jump, limits.jump, below=False),
        (WEAK, AGAIN, e.again),
        (WEAK, DRIFT, e.drift_m > limits.drift_m),
    ]
    findings = findings[:2] + sorted(findings[2:], key=lambda finding: -finding[0])
    status = torch.full_like(e.usable, TRACKED, dtype=torch.int64)
    reason = torch.full_like(status, AGREES)
    for code, why, found in reversed(findings):
        status, reason = torch.where(found, code, status), torch.where(found, why, reason)
    return status, reason


def words(status: Tensor, reason: Tensor) -> tuple[str, str]:
    """Status and reason in words. Waits for the device."""
    return STATUS[int(status)], REASON[int(reason)]


def writes(status: Tensor, reason: Tensor) -> Tensor:
    """Whether a frame may be written: tracked, or weak for a reason that says nothing against its pose."""
    doubted = torch.stack([reason == why for why in (DEGENERATE, JUMP, AGAIN, MAP)]).any(0)
    return (status == TRACKED) | ((status == WEAK) & ~doubted)


def _both(why: int, value: Tensor, limits: tuple[float, float], below: bool, strict: Tensor | bool = False):
    lost, weak = ((value < x) if below else ~(value <= x) for x in limits)
    return (LOST, why, lost | (weak & strict)), (WEAK, why, weak)
