"""Gates as values: how much of a frame a memory lets in, from what it predicted and what came."""

import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError
from streammem.memory.rule import Rule


class Observed(NamedTuple):
    """A frame beside what the memory said of it."""

    prediction: Tensor  # [..., N, V]
    value: Tensor  # [..., N, V]
    known: Tensor  # [..., N, 1] bool, tokens of a rate above 0

    def surprise(self, variance: float, cap: float = float("inf")) -> Tensor:
        """Mean over known tokens of |e|^2 / (V variance), each at most `cap`: [..., 1, 1]."""
        each = ((self.value - self.prediction).square().mean(-1, keepdim=True) / variance).clamp_max(cap)
        seen = self.known.to(each.dtype)
        return (seen * each).sum(-2, keepdim=True) / seen.sum(-2, keepdim=True).clamp_min(1)


class Gate(abc.ABC):
    """Share of its rate that each token keeps."""

    @abc.abstractmethod
    def init(self, like: Tensor):
        """Returns the state before the first frame; like: [..., 1, 1]."""

    @abc.abstractmethod
    def share(self, state, seen: Observed) -> tuple:
        """Returns (state, share): [..., N, 1], or [..., 1, 1] for the frame as a whole; 0 is shut."""


@dataclass(frozen=True)
class Constant(Gate):
    """The same share for everything."""

    value: float = 1.0

    def init(self, like):
        return ()

    def share(self, state, seen):
        return state, torch.full_like(seen.value[..., :1, :1], self.value)


@dataclass(frozen=True)
class Confidence(Gate):
    """Sigmoid of how well a token agrees with what the memory says of it; a memory's first frame passes whole.

    share_i = sigmoid(<prediction_i, value_i> / sqrt(V))

    Source: TTT3R, Chen et al. 2025, arXiv:2509.26645, whose alignment is between state and frame tokens: `alignment`.
    """

    def init(self, like):
        return torch.zeros_like(like)  # 1 once there was a frame

    def share(self, state, seen):
        width = seen.value.shape[-1]
        agreement = (seen.prediction * seen.value).sum(-1, keepdim=True) / width**0.5
        begun = torch.maximum(state, seen.known.any(-2, keepdim=True).to(state.dtype))
        return begun, torch.where(state > 0, agreement.sigmoid(), 1)


@dataclass(frozen=True)
class Surprise(Gate):
    """Open in frames whose surprise is above `threshold`, and in no others.

    variance: of a value channel around its prediction while nothing has changed.
    """

    variance: float
    threshold: float = 4.0

    def __post_init__(self):
        _check_variance(self)

    def init(self, like):
        return ()

    def share(self, state, seen):
        return state, (seen.surprise(self.variance) > self.threshold).to(seen.value.dtype)


class EvidenceState(NamedTuple):
    """The evidence so far, and whether the gate stands open."""

    score: Tensor  # [..., 1, 1]
    open: Tensor  # [..., 1, 1], 0 or 1


@dataclass(frozen=True)
class Evidence(Gate):
    """Opens when accumulated surprise says that something has changed, and shuts when it has been learnt.

        z = mean_i min(|e_i|^2 / (V variance), cap) - 1
        score_t = max(0, leak score_{t-1} + z - slack)
        open while score > high, and on until score <= low

    One outlier of any size adds at most cap - 1 - slack, and so cannot open the gate. leak 0 is a gate of instant
    surprise; low = high = -inf always writes.

    variance: of a value channel around its prediction while nothing has changed.

    Raises: ConfigError where the numbers make no sense.
    Source: our form of accumulated surprisal gating, after Soriano et al. 2026, arXiv:2607.18899, whose equations could
    not be had.
    """

    variance: float
    leak: float = 0.9
    slack: float = 0.5
    cap: float = 5.0
    high: float = 8.0
    low: float = 2.0

    def __post_init__(self):
        _check_variance(self)
        if not (0 <= self.leak < 1 and self.cap > 0 and self.low <= self.high):
            raise ConfigError(f"{self} makes no sense; wanted leak in [0, 1), cap above 0, low <= high")

    def init(self, like):
        return EvidenceState(torch.zeros_like(like), torch.zeros_like(like))

    def share(self, state: EvidenceState, seen):
        z = seen.surprise(self.variance, self.cap) - 1
        score = (self.leak * state.score + z - self.slack).clamp_min(0)
        score = torch.where(seen.known.any(-2, keepdim=True), score, state.score)
        open_ = torch.where(score > self.high, 1, torch.where(score > self.low, state.open, 0))
        return EvidenceState(score, open_), open_


class GatedState(NamedTuple):
    """State of the rule, and of its gate."""

    inner: object
    gate: object


@dataclass(frozen=True)
class Gated(Rule):
    """A rule behind a gate: rates are scaled by the gate's share, and a frame that is shut out leaves no trace.

        share = gate(k M_{t-1}, v);  M_t = what the rule makes of rates share lr, or M_{t-1} where every share is 0

    A frame that is shut out does not age the memory either. No chunk form: each share depends on the memory before.

    Shapes: as the rule has them.
    """

    rule: Rule
    gate: Gate

    def init(self, weights) -> GatedState:
        like = next(tree.leaves(weights))[..., :1, :1]
        return GatedState(self.rule.init(weights), self.gate.init(like))

    def write(self, state: GatedState, key, value, gates) -> GatedState:
        seen = Observed(self.rule.read(state.inner, key), value, (gates.lr > 0).any(-1, keepdim=True))
        gate, share = self.gate.share(state.gate, seen)
        new = self.rule.write(state.inner, key, value, gates._replace(lr=share * gates.lr))
        passed = (share > 0).any(-2)[..., 0]  # [...]

        def pick(a, b):
            return torch.where(passed.reshape(*passed.shape, *[1] * (a.ndim - passed.ndim)), a, b)

        return GatedState(tree.map(pick, new, state.inner), gate)

    def read(self, state: GatedState, query) -> Tensor:
        return self.rule.read(state.inner, query)


GATES = {"constant": Constant, "confidence": Confidence, "surprise": Surprise, "evidence": Evidence}


def alignment(query: Tensor, key: Tensor) -> Tensor:
    """Mean over the frame's keys of the scaled products q k^T / sqrt(K): [..., S, K], [..., N, K] -> [..., S, 1].

    By linearity the product with the mean key: no S x N logits are formed. float32 at least.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    mean = key.to(wide).mean(-2, keepdim=True)
    return (query.to(wide) * mean).sum(-1, keepdim=True) / query.shape[-1] ** 0.5


def blend(state: Tensor, proposal: Tensor, share: Tensor) -> Tensor:
    """state + share (proposal - state); exactly the proposal where share is 1, and the state where it is 0."""
    return torch.lerp(state, proposal, share.to(state.dtype))


def _check_variance(gate):
    if not gate.variance > 0:
        raise ConfigError(f"the variance of {gate} is not positive; wanted that of the values around their prediction")
