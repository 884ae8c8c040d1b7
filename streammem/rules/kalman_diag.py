from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.memory import covariance
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


class DiagonalState(NamedTuple):
    """Mean of the map and a variance for each key channel."""

    memory: Tensor  # [..., K, V]
    variance: Tensor  # [..., K, 1], p


@dataclass(frozen=True)
class KalmanDiag(Rule):
    """Kalman delta rule with a diagonal covariance: a step size of its own for every key channel.

        p' = a^2 p + q
        e = v - k a M;  G = p' k^T (k p' k^T + r / lr)^{-1}
        M = a M + G e;  p = p' / (1 + p' sum_i lr_i k_i^2 / r)

    Fields as in Kalman.

    Shapes: memory [..., K, V]; one write takes N tokens.
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

    def __post_init__(self):
        if not (self.observation_variance > 0 and self.process_variance >= 0 and self.prior_variance > 0):
            raise ConfigError(f"{self} has a variance that makes no sense; wanted r > 0, q >= 0, prior > 0")
        if not self.max_variance >= self.prior_variance:
            raise ConfigError(f"{self} starts above its bound; wanted max_variance >= prior_variance")
        if self.huber is not None and not self.huber > 0:
            raise ConfigError(f"huber of KalmanDiag is {self.huber}; wanted a number above 0, or None")

    def init(self, weights: Tensor) -> DiagonalState:
        return DiagonalState(weights, torch.full_like(weights[..., :1], self.prior_variance, dtype=WIDE))

    def write(self, state: DiagonalState, key, value, gates) -> DiagonalState:
        key, value, lr, retention = (x.to(WIDE) for x in (key, value, gates.lr, gates.retention))
        memory = retention * state.memory.to(WIDE)
        p = retention.square() * state.variance + self.process_variance  # [..., K, 1]
        weight = lr / self.observation_variance
        error = value - key @ memory
        spread = key * p.mT  # [..., N, K]
        if self.huber is not None:
            weight = weight * covariance.trust(error, covariance.expected(spread, key, weight), self.huber)
        gain, _ = covariance.gain(spread, key, weight)
        memory = memory + gain @ error
        p = p / (1 + p * (weight * key.square()).sum(-2, keepdim=True).mT)
        return DiagonalState(memory.to(state.memory.dtype), p.clamp_max(self.max_variance))

    def read(self, state: DiagonalState, query) -> Tensor:
        return query @ state.memory

    def variance(self, state: DiagonalState, query: Tensor) -> Tensor:
        """Predictive variance of a value observed at query, by token: [..., N, 1]."""
        return query.to(WIDE).square() @ state.variance + self.observation_variance
