"""Rules whose gradients are frozen for a chunk of frames: the length of the chunk is part of the rule."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.chunk.rows import by_frame, by_token, in_a_row, products
from streammem.errors import ConfigError, NoKernel
from streammem.memory.algorithm import Descent, Momentum
from streammem.memory.architecture import Factor, Layered
from streammem.memory.covariance import WIDE
from streammem.memory.retention import Decay, Keep
from streammem.memory.rule import Composed, MemoryState, Rule
from streammem.types import Gates, Tokens


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

    def sequence(self, state: FrozenState, x: Tokens, chunk: int, by_token: bool = False):
        """Chunks of frames at once, by the dual form. `chunk` is the rule's own: it says what is learnt.

            M_t = a_t A + b_t S_0 - sum_{j <= t} C_tj g_j,  g_j = input_j^T cotangent_j for each linear map
            h M_t = a_t h A + b_t h S_0 - sum_{j <= t} C_tj (h input_j) cotangent_j

        The state must stand at the start of a chunk; a sequence may end inside one.

        Raises: NoKernel where an axis is not linear in this sense, ConfigError for another chunk.
        """
        rule = self.rule
        linear = isinstance(rule.retention, Keep | Decay) and isinstance(rule.algorithm, Descent | Momentum)
        if by_token or not (linear and isinstance(rule.memory, Layered)):
            raise NoKernel(
                f"{self} has no dual form; wanted a layered memory, Keep or Decay, Descent or Momentum, whole frames, "
                "or chunk=None, which steps frame by frame"
            )
        if chunk != self.chunk:
            raise ConfigError(f"chunk is {chunk}; wanted {self.chunk}: a frozen gradient's chunk is part of the rule")
        readouts = []
        for start in range(0, len(x.key), chunk):
            state, out = self._chunk(state, tree.map(lambda a, s=start: a[s : s + chunk], x))
            readouts.append(out)
        return state, torch.cat(readouts)

    def _chunk(self, state: FrozenState, x: Tokens) -> tuple[FrozenState, Tensor]:
        steps, tokens = len(x.key), x.key.shape[-2]
        query, key, value, lr = (in_a_row(a) for a in (x.query, x.key, x.value, x.gates.lr))  # [..., T N, .]
        prediction, pullback = self.rule.memory.factors(state.anchor, key)
        factors = pullback(lr * self.rule.bias.grad(prediction, value))
        swings = isinstance(self.rule.algorithm, Momentum)
        balls = state.inner.algorithm if swings else tree.zeros_like(state.anchor)
        memory, ball = self._mixtures(x.gates, tokens)
        layers = list(zip(tree.leaves(state.anchor), tree.leaves(balls), factors, strict=True))
        out = self.rule.memory.forward([partial(_read, memory, *layer) for layer in layers], query)
        dual = _like(state.anchor, [_last(memory, *layer) for layer in layers])
        algorithm = _like(balls, [_last(ball, *layer) for layer in layers]) if swings else state.inner.algorithm
        full = steps == self.chunk
        anchor = tree.clone(dual) if full else state.anchor
        frames = torch.zeros_like(state.frames) if full else state.frames + steps
        return FrozenState(MemoryState(dual, algorithm), anchor, frames), by_frame(out, tokens)

    def _mixtures(self, gates: Gates, tokens: int) -> tuple["Mixture", "Mixture"]:
        """How the memory, and the momentum, of each frame are made from those before the chunk and its gradients."""
        decays, swings = isinstance(self.rule.retention, Decay), isinstance(self.rule.algorithm, Momentum)
        retention, momentum = (in_a_row(a) for a in (gates.retention, gates.momentum))  # [..., T, 1]
        kept, fade = products(retention if decays else torch.ones_like(retention))
        swing, echo = products(momentum if swings else torch.zeros_like(momentum))
        memory, ball = (kept, fade @ swing, fade @ echo), (torch.zeros_like(kept), swing, echo)
        return tuple(
            Mixture(*(by_token(a, tokens) for a in m[:2]), by_token(by_token(m[2], tokens).mT, tokens).mT)
            for m in (memory, ball)
        )


class Mixture(NamedTuple):
    """Weights at each token's frame: anchor, ball and minus the gradients, times these."""

    anchor: Tensor  # [..., T N, 1]
    ball: Tensor  # [..., T N, 1]
    gradients: Tensor  # [..., T N, T N]


def _read(mix: Mixture, w: Tensor, s: Tensor, factor: Factor, h: Tensor) -> Tensor:
    """h, each row through the weights of its own frame."""
    return mix.anchor * (h @ w) + mix.ball * (h @ s) - ((h @ factor.input.mT) * mix.gradients) @ factor.cotangent


def _last(mix: Mixture, w: Tensor, s: Tensor, factor: Factor) -> Tensor:
    """The weights of the last frame."""
    anchor, ball, gradients = (a[..., -1:, :] for a in mix)
    return anchor * w + ball * s - (factor.input * gradients.mT).mT @ factor.cotangent


def _like(weights, leaves):
    parts = iter(leaves)
    return tree.map(lambda _: next(parts), weights)


def frozen_gradient(rule: Composed, chunk: int) -> Rule:
    """The rule with its gradients frozen for `chunk` frames; the rule itself for a chunk of 1."""
    return rule if chunk == 1 else FrozenGradient(rule, chunk)
