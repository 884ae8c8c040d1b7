from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.chunk import affine
from streammem.chunk.affine import Terms
from streammem.memory import covariance
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


class DiagonalState(NamedTuple):
    """Mean of the map and a variance for each key channel."""

    memory: Tensor  # [..., K, V]
    variance: Tensor  # [..., K, 1], p; [..., 1, 1] where all channels share it


@dataclass(frozen=True)
class KalmanDiag(Rule):
    """Kalman delta rule with a diagonal covariance: a step size of its own for every key channel.

        p' = a^2 p + q
        e = v - k a M;  G = p' k^T (k p' k^T + r / lr)^{-1}
        M = a M + G e;  p = p' / (1 + p' sum_i lr_i k_i^2 / r)

    isotropic: one variance for all channels, with the means of a^2 and k^2 in place of each channel's. Other fields as
    in Kalman.

    Shapes: memory [..., K, V]; one write takes N tokens. Chunk form exact without `huber`: the variances do not depend
    on the values and go step by step, the memory in chunks.
    Raises: ConfigError where a variance makes no sense.
    Source: Kalman delta networks, arXiv:2609.07816.
    Differs: k^2 counts once in the precision, where the paper multiplies it by K; overconfident under the true model,
    because correlations are dropped.
    """

    observation_variance: float = 1.0
    process_variance: float = 0.0
    prior_variance: float = 1.0
    max_variance: float = 1.0
    huber: float | None = None
    isotropic: bool = False

    def __post_init__(self):
        covariance.check(self)

    def init(self, weights: Tensor) -> DiagonalState:
        like = weights[..., :1, :1] if self.isotropic else weights[..., :1]
        return DiagonalState(weights, torch.full_like(like, self.prior_variance, dtype=WIDE))

    def write(self, state: DiagonalState, key, value, gates) -> DiagonalState:
        key, value, lr, retention = (x.to(WIDE) for x in (key, value, gates.lr, gates.retention))
        memory = retention * state.memory.to(WIDE)
        p = self._aged(state.variance, retention)
        weight = lr / self.observation_variance
        error = value - key @ memory
        spread = key * p.mT  # [..., N, K]
        if self.huber is not None:
            weight = weight * covariance.trust(error, covariance.expected(spread, key, weight), self.huber)
        gain, _ = covariance.gain(spread, key, weight)
        memory = memory + gain @ error
        return DiagonalState(memory.to(state.memory.dtype), self._seen(p, key, weight))

    def sequence(self, state: DiagonalState, x, chunk, by_token=False):
        if self.huber is not None or by_token:
            return Rule.sequence(self, state, x, chunk, by_token)
        key, weight, retention = (
            a.to(WIDE) for a in (x.key, x.gates.lr / self.observation_variance, x.gates.retention)
        )
        variance, course = state.variance, []
        for k, w, a in zip(key, weight, retention):
            course.append(self._aged(variance, a))
            variance = self._seen(course[-1], k, w)
        gain, _ = covariance.gain(key * torch.stack(course).mT, key, weight)
        terms = Terms(gain.mT, key, x.value.to(WIDE), retention)
        memory, out = affine.sequence(state.memory, x.query, terms, chunk)
        return DiagonalState(memory, variance), out

    def _aged(self, variance: Tensor, retention: Tensor) -> Tensor:
        square = retention.square().mean(-2, keepdim=True) if self.isotropic else retention.square()
        return square * variance + self.process_variance

    def _seen(self, p: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        evidence = (weight * key.square()).sum(-2, keepdim=True).mT  # [..., K, 1]
        evidence = evidence.mean(-2, keepdim=True) if self.isotropic else evidence
        return (p / (1 + p * evidence)).clamp_max(self.max_variance)

    def read(self, state: DiagonalState, query) -> Tensor:
        return query @ state.memory

    def variance(self, state: DiagonalState, query: Tensor) -> Tensor:
        """Predictive variance of a value observed at query, by token: [..., N, 1]."""
        wide = query.to(WIDE)
        return (wide.square() * state.variance.mT).sum(-1, keepdim=True) + self.observation_variance
