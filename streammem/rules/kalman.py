import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.memory import covariance
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


class KalmanState(NamedTuple):
    """Mean and covariance of the map, and the evidence that it has changed."""

    memory: Tensor  # [..., M, V]; M = K, or 2 K where a velocity is kept below the position
    covariance: Tensor  # [..., M, M], P, shared by the value channels
    score: object  # [..., 1, 1] where changes are looked for, else ()


class Motion(abc.ABC):
    """How the map moves between frames."""

    @abc.abstractmethod
    def widen(self, weights: Tensor) -> Tensor:
        """Returns the initial memory, with rows for all that is estimated."""

    @abc.abstractmethod
    def predict(self, memory: Tensor, p: Tensor, retention: Tensor, variance: float) -> tuple[Tensor, Tensor]:
        """Returns memory and covariance one frame later; the position gains `variance`."""


@dataclass(frozen=True)
class Still(Motion):
    """A random walk: M' = a M + noise."""

    def widen(self, weights):
        return weights

    def predict(self, memory, p, retention, variance):
        return retention * memory, covariance.aged(p, retention, variance)


@dataclass(frozen=True)
class Steady(Motion):
    """Constant velocity: M' = a (M + U) + noise, U' = U + noise of `variance`."""

    variance: float = 0.0

    def widen(self, weights):
        return torch.cat([weights, torch.zeros_like(weights)], -2)

    def predict(self, memory, p, retention, variance):
        width = p.shape[-1] // 2
        eye = torch.eye(width, dtype=p.dtype, device=p.device)
        position = (retention * eye).expand(*p.shape[:-2], -1, -1)  # [..., K, K]
        velocity = eye.expand(*p.shape[:-2], -1, -1)
        move = torch.cat([torch.cat([position, position], -1), torch.cat([0 * velocity, velocity], -1)], -2)
        noise = torch.cat([variance * eye.diagonal(), self.variance * eye.diagonal()]).diag_embed()
        return move @ memory, move @ p @ move.mT + noise


@dataclass(frozen=True)
class Surprise:
    """Detector of abrupt change: a leaky sum of surprise; above `threshold` the covariance gains `boost`.

        z = mean_i min(|e_i|^2 / (V s_i), cap) - 1;  score_t = max(0, leak score_{t-1} + z - slack)

    One outlier of any size adds at most cap - 1 - slack, and so cannot raise the alarm alone.

    Source: our form of accumulated surprisal gating, after Soriano et al. 2026, arXiv:2607.18899.
    """

    leak: float = 0.7
    threshold: float = 8.0
    boost: float = 0.1
    cap: float = 5.0
    slack: float = 0.5

    def score(self, before: Tensor, normalised: Tensor, known: Tensor) -> Tensor:
        """Score after a frame, [..., 1, 1]; normalised innovation and known tokens are [..., N, 1]."""
        seen = known.to(normalised.dtype)
        count = seen.sum(-2, keepdim=True)
        z = (seen * normalised.clamp_max(self.cap)).sum(-2, keepdim=True) / count.clamp_min(1) - 1
        return torch.where(count > 0, (self.leak * before + z - self.slack).clamp_min(0), before)

    def raised(self, score: Tensor) -> Tensor:
        """What every variance gains at this score."""
        return self.boost * (score > self.threshold).to(score.dtype)


