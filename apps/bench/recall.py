"""Associative recall: how many pairs a memory holds, and which version of an overwritten one."""

from collections.abc import Callable, Iterator
from math import log10
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from streammem.memory.algorithm import Momentum
from streammem.memory.architecture import BiasedMLP, BiasedMLPWeights, Matrix
from streammem.memory.bias import L2
from streammem.memory.retention import Decay
from streammem.memory.rule import Composed, Rule
from streammem.rules import RULES
from streammem.rules.deltaformer import DeltaFormer, Exp
from streammem.types import Gates

WIDTH, CODES = 32, 64
SMOOTHER = RULES["kernel_smoother"](512, 0.25)  # softmax(16 q . k) on the unit sphere


class Task(NamedTuple):
    """Pairs in the order in which they are written, and what is asked in the end."""

    key: Tensor  # [T, S, K]
    value: Tensor  # [T, S, V]
    asked: Tensor  # [S, n, K]
    answer: Tensor  # [S, n, V]
    codes: Tensor  # [S, C, V], values among which an answer is looked for


class Contender(NamedTuple):
    """A rule at its rate and retention."""

    rule: Rule
    lr: float = 1.0
    retention: float = 1.0


RECALL: dict[str, Contender] = {
    "hebbian": Contender(RULES["hebbian"]()),
    "delta": Contender(RULES["delta"]()),
    "rls": Contender(RULES["rls"](1e-3)),
    "mesa, ridge 0.25": Contender(RULES["mesa"](0.25, iterations=48)),
    "gated kalmanet": Contender(RULES["mesa"](1e-6, 0.02, "chebyshev", 60)),
    "kalman, q 1e-3": Contender(RULES["kalman"](1e-3, 1e-3)),
    "smoother": Contender(SMOOTHER),
    "deltaformer": Contender(DeltaFormer(Exp(16.0), 64)),
}
OVERWRITE: dict[str, Contender] = {
    "hebbian": Contender(RULES["hebbian"]()),
    "delta": Contender(RULES["delta"]()),
    "longhorn, 10": Contender(RULES["longhorn"](), 10.0),
    "mesa, no discount": Contender(RULES["mesa"](1e-3, iterations=48)),
    "gated kalmanet": Contender(RULES["mesa"](1e-6, 0.02, "chebyshev", 60), retention=0.98),
    "kalman, q 1e-3": Contender(RULES["kalman"](1e-3, 1e-3)),
    "smoother": Contender(SMOOTHER),
    "deltaformer, normalised": Contender(DeltaFormer(Exp(16.0), 512, None, normalised=True)),
    "deltaformer": Contender(DeltaFormer(Exp(16.0), 64)),
}


def pairs(count: int, writes: int, seeds: int, condition: float = 1.0) -> Task:
    """`count` unit keys, each written `writes` times in shuffled order; the last value of each is asked for."""
    g = torch.Generator().manual_seed(count + 1000 * writes)

    def unit(*shape: int) -> Tensor:
        return normalize(torch.randn(*shape, generator=g, dtype=torch.float64), dim=-1)

    scale = torch.logspace(0, -log10(condition) / 2, WIDTH, dtype=torch.float64)
    keys = normalize(unit(seeds, count, WIDTH) * scale, dim=-1)
    codes = unit(seeds, count if writes == 1 else CODES, WIDTH)
    turns = count * writes
    order = torch.stack([torch.randperm(turns, generator=g) % count for _ in range(seeds)])  # [S, T]
    chosen = torch.randint(codes.shape[1], (seeds, turns), generator=g)
    if writes == 1:
        chosen = order
    rows = torch.arange(seeds)[:, None]
    answer = torch.zeros(seeds, count, WIDTH, dtype=torch.float64)
    for t in range(turns):
        answer[torch.arange(seeds), order[:, t]] = codes[torch.arange(seeds), chosen[:, t]]
    return Task(keys[rows, order].transpose(0, 1), codes[rows, chosen].transpose(0, 1), keys, answer, codes)


