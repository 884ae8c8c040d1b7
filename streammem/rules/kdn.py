from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from streammem.chunk import affine, mobius
from streammem.chunk.affine import Terms
from streammem.errors import ConfigError
from streammem.memory import covariance
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule

MOST = 1e12  # precision at which a channel is certain


class KDNState(NamedTuple):
    """The memory, and how sure it is."""

    memory: Tensor  # [..., K, V]
    precision: Tensor  # [..., K, 1], c; [..., 1, 1] for "iso"


@dataclass(frozen=True)
class KDN(Rule):
    """Kalman delta network: a delta rule whose step is a diagonal or isotropic Kalman gain.

        p = a_t^2 / c_{t-1} + w;  R_t = diag(a_t) M_{t-1}
        M_t = R_t + G (v - k R_t),  G = p k^T (k p k^T + r / lr)^{-1}
        c_t = 1 / p + s sum_i lr_i k_i^2 / r
        iso: a^2 and k^2 are means over the channels

    kind: "diag" or "iso". spread: s; None is K. observation_variance r, process_variance w, prior_variance 1 / c_0.

    Shapes: memory [..., K, V]; one write takes N tokens; retention [..., K, 1] or [..., 1, 1]. Chunk form exact: the
    precisions by a Moebius scan, the memory in chunks.
    Units: variances as in Kalman.
    Raises: ConfigError for another kind, or a variance that makes no sense.
    Source: arXiv:2609.07816.
    Differs: precision is bounded by 1e12, so that nothing overflows; the scan has no bound. With s = 1 this is
    `kalman_diag` without its bound.
    """

    kind: Literal["diag", "iso"] = "diag"
    observation_variance: float = 1.0
    process_variance: float = 0.01
    prior_variance: float = 1.0
    spread: float | None = None

    def __post_init__(self):
        if self.kind not in ("diag", "iso"):
            raise ConfigError(f"the kind of KDN is {self.kind!r}; wanted 'diag' or 'iso'")
        if not (self.observation_variance > 0 and self.process_variance >= 0 and self.prior_variance > 0):
            raise ConfigError(f"{self} has a variance that makes no sense; wanted r > 0, w >= 0, prior > 0")

    def init(self, weights: Tensor) -> KDNState:
        like = weights[..., :1] if self.kind == "diag" else weights[..., :1, :1]
        return KDNState(weights, torch.full_like(like, 1 / self.prior_variance, dtype=WIDE))

    def write(self, state: KDNState, key, value, gates) -> KDNState:
        square, evidence = self._rates(key, gates)
        p = square / state.precision + self.process_variance
        memory = affine.write(state.memory.to(WIDE), self._terms(p, key, value, gates))
        return KDNState(memory.to(state.memory.dtype), (1 / p + evidence).clamp_max(MOST))

    def read(self, state: KDNState, query) -> Tensor:
        return query @ state.memory

    def sequence(self, state: KDNState, x, chunk, by_token=False):
        if by_token:
            return Rule.sequence(self, state, x, chunk, by_token)
        square, evidence = self._rates(x.key, x.gates)
        square, w = square.expand_as(evidence), torch.full_like(evidence, self.process_variance)
        course = mobius.course(state.precision, 1 + evidence * w, evidence * square, w, square)
        p = square / torch.cat([state.precision[None], course[:-1]]) + w
        memory, out = affine.sequence(state.memory, x.query, self._terms(p, x.key, x.value, x.gates), chunk)
        return KDNState(memory, course[-1]), out

    def _rates(self, key: Tensor, gates) -> tuple[Tensor, Tensor]:
        """a^2, and what a frame adds to the precision; both as the precision is shaped."""
        square = gates.retention.to(WIDE).square()
        spread = key.shape[-1] if self.spread is None else self.spread
        weight = gates.lr.to(WIDE) * spread / self.observation_variance
        evidence = (weight * key.to(WIDE).square()).sum(-2, keepdim=True).mT  # [..., K, 1]
        if self.kind == "iso":
            square, evidence = square.mean(-2, keepdim=True), evidence.mean(-2, keepdim=True)
        return square, evidence

    def _terms(self, p: Tensor, key: Tensor, value: Tensor, gates) -> Terms:
        key, value, weight = key.to(WIDE), value.to(WIDE), gates.lr.to(WIDE) / self.observation_variance
        gain, _ = covariance.gain(key * p.mT, key, weight)
        return Terms(gain.mT, key, value, gates.retention.to(WIDE))
