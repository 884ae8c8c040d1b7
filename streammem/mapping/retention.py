"""What a vertex keeps: a slow value that averages for good, and a fast one that fades with time."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError


@dataclass(frozen=True)
class Retention:
    """How a vertex changes between frames.

        d(t) = m + x(t),   E x = 0,  sd x = wander_m,  E x(t) x(s) = wander_m^2 exp(-|t - s| / wander_s)

    Recorded poses wander by a centimetre over seconds, and with them all that a frame says. The slow value m is the
    average over the wander, the fast one x is where it stands: what was just seen is read where it was just seen, what
    was seen long ago is read at its average. Time passes for the fast value alone; where no ray passes nothing is lost.

    Raises: ConfigError for values that are no lengths or times.
    """

    wander_m: float = 0.012
    wander_s: float = 0.5
    frame_noise_m: float = 0.002  # error that all tokens of a frame share at a vertex
    memory_frames: float = 200.0  # the average counts as so many frames at most: old evidence gives way
    yielding: float = 0.05  # share by which the average follows, where the surface is farther off than it wanders

    def __post_init__(self):
        if self.wander_m < 0 or not self.wander_s > 0 or self.frame_noise_m < 0 or not self.memory_frames > 0:
            raise ConfigError(f"{self}; wanted lengths from 0 on, and a time and a number of frames above 0")


class Present(NamedTuple):
    """A vertices at one moment."""

    slow: Tensor  # [A, 512] m
    precision: Tensor  # [A, 512] of the slow value, 1 / m^2; 0 = never seen
    value: Tensor  # [A, 512] slow value and what is left of the wander, m
    left: Tensor  # [A, 512] share of the wander that is left
    touched: Tensor  # [A, 512] bool, whether evidence reached it in this frame


def present(how: Retention, field: Tensor, wander: Tensor, seen_s: Tensor, now_s: Tensor) -> Present:
    """Vertices as time has left them.

        left = exp(-|now - seen| / wander_s);   value = m + left x

    `now` may lie in the past: the wander then and when last seen have the same correlation either way. What was farther
    off than a surface wanders was something else, and says nothing of the past.
    """
    left = torch.exp(-(seen_s - now_s).abs() / how.wander_s)
    limit = 3 * how.wander_m
    wander = torch.where(seen_s > now_s, wander.clamp(-limit, limit), wander)
    slow, precision = field.unbind(-1)
    return Present(slow, precision, slow + left * wander, left, torch.zeros_like(slow, dtype=torch.bool))


class Evidence(NamedTuple):
    """What a frame says at A x 512 vertices, summed over its tokens."""

    error: Tensor  # sum of key * confidence * (prediction - value), in m / m^2
    weight: Tensor  # sum of key * confidence, 1 / m^2


def learn(how: Retention, old: Present, seen: Evidence, top_m: float) -> Present:
    """Diagonal least squares on the slow value, an exact filter's gain on the fast one.

        e = error / weight;   R = 1 / weight + frame_noise^2
        precision += 1 / R;   m += ((value - e) - m) / R / precision
        Q = wander^2 (1 - left^2) + left^2 frame_noise^2 / 2, at least 1 / precision
        value -= e Q / (Q + R)

    Q is the variance of the value before the frame: what the wander may have become since, and what a running filter
    keeps of the last frame's noise. Distances are cut off at +-top_m.

    Shapes: all [A, 512].
    """
    hit = seen.weight > 0
    weight = seen.weight.clamp(min=1e-12)
    error = seen.error / weight
    noise = 1 / weight + how.frame_noise_m**2
    precision = old.precision + 1 / noise
    slow = old.slow + (old.value - error - old.slow) / (noise * precision)
    spread = how.wander_m**2 * (1 - old.left.square()) + old.left.square() * how.frame_noise_m**2 / 2
    spread = torch.maximum(spread, 1 / old.precision.clamp(min=1e-12))
    value = old.value - error * spread / (spread + noise)
    slow = yielded(how, old, slow, value)
    return Present(
        torch.where(hit, slow.clamp(-top_m, top_m), old.slow),
        torch.where(hit, precision.clamp(max=how.memory_frames / how.frame_noise_m**2), old.precision),
        torch.where(hit, value.clamp(-top_m, top_m), old.value),
        old.left,
        hit,
    )


def yielded(how: Retention, old: Present, slow: Tensor, value: Tensor) -> Tensor:
    """The average where the value has left the range of the wander for two frames running: the surface moved.

    m += yielding min(excess(x), excess(x before));   excess(x) = x - clip(x, -3 wander, 3 wander);   x = value - m
    """
    limit = 3 * how.wander_m
    now, before = value - slow, old.value - old.slow
    now, before = now - now.clamp(-limit, limit), before - before.clamp(-limit, limit)
    both = torch.where(now * before > 0, torch.where(now.abs() < before.abs(), now, before), 0)
    return slow + how.yielding * both