@dataclass(frozen=True)
class Kalman(Rule):
    """Kalman delta rule: the Gaussian posterior of a map that drifts.

        M', P' = the motion's prediction;  Still: a M, a^2 P + q I
        e = v - k M';  s = k P' k^T + r / lr;  G = P' k^T s^{-1}
        M = M' + G e;  P = (I - G k) P' (I - G k)^T + G (r / lr) G^T

    observation_variance: r of a token of rate 1; the rate of a token is its share of precision.
    process_variance: q, what a frame adds to every variance. prior_variance: of the initial memory.
    max_variance: bound of the diagonal of P, so that what is never seen stays finite.
    huber: innovations above `huber` standard deviations lose weight; None trusts all.
    surprise: raise the covariance where the map has changed abruptly; None never does.
    motion: Still(), or Steady(variance) which estimates the velocity of the map too.

    Shapes: memory [..., K, V]; P is shared by the value channels; one write takes N tokens, exactly. No chunk form: the
    covariance goes step by step. Many tokens to a frame are cheaper, and as exact.
    Units: variances in squared units of the values (r) and of values per key (P, q). Sound while r is above about 1e-9
    of what P |k|^2 may be; below that even float64 loses the sign of P.
    Raises: ConfigError where a variance makes no sense.
    Source: Kalman 1960; as a delta rule: arXiv:2609.07816. Huber's weights: Huber 1964.
    Differs: the bound, and the rate as a share of precision.
    """

    observation_variance: float = 1.0
    process_variance: float = 0.0
    prior_variance: float = 1.0
    max_variance: float = 1.0
    huber: float | None = None
    surprise: Surprise | None = None
    motion: Motion = Still()

    def __post_init__(self):
        covariance.check(self)

    def init(self, weights: Tensor) -> KalmanState:
        memory = self.motion.widen(weights)
        p = covariance.prior(memory, self.prior_variance)
        score = () if self.surprise is None else p.new_zeros(*p.shape[:-2], 1, 1)
        return KalmanState(memory, p, score)

    def predict(self, state: KalmanState, retention: Tensor) -> KalmanState:
        """The state one frame later, before that frame is seen."""
        memory, p = self._predicted(state, retention)
        return KalmanState(memory.to(state.memory.dtype), p, state.score)

    def _predicted(self, state: KalmanState, retention: Tensor) -> tuple[Tensor, Tensor]:
        """Memory and covariance one frame later, in float64."""
        return self.motion.predict(state.memory.to(WIDE), state.covariance, retention.to(WIDE), self.process_variance)

    def write(self, state: KalmanState, key, value, gates) -> KalmanState:
        memory, p = self._predicted(state, gates.retention)
        score = state.score
        key, value = self._padded(key, memory).to(WIDE), value.to(WIDE)
        weight = gates.lr.to(WIDE) / self.observation_variance
        error, spread = value - key @ memory, key @ p  # [..., N, V] and [..., N, M]
        if self.surprise is not None or self.huber is not None:
            s = covariance.expected(spread, key, weight)
        if self.surprise is not None:
            score = self.surprise.score(score, error.square().mean(-1, keepdim=True) / s, weight > 0)
            alarm = self.surprise.raised(score)
            p, spread = p + alarm * torch.eye(p.shape[-1], dtype=WIDE, device=p.device), spread + alarm * key
        if self.huber is not None:
            weight = weight * covariance.trust(error, s, self.huber)
        gain, p = covariance.condition(p, spread, key, weight)
        memory = memory + gain @ error
        return KalmanState(memory.to(state.memory.dtype), covariance.bounded(p, self.max_variance), score)

    def read(self, state: KalmanState, query) -> Tensor:
        return query @ state.memory[..., : query.shape[-1], :]

    def variance(self, state: KalmanState, query: Tensor) -> Tensor:
        """Predictive variance s of a value observed at query, by token: [..., N, 1]."""
        key = self._padded(query, state.memory).to(WIDE)
        return ((key @ state.covariance) * key).sum(-1, keepdim=True) + self.observation_variance

    def innovation(self, state: KalmanState, key: Tensor, value: Tensor) -> Tensor:
        """Normalised innovation |e|^2 / s by token, [..., N, 1]: its mean is V while the model is right."""
        return (value - self.read(state, key)).square().sum(-1, keepdim=True) / self.variance(state, key)

    def _padded(self, key: Tensor, memory: Tensor) -> Tensor:
        """Key with zeros for the rows that are estimated and never observed."""
        unseen = memory.shape[-2] - key.shape[-1]
        return torch.nn.functional.pad(key, (0, unseen)) if unseen else key
