from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.chunk import affine
from streammem.chunk.affine import Terms
from streammem.errors import ConfigError
from streammem.memory.rule import Rule


class PreconditionedState(NamedTuple):
    """The memory, and how much of each key channel was seen."""

    memory: Tensor  # [..., K, V]
    curvature: Tensor  # [..., K, 1], A, float32 at least


@dataclass(frozen=True)
class PreconditionedDelta(Rule):
    """Preconditioned delta rule: a bounded diagonal curvature scales the key where it writes.

        A_t = decay A_{t-1} + sum_i k_i^2
        P_t = base^{-s(log A_t - centre)},  s(r) = r / (1 + |r|)
        R_t = a_t M_{t-1};  M_t = R_t + sum_i lr_i (P_t * k_i)^T (v_i - k_i R_t)

    Channels that were seen much are written less; P stays within [1 / base, base]. base 1 is `gated_delta`. Tokens of
    zero rate are no tokens: neither seen nor, if all of a frame are, is the curvature aged.

    Shapes: memory [..., K, V]; one write takes N tokens; retention [..., 1, 1] or [..., K, 1]. Chunk form exact: the
    curvature goes step by step, for K numbers a frame, the memory in chunks.
    Units: none; stable while base * lr * lambda_max(sum_i k_i^T k_i) < 2.
    Raises: ConfigError where base is below 1 or decay outside [0, 1].
    Source: arXiv:2604.21100; numbers from the public implementation.
    Differs: base, centre and decay are numbers; tokens of one frame share one gradient.
    """

    base: float = 1.5
    centre: float = -0.2
    decay: float = 0.99

    def __post_init__(self):
        if not (self.base >= 1 and 0 <= self.decay <= 1):
            raise ConfigError(f"{self} has a base or decay that makes no sense; wanted base >= 1, decay in [0, 1]")

    def init(self, weights: Tensor) -> PreconditionedState:
        wide = torch.promote_types(weights.dtype, torch.float32)
        return PreconditionedState(weights, torch.ones_like(weights[..., :1], dtype=wide))

    def write(self, state: PreconditionedState, key, value, gates) -> PreconditionedState:
        curvature = self._seen(state.curvature, key, gates.lr)
        memory = affine.write(state.memory, self._terms(curvature, key, value, gates))
        return PreconditionedState(memory, curvature)

    def read(self, state: PreconditionedState, query) -> Tensor:
        return query @ state.memory

    def sequence(self, state: PreconditionedState, x, chunk, by_token=False):
        if by_token:
            return Rule.sequence(self, state, x, chunk, by_token)
        curvature, course = state.curvature, []
        for key, lr in zip(x.key, x.gates.lr):
            curvature = self._seen(curvature, key, lr)
            course.append(curvature)
        terms = self._terms(torch.stack(course), x.key, x.value, x.gates)
        memory, out = affine.sequence(state.memory, x.query, terms, chunk)
        return PreconditionedState(memory, curvature), out

    def _seen(self, curvature: Tensor, key: Tensor, lr: Tensor) -> Tensor:
        known = lr > 0  # [..., N, 1]
        square = torch.where(known, key.to(curvature.dtype).square(), torch.zeros_like(key, dtype=curvature.dtype))
        aged = self.decay * curvature + square.sum(-2, keepdim=True).mT
        return torch.where(known.any(-2, keepdim=True), aged, curvature)

    def _terms(self, curvature: Tensor, key: Tensor, value: Tensor, gates) -> Terms:
        r = curvature.clamp_min(1e-12).log() - self.centre
        scale = self.base ** (-r / (1 + r.abs()))  # [..., K, 1]
        written = key * scale.mT.to(key.dtype)
        return Terms(written, gates.lr * key, gates.lr * value, gates.retention)
