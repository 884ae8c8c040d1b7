"""What rules know of their own errors: calibration of the innovations, and a gate that opens on evidence."""

from typing import NamedTuple

import numpy as np
import torch

from streammem.memory.gates import Constant, Evidence, Gate, Gated, Surprise
from streammem.rules import RULES
from streammem.rules.kalman import Kalman
from streammem.types import Gates

from .streams import WIDTH, Stream

NOISE = 0.1


def mean_innovation(rule, steps: int = 1000, trials: int = 200, r: float = 0.1, q: float = 0.01) -> float:
    """Mean of |e|^2 / s on the rule's own model; 1 while it is as sure as it may be. The first fifth is not counted."""
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    one, truth, found = torch.ones(trials, 1, 1, dtype=torch.float64), draw(trials, WIDTH, 1), []
    state, gates = rule.init(torch.zeros_like(truth)), Gates(one, one, 0 * one)
    for step in range(steps):
        truth = truth + q**0.5 * draw(trials, WIDTH, 1)
        key = draw(trials, 1, WIDTH) / WIDTH**0.5
        value = key @ truth + r**0.5 * draw(trials, 1, 1)
        if step >= steps // 5:
            found.append(((value - rule.read(state, key)).square() / _variance(rule, state, key, r, q)).mean())
        state = rule.write(state, key, value, gates)
    return torch.stack(found).mean().item()


def _variance(rule, state, key, r: float, q: float):
    if isinstance(rule, Kalman):
        return rule.variance(rule.predict(state, torch.ones_like(key[..., :1])), key)
    return key.square() @ (1 / state.precision + q) + r  # a diagonal filter


class Gating(NamedTuple):
    """What a gate costs and saves."""

    risk: float  # excess risk after the first switch
    written: float  # share of steps that were written


GATED: dict[str, tuple[Gate, float]] = {  # gate, rate
    "always, rate 1": (Constant(), 1.0),
    "always, rate 1/4": (Constant(), 0.25),
    "surprise above 4": (Surprise(NOISE**2, 4.0), 1.0),
    "surprise above 9": (Surprise(NOISE**2, 9.0), 1.0),
    "evidence": (Evidence(NOISE**2), 1.0),
    "evidence, slow": (Evidence(NOISE**2, 0.95, high=10.0), 1.0),
}


def switches(seeds: range, steps: int = 4000, period: int = 500) -> Stream:
    """A map that is drawn anew every `period` steps, values with noise 0.1 and 3% spikes of deviation 1."""
    made = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        maps = rng.normal(size=(steps // period, WIDTH))
        maps = np.repeat(maps / np.linalg.norm(maps, axis=1, keepdims=True), period, 0)
        key = rng.normal(size=(steps, WIDTH)) / np.sqrt(WIDTH)
        noise = NOISE * rng.normal(size=steps) + (rng.random(steps) < 0.03) * rng.normal(size=steps)
        made.append((key, (key * maps).sum(-1) + noise, maps))
    key, value, truth = (torch.from_numpy(np.stack(parts, 1)) for parts in zip(*made))
    return Stream(key[:, :, None], value[:, :, None, None], truth[..., None])


def gating(gate: Gate, rate: float, s: Stream, period: int = 500) -> Gating:
    """Risk and writes of Longhorn behind a gate."""
    rule = Gated(RULES["longhorn"](), gate)
    one = torch.ones_like(s.value[0])
    state, gates = rule.init(torch.zeros_like(s.truth[0])), Gates(rate * one, one, 0 * one)
    risks, writes = [], []
    with torch.inference_mode():
        for key, value, truth in zip(*s):
            risks.append((rule.read(state, key) - key @ truth).square().mean())
            after = rule.write(state, key, value, gates)
            writes.append((after.inner != state.inner).any((-2, -1)).double().mean())
            state = after
    return Gating(torch.stack(risks[period:]).mean().item(), torch.stack(writes[period:]).mean().item())


def openings(trials: int = 2000, calm: int = 200, seed: int = 0) -> tuple[float, float, float]:
    """Share of calm steps at which the evidence gate opens, one spike of 100 sigma included; share of changes that open
    it within 20 steps; the median number of steps."""
    gate, g = Evidence(NOISE**2), torch.Generator().manual_seed(seed)
    key = torch.randn(calm + 20, trials, WIDTH, generator=g, dtype=torch.float64) / WIDTH**0.5
    error = NOISE * torch.randn(calm + 20, trials, generator=g, dtype=torch.float64)
    error[calm // 2] += 100 * NOISE
    change = torch.nn.functional.normalize(torch.randn(trials, WIDTH, generator=g, dtype=torch.float64), dim=-1)
    other = torch.nn.functional.normalize(torch.randn(trials, WIDTH, generator=g, dtype=torch.float64), dim=-1)
    error[calm:] += (key[calm:] * (change - other)).sum(-1)
    rule = Gated(RULES["frozen"](), gate)
    one = torch.ones(trials, 1, 1, dtype=torch.float64)
    state, opened = rule.init(0 * one), []
    for e in error:
        state = rule.write(state, one, e[:, None, None], Gates(one, one, 0 * one))
        opened.append(state.gate.open[:, 0, 0] > 0)
    opened = torch.stack(opened)
    after = opened[calm:].double()
    first = torch.where(after.any(0), after.argmax(0) + 1, 10**6)
    opens = opened[1:calm] & ~opened[: calm - 1]
    return opens.double().mean().item(), (first <= 20).double().mean().item(), first.median().item()
