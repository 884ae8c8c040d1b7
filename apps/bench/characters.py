"""Three characters of one regression: a smoother is ragged, one pass is shallow, least squares threads the noise."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.memory.algorithm import Descent
from streammem.memory.architecture import Matrix
from streammem.memory.bias import L2
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed
from streammem.rules import RULES
from streammem.rules.kernel_smoother import Smoothing
from streammem.types import Gates

POINTS, FEATURES, QUERIES, REACH = 80, 128, 400, 3.0
RATE, RIDGE, BANDWIDTH, NOISE = 0.06, 1e-2, 0.12, 0.35


class Fit(NamedTuple):
    """How one curve compares with the truth, by seed [S]."""

    error: Tensor  # mean square against the truth
    roughness: Tensor  # root mean square of the second difference over h^2
    slope: Tensor  # regression of the curve on the truth; below 1 is shallow
    training: Tensor  # root mean square against the points
    objective: Tensor  # 0.5 |y - f|^2 + 0.5 ridge |w|^2; NaN without weights


def _truth(x: Tensor) -> Tensor:
    return torch.sin(1.5 * x) + 0.3 * x


def fits(seeds: range) -> tuple[dict[str, Fit], Tensor]:
    """The fits by name, and the roughness of the truth."""
    draws = [_drawn(seed) for seed in seeds]
    x, y, w, b = (torch.stack(parts) for parts in zip(*draws))  # [S, n, 1] twice, [S, 1, D] twice
    asked = torch.linspace(-REACH, REACH, QUERIES, dtype=torch.float64)[None, :, None].expand(len(x), -1, -1)

    def lifted(at: Tensor) -> Tensor:
        return (2 / FEATURES) ** 0.5 * torch.cos(at * w + b)

    step = 2 * REACH / (QUERIES - 1)
    goal = _truth(asked)
    one = torch.ones(len(x), 1, 1, dtype=torch.float64)

    def judged(curve: Tensor, at_points: Tensor, weights: Tensor | None = None) -> Fit:
        centred, around = curve - curve.mean(1, keepdim=True), goal - goal.mean(1, keepdim=True)
        slope = (centred * around).sum((1, 2)) / around.square().sum((1, 2))
        residual = (at_points - y).square().sum((1, 2))
        size = torch.full_like(residual, float("nan")) if weights is None else weights.square().sum((1, 2))
        error = (curve - goal).square().mean((1, 2))
        return Fit(error, _rough(curve, step), slope, (residual / POINTS).sqrt(), 0.5 * (residual + RIDGE * size))

    smoother = RULES["kernel_smoother"](POINTS, BANDWIDTH)
    held = smoother.write(smoother.init(0 * one), x, y, Gates(one.expand(-1, POINTS, 1), one, 0 * one))
    found = {"smoother": judged(smoother.read(held, asked), smoother.read(held, x))}
    phi, blank = lifted(x), torch.zeros(len(x), FEATURES, 1, dtype=torch.float64)

    descent = Composed(Matrix(), L2(), Decay(), Descent())
    state, gates = descent.init(blank), Gates(RATE * one, (1 - RATE * RIDGE / POINTS) * one, 0 * one)
    for turn in range(1, 31):
        for t in range(POINTS):
            state = descent.write(state, phi[:, t : t + 1], y[:, t : t + 1], gates)
        if turn in (1, 5, 30):
            curve, at_points = (descent.read(state, at) for at in (lifted(asked), phi))
            found[f"descent, {turn}"] = judged(curve, at_points, state.dual)

    batch = RULES["rls"](RIDGE)
    solved = batch.write(batch.init(blank), phi, y, Gates(one.expand(-1, POINTS, 1), one, 0 * one))
    found["batch"] = judged(batch.read(solved, lifted(asked)), batch.read(solved, phi), solved.memory)
    return found, _rough(goal, step)


def learned_bandwidth(epochs: int = 5, rate: float = 0.5) -> float:
    """Bandwidth of a smoother that learned it by gradient on its leave-one-out error; each point is one stream's."""
    g = torch.Generator().manual_seed(0)
    n = 40
    x = torch.sort(5 * torch.rand(n, generator=g))[0].double()[:, None]
    y = 2 * torch.sin(x) + x + torch.randn(n, generator=g).double()[:, None]
    rule, one = RULES["kernel_smoother"](n), torch.ones(n, 1, 1, dtype=torch.float64)
    others = (1 - torch.eye(n, dtype=torch.float64))[..., None]  # [n, n, 1]: a stream for each point, without it
    w = torch.ones((), dtype=torch.float64, requires_grad=True)
    for _ in range(epochs):
        state = rule.init(Smoothing(0 * one, -w.log() * one))
        state = rule.write(state, x.expand(n, -1, -1), y.expand(n, -1, -1), Gates(others, one, 0 * one))
        loss = (rule.read(state, x[:, None]) - y[:, None]).square().mean()
        (slope,) = torch.autograd.grad(loss, w)
        w = (w - rate * slope).detach().requires_grad_()
    return 1 / w.item()


def _drawn(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = 2 * REACH * torch.rand(POINTS, generator=g) - REACH
    y = _truth(x) + NOISE * torch.randn(POINTS, generator=g)
    w, b = torch.randn(FEATURES, generator=g), 2 * torch.pi * torch.rand(FEATURES, generator=g)
    return x.double()[:, None], y.double()[:, None], w.double()[None], b.double()[None]


def _rough(curve: Tensor, step: float) -> Tensor:
    second = curve[:, 2:] - 2 * curve[:, 1:-1] + curve[:, :-2]
    return second.square().mean((1, 2)).sqrt() / step**2