def recalled(contender: Contender, task: Task) -> tuple[float, float]:
    """Squared error by value vector, 1 for a blank memory, and share of answers whose nearest code is right."""
    rule, lr, retention = contender
    one = torch.ones(task.key.shape[1], 1, 1, dtype=torch.float64)
    gates = Gates(lr * one, retention * one, 0 * one)
    state = rule.init(torch.zeros(task.key.shape[1], WIDTH, WIDTH, dtype=torch.float64))
    with torch.inference_mode():
        for key, value in zip(task.key, task.value):
            state = rule.write(state, key[:, None], value[:, None], gates)
        out = rule.read(state, task.asked)
    near = (out @ task.codes.mT).argmax(-1) == (task.answer @ task.codes.mT).argmax(-1)
    return (out - task.answer).square().sum(-1).mean().item(), near.double().mean().item()


def titans_recall(seed: int) -> tuple[float, float]:
    """Mean squared entries before and after 64 writes of 16 pairs into an MLP, each pair four times."""
    g = torch.Generator().manual_seed(seed)
    keys, values = (normalize(torch.randn(16, WIDTH, generator=g), dim=-1) for _ in range(2))
    order = torch.arange(16).repeat(4)[torch.randperm(64, generator=g)]
    hidden = 4 * WIDTH
    w1 = torch.randn(hidden, WIDTH, generator=g).T
    weights = BiasedMLPWeights(w1, torch.zeros(1, hidden), torch.zeros(hidden, WIDTH), torch.zeros(1, WIDTH))
    rule = RULES["titans"](BiasedMLP())
    # The rate is twice theta: the library's loss has a factor 0.5.
    gates = Gates(torch.full((1, 1), 0.01), torch.ones(1, 1), torch.full((1, 1), 0.5))
    state = rule.init(weights)
    before = (rule.read(state, keys) - values).square().mean().item()
    with torch.inference_mode():
        for i in order:
            state = rule.write(state, keys[i : i + 1], values[i : i + 1], gates)
    return before, (rule.read(state, keys) - values).square().mean().item()


def momentum_overwrites(writes: int, trials: int = 50) -> float:
    """Share of latest values recalled by a matrix with momentum: orthonormal keys, each written `writes` times."""
    g = torch.Generator().manual_seed(writes)
    width, count = 64, 8
    keys = torch.linalg.qr(torch.randn(trials, width, count, generator=g, dtype=torch.float64))[0].mT
    codes = normalize(torch.randn(trials, 32, width, generator=g, dtype=torch.float64), dim=-1)
    rule = Composed(Matrix(), L2(), Decay(), Momentum())
    one = torch.ones(trials, 1, 1, dtype=torch.float64)
    gates, rows = Gates(1.0 * one, 0.9 * one, 0.9 * one), torch.arange(trials)
    order = torch.stack([torch.randperm(count * writes, generator=g) % count for _ in range(trials)])
    state, latest = rule.init(torch.zeros(trials, width, width, dtype=torch.float64)), torch.zeros(trials, count).long()
    for turn in order.T:
        chosen = torch.randint(32, (trials,), generator=g)
        latest[rows, turn] = chosen
        state = rule.write(state, keys[rows, turn][:, None], codes[rows, chosen][:, None], gates)
    return ((rule.read(state, keys) @ codes.mT).argmax(-1) == latest).double().mean().item()


def kernel_noise(kernel: Callable[[Tensor], Tensor], width: int, pairs: int = 1_000_000) -> float:
    """Mean squared kernel of two random unit keys, over the square of that of a key with itself."""
    g = torch.Generator().manual_seed(width)
    a, b = (normalize(torch.randn(pairs, width, generator=g), dim=-1) for _ in range(2))
    return (kernel((a * b).sum(-1)).square().mean() / kernel(torch.ones(1)).square().mean()).item()


def table(contenders: dict[str, Contender], tasks: dict[str, Task]) -> Iterator[tuple[str, str, float, float]]:
    """(rule, task, squared error, accuracy), one by one."""
    for name, contender in contenders.items():
        for what, task in tasks.items():
            yield name, what, *recalled(contender, task)
