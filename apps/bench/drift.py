"""The rules on moving maps: each tuned on training seeds, stream by stream, and scored on others."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.memory.architecture import Matrix
from streammem.memory.rule import Rule
from streammem.rules import RULES
from streammem.rules.kalman import Kalman, Steady, Surprise
from streammem.types import Gates

from .streams import RECIPES, Stream, stream

LAST = {name: 1000 if name.startswith("S5") else 500 for name in RECIPES}  # steps that are scored


class Candidate(NamedTuple):
    """A rule with its gates, the same at every step."""

    rule: Rule
    lr: float = 1.0
    retention: float = 1.0
    momentum: float = 0.0


class Scores(NamedTuple):
    """By step and seed, [T, S]."""

    excess: Tensor  # ((M_{t-1} - w_t) . k_t)^2: predicted before the token is written
    error: Tensor  # |M_t - w_t|, after it


def _kalmans(**options: Sequence) -> list[Candidate]:
    """Every combination; `ratio` is q / r."""
    made = []
    for values in product(*options.values()):
        with_ = dict(zip(options, values))
        r, ratio = with_.pop("r", 1e-2), with_.pop("ratio")
        made.append(Candidate(Kalman(r, ratio * r, 1.0, 10.0, **with_)))
    return made


def _steady(ratios: Sequence[float], velocities: Sequence[float]) -> list[Candidate]:
    return [
        Candidate(Kalman(1e-2, 1e-2 * q, 1.0, 10.0, motion=Steady(1e-2 * v))) for q, v in product(ratios, velocities)
    ]


LEAST_SQUARES = RULES["rls"](1e-6, 1e7)
RESETS = (Surprise(0.7, 5.0, 0.1), Surprise(0.7, 8.0, 0.1, 10.0), Surprise(0.9, 8.0, 0.1))
GAMMAS = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.99)
RATIOS = (1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
CANDIDATES: dict[str, list[Candidate]] = {
    "uniform LS": [Candidate(LEAST_SQUARES)],
    "decayed LS": [Candidate(LEAST_SQUARES, retention=gamma) for gamma in GAMMAS],
    "longhorn": [Candidate(RULES["longhorn"](), lr) for lr in (0.25, 0.5, 1, 2, 4, 10, 30)],
    "nlms": [Candidate(RULES["nlms"](), lr) for lr in (0.1, 0.25, 0.5, 0.75, 1.0)],
    "delta": [Candidate(RULES["delta"](), lr) for lr in (0.1, 0.25, 0.4, 0.6, 0.8, 1.0, 1.2)],
    "gated delta": [Candidate(RULES["gated_delta"](), *x) for x in product((0.4, 0.6, 0.8, 1.0), (0.97, 0.99, 0.998))],
    "titans, matrix": [
        Candidate(RULES["titans"](Matrix()), *x) for x in product((0.2, 0.4, 0.6, 0.8), (0.99, 1.0), (0.2, 0.4, 0.6))
    ],
    "omega, matrix": [
        Candidate(RULES["omega"](Matrix(), frames), lr) for frames, lr in product((2, 4, 8), (0.1, 0.2, 0.4))
    ],
    "gated kalmanet": [
        Candidate(RULES["mesa"](1e-6, 0.02, "chebyshev"), retention=gamma) for gamma in (0.85, 0.9, 0.95)
    ],
    "kdn": [Candidate(RULES["kdn"]("diag", 1e-2, 1e-2 * q, 1.0, 1.0)) for q in RATIOS],
    "yaad, matrix": [
        Candidate(RULES["yaad"](threshold, Matrix()), lr) for threshold, lr in product((0.05, 0.15, 0.3), (0.5, 0.8))
    ],
    "kalman": _kalmans(ratio=RATIOS),
    "kalman, steady": _steady((1e-5, 1e-2), (1e-5, 1e-4, 1e-3)),
    "kalman, surprise": _kalmans(ratio=(1e-3, 0.03), surprise=RESETS),
    "kalman, huber": _kalmans(ratio=(0.03, 0.1, 0.3, 1.0), r=(1e-4, 1e-2), huber=(1.0, 1.5)),
}


def follow(candidate: Candidate, s: Stream) -> Scores:
    """Prequential excess risk and tracking error of one rule on one stream."""
    rule, *rates = candidate
    one = torch.ones_like(s.value[0])  # [S, 1, 1]
    gates, eye = Gates(*(rate * one for rate in rates)), torch.eye(s.key.shape[-1], dtype=s.key.dtype)
    excess, error = [], []
    with torch.inference_mode():
        state = rule.init(torch.zeros_like(s.truth[0]))
        for key, value, truth in zip(*s):
            # A rule that knows how the map moves is asked for the map of now.
            now = rule.predict(state, one) if hasattr(rule, "predict") else state
            excess.append((rule.read(now, key) - key @ truth).square()[:, 0, 0])
            state = rule.write(state, key, value, gates)
            error.append((rule.read(state, eye) - truth).norm(dim=(-2, -1)))
    return Scores(torch.stack(excess), torch.stack(error))


def joined(names: Sequence[str], seeds: Sequence[int]) -> Stream:
    """Several streams side by side, the seeds of the first first."""
    parts = [stream(RECIPES[name], seeds) for name in names]
    return Stream(*(torch.cat(x, 1) for x in zip(*parts)))


def by_stream(candidate: Candidate, names: Sequence[str], s: Stream) -> dict[str, tuple[float, float]]:
    """Mean excess risk and tracking error over the scored steps of each of the streams that stand side by side."""
    scores = follow(candidate, s)
    columns = torch.arange(s.key.shape[1]).chunk(len(names))
    return {
        name: (scores.excess[-LAST[name] :, c].mean().item(), scores.error[-LAST[name] :, c].mean().item())
        for name, c in zip(names, columns)
    }


def tuned(candidates: Sequence[Candidate], training: Stream) -> dict[str, Candidate]:
    """The candidate with the least excess risk on the training seeds of each stream."""
    names = list(RECIPES)
    found = [by_stream(candidate, names, training) for candidate in candidates]

    def risk(i: int, name: str) -> float:
        value = found[i][name][0]
        return value if value < float("inf") else float("inf")

    return {name: candidates[min(range(len(candidates)), key=lambda i: risk(i, name))] for name in names}


def scored(best: dict[str, Candidate], seeds: Sequence[int]) -> dict[str, tuple[float, float]]:
    """Excess risk and tracking error of the best candidate of each stream, on other seeds."""
    result = {}
    for candidate in dict.fromkeys(best.values()):
        names = [name for name in best if best[name] == candidate]
        result.update(by_stream(candidate, names, joined(names, seeds)))
    return {name: result[name] for name in best}
