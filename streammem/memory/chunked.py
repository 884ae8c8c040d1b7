"""Rules whose gradients are frozen for a chunk of frames: the length of the chunk is part of the rule."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError, ShapeError
from streammem.memory.algorithm import Descent, Momentum
from streammem.memory.architecture import Layered
from streammem.memory.covariance import WIDE
from streammem.memory.retention import Decay, Keep
from streammem.memory.rule import Composed, MemoryState, Rule
from streammem.types import Tokens


class FrozenState(NamedTuple):
    """State of the rule inside, the memory at which gradients are taken, and how many frames it has served."""

    inner: MemoryState
    anchor: object  # dual weights at the start of the chunk
    frames: Tensor  # [..., 1, 1] float64, 0 to chunk - 1


@dataclass(frozen=True)
class FrozenGradient(Rule):
    """Takes the gradients of `chunk` frames at the memory as it was before the first of them.

        g_t = gradient at A;  M_t as the rule inside makes it from g_t
        A <- M_t at every chunk-th frame

    The chunk changes what is learnt: it is what TTT calls a mini-batch, and how Titans, Miras and Atlas are trained.
    With chunk 1 this is the rule inside.

    Raises: ConfigError for a chunk below 1, or a rule that retains first.
    Source: Sun et al. 2024, arXiv:2407.04620; Behrouz et al. 2025, arXiv:2501.00663.
    """

    rule: Composed
    chunk: int

    def __post_init__(self):
        if self.chunk < 1:
            raise ConfigError(f"FrozenGradient has a chunk of {self.chunk} frames; wanted at least 1")
        if self.rule.retain_first:
            raise ConfigError(f"{self.rule} takes gradients at the retained memory; wanted retain_first=False")

    def init(self, weights) -> FrozenState:
        inner = self.rule.init(weights)
        first = next(tree.leaves(inner.dual))
        return FrozenState(inner, tree.clone(inner.dual), first.new_zeros(*first.shape[:-2], 1, 1, dtype=WIDE))

    def write(self, state: FrozenState, key, value, gates) -> FrozenState:
        rule = self.rule
        grads = rule.gradient(state.anchor, key, value, gates)
        algorithm, update = rule.algorithm.update(state.inner.algorithm, grads, gates)
        dual = rule.retention.merge(rule.retention.retain(state.inner.dual, gates.retention), update)
        full = state.frames + 1.5 > self.chunk
        anchor = tree.map(lambda new, old: torch.where(full, new, old), dual, state.anchor)
        return FrozenState(MemoryState(dual, algorithm), anchor, torch.where(full, 0, state.frames + 1))

    def read(self, state: FrozenState, query) -> Tensor:
        return self.rule.read(state.inner, query)

    def has_dual_form(self) -> bool:
        """Whether `scan_chunk` exists for the rule inside: linear retention, linear algorithm, layered memory."""
        rule = self.rule
        linear = isinstance(rule.retention, Keep | Decay) and isinstance(rule.algorithm, Descent | Momentum)
        return linear and isinstance(rule.memory, Layered)

    def scan_chunk(self, state: FrozenState, x: Tokens) -> tuple[FrozenState, Tensor]:
        """Up to `chunk` frames of one token each, at once: the dual form.

            W_t = a_t W_0 + b_t S_0 - sum_{j <= t} C_tj g_j,  g_j = input_j^T cotangent_j by map
            h W_t = a_t h W_0 + b_t h S_0 - sum_{j <= t} C_tj (h input_j) cotangent_j

        The state must stand at the start of a chunk.

        Shapes: x has tokens [..., T, .] and gates [..., T, 1], T <= chunk; readouts [..., T, V].
        Raises: ShapeError for longer chunks, ConfigError where there is no dual form.
        """
        steps = x.key.shape[-2]
        if steps > self.chunk:
            raise ShapeError(f"key is {list(x.key.shape)}; wanted [..., T, K] with T <= {self.chunk}, the chunk")
        if not self.has_dual_form():
            raise ConfigError(f"{self.rule} has no dual form; wanted Keep or Decay with Descent or Momentum")
        rule, weights = self.rule, state.anchor
        prediction, pullback = rule.memory.factors(weights, x.key)
        factors = pullback(x.gates.lr * rule.bias.grad(prediction, x.value))
        balls = state.inner.algorithm if isinstance(rule.algorithm, Momentum) else tree.zeros_like(weights)
        kept, ball, mixed, swung = self._coefficients(x)
        layers = list(zip(tree.leaves(weights), tree.leaves(balls), factors, strict=True))

        def through(w, s, factor):
            return lambda h: kept * (h @ w) + ball * (h @ s) - ((h @ factor.input.mT) * mixed) @ factor.cotangent

        readout = rule.memory.forward([through(*layer) for layer in layers], x.query)
        last = [
            kept[..., -1:, :] * w + ball[..., -1:, :] * s - (f.input * mixed[..., -1:, :].mT).mT @ f.cotangent
            for w, s, f in layers
        ]
        swing = [
            swung[1][..., -1:, :] * s - (f.input * swung[0][..., -1:, :].mT).mT @ f.cotangent for _, s, f in layers
        ]
        return self._state(state, last, swing, steps), readout

    def _coefficients(self, x: Tokens):
        """a, b [..., T, 1] and C [..., T, T] of `scan_chunk`; and the same of the momentum alone."""
        retention, momentum = x.gates.retention, x.gates.momentum
        decays = isinstance(self.rule.retention, Decay)
        swings = isinstance(self.rule.algorithm, Momentum)
        kept, fade = _products(retention if decays else torch.ones_like(retention))
        swing, echo = _products(momentum if swings else torch.zeros_like(momentum))
        return kept, fade @ swing, fade @ echo, (echo, swing)

    def _state(self, state: FrozenState, last, swing, steps: int) -> FrozenState:
        duals, balls = iter(last), iter(swing)
        dual = tree.map(lambda _: next(duals), state.anchor)
        algorithm = state.inner.algorithm
        if isinstance(self.rule.algorithm, Momentum):
            algorithm = tree.map(lambda _: next(balls), algorithm)
        if steps == self.chunk:
            return FrozenState(MemoryState(dual, algorithm), tree.clone(dual), torch.zeros_like(state.frames))
        return FrozenState(MemoryState(dual, algorithm), state.anchor, state.frames + steps)


def frozen_gradient(rule: Composed, chunk: int) -> Rule:
    """The rule with its gradients frozen for `chunk` frames; the rule itself for a chunk of 1."""
    return rule if chunk == 1 else FrozenGradient(rule, chunk)


def _products(gate: Tensor) -> tuple[Tensor, Tensor]:
    """Products of gates [..., T, 1]: from the first to t, [..., T, 1]; and from j + 1 to t, lower [..., T, T].

    By multiplication and not by logarithms, so that a gate may be zero.
    """
    steps = gate.shape[-2]
    rows = [torch.zeros_like(gate.mT)]  # row before the first
    one = torch.eye(steps, dtype=gate.dtype, device=gate.device)
    for t in range(steps):
        rows.append(rows[-1] * gate[..., t : t + 1, :] + one[t])
    return gate.cumprod(-2), torch.cat(rows[1:], -2)
