"""Write gates: what is worth remembering. A gate makes the learning rate of each token, exactly zero where it is shut.

A gate works in two parts, so that a recorded sequence goes in parallel as far as it can: `logits` of any number of
frames at once, and `rate`, which goes from frame to frame where the gate has a state or asks the memory.
"""

import abc
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem.errors import ConfigError


class Ruled(NamedTuple):
    """What a gate rules on a frame."""

    rate: Tensor  # [..., H, N, 1], 0 to 1; 0 leaves no trace
    cost: Tensor  # [..., H, N, 1], how much of the gate is open, with a gradient: what a write cost is paid on


class Alignment(nn.Module):
    """Averaged alignment, before any softmax, of a token's key with learned queries of each head.

        a = mean_s(q_s k) / sqrt(K) + b,    k = W silu(W x)

    Shapes: x [..., N, D] -> [..., H, N, 1].
    Source: TTT3R, Chen et al. 2025, arXiv:2509.26645, whose queries are the state's tokens.
    Differs: the queries are learned, the mean is over them, and the head has a bias.
    """

    def __init__(self, dim: int, heads: int, queries: int = 4, key: int = 32, bias: float = 0.0):
        super().__init__()
        self.keys = nn.Sequential(nn.Linear(dim, key), nn.SiLU(), nn.Linear(key, key))
        self.queries = nn.Parameter(torch.randn(heads, queries, key))
        self.bias = nn.Parameter(torch.full((heads, 1, 1), bias))

    def forward(self, x: Tensor) -> Tensor:
        key = self.keys(x)  # [..., N, K]
        mean = self.queries.mean(1)  # [H, K]: by linearity the mean of the products
        return (key @ mean.mT).mT.unsqueeze(-1) / key.shape[-1] ** 0.5 + self.bias


class WriteGate(nn.Module, abc.ABC):
    """The learning rate of each token of a frame.

    in_order: the rate depends on the frames before; else all frames may be ruled at once. asks: it depends on what the
    memory predicts of the frame.

    Shapes: x [..., N, D], confidence [...] or None -> logits [..., H, N, 1] (Given: 2, alignment and confidence).
    """

    in_order = False
    asks = False

    def __init__(self, dim: int, heads: int, bias: float = 0.0):
        super().__init__()
        self.heads = heads
        self.alignment = Alignment(dim, heads, bias=bias)

    def logits(self, x: Tensor, confidence: Tensor | None = None) -> Tensor:
        """The part that sees one frame alone."""
        return self.alignment(x)

    def init_state(self, batch: int, tokens: int):
        """State before the first frame."""
        return ()

    @abc.abstractmethod
    def rate(self, state, logits: Tensor, elapsed_s: Tensor, error: Tensor | None = None) -> tuple:
        """Returns (state, Ruled).

        elapsed_s: since the frame before, [B]. error: value - prediction [..., H, N, V], where the gate asks.
        """


class Given(WriteGate):
    """Opens as far as the confidence says that came with the observation.

        rate = c sigmoid(a)

    Raises: ConfigError where an observation brings no confidence.
    """

    def logits(self, x, confidence=None):
        if confidence is None:
            raise ConfigError("the gate is Given and the observation has no confidence; wanted [B], or a learned gate")
        given = confidence[..., None, None, None].to(x.dtype)
        return torch.cat([self.alignment(x), given.expand(*x.shape[:-2], self.heads, x.shape[-2], 1)], -1)

    def rate(self, state, logits, elapsed_s, error=None):
        alignment, given = logits.split(1, -1)
        share = given * alignment.sigmoid()
        return state, Ruled(share, share)


class Checked(Given):
    """Opens where the confidence says so and the observation agrees: a confidence that errs is overruled.

        s = sigmoid(a);  rate = c s where s > threshold, else 0

    What the check goes by is learned, from episodes in which confidences err.

    Raises: ConfigError where an observation brings no confidence, or the threshold is no share.
    """

    def __init__(self, dim: int, heads: int, threshold: float = 0.5, bias: float = 1.0):
        super().__init__(dim, heads, bias)
        _share("threshold", threshold)
        self.threshold = threshold

    def rate(self, state, logits, elapsed_s, error=None):
        alignment, given = logits.split(1, -1)
        share = alignment.sigmoid()
        return state, Ruled(given * torch.where(share > self.threshold, share, 0.0), given * share)


class Confirmed(Given):
    """Opens when confidence comes again within a short time: one that errs alone opens nothing.

        S = exp(-elapsed_s / memory_s) S + c;  rate = c sigmoid(a) where S > high, else 0

    With the defaults any two of three steps of 40 ms open it, the one in the middle lost or not.

    Raises: ConfigError where an observation brings no confidence, or memory_s is not positive.
    Source: our form of accumulated evidence, as in `memory.gates.Evidence`.
    """

    in_order = True

    def __init__(self, dim: int, heads: int, memory_s: float = 0.06, high: float = 1.2, bias: float = 0.0):
        super().__init__(dim, heads, bias)
        if not memory_s > 0:
            raise ConfigError(f"memory_s is {memory_s}; wanted seconds above 0")
        self.memory_s, self.high = memory_s, high

    def init_state(self, batch, tokens):
        return self.alignment.bias.new_zeros(batch, self.heads, tokens, 1)  # S

    def rate(self, state: Tensor, logits, elapsed_s, error=None):
        alignment, given = logits.split(1, -1)
        kept = (-elapsed_s / self.memory_s).exp().to(logits.dtype)[:, None, None, None]
        score = kept * state + given
        share = given * alignment.sigmoid()
        return score, Ruled(torch.where(score > self.high, share, 0.0), share)


class Soft(WriteGate):
    """Never quite shut: the baseline that drifts over thousands of steps.

    rate = sigmoid(a)
    """

    def rate(self, state, logits, elapsed_s, error=None):
        share = logits.sigmoid()
        return state, Ruled(share, share)


class HardThreshold(WriteGate):
    """Exactly zero below a threshold.

        s = sigmoid(a);  rate = s where s > raised threshold, else 0

    raised: share of the threshold that holds, a buffer; training may raise it from 0, where the gate is soft. through:
    whether the gradient is that of s everywhere, also where the gate is shut; else it is that of the rate, and what is
    shut stays so for all the loss says.

    Raises: ConfigError where the threshold is no share.
    Source: straight-through gradients, Bengio et al. 2013, arXiv:1308.3432.
    """

    def __init__(self, dim: int, heads: int, threshold: float = 0.5, through: bool = True, bias: float = 0.0):
        super().__init__(dim, heads, bias)
        _share("threshold", threshold)
        self.threshold, self.through = threshold, through
        self.register_buffer("raised", torch.ones(()))

    def rate(self, state, logits, elapsed_s, error=None):
        share = logits.sigmoid()
        open_ = share > self.raised * self.threshold
        return state, Ruled(_through(share, open_) if self.through else torch.where(open_, share, 0.0), share)


class HardConcrete(WriteGate):
    """A gate that is exactly 0 or 1 with a chance, and has a gradient: noisy in training, its own mode after it.

        s = sigmoid((log u - log(1 - u) + a) / beta), u uniform;  in evaluation s = sigmoid(a)
        rate = min(1, max(0, s (zeta - gamma) + gamma));  cost = sigmoid(a - beta log(-gamma / zeta)), P(rate > 0)

    Source: Louizos et al. 2018, arXiv:1712.01312, eq. (10) to (13).
    """

    beta, gamma, zeta = 2 / 3, -0.1, 1.1

    def rate(self, state, logits, elapsed_s, error=None):
        if self.training:
            u = torch.rand_like(logits).clamp(1e-6, 1 - 1e-6)
            s = ((u.log() - (-u).log1p() + logits) / self.beta).sigmoid()
        else:
            s = logits.sigmoid()
        share = (s * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)
        shift = self.beta * math.log(-self.gamma / self.zeta)
        return state, Ruled(share, (logits - shift).sigmoid())


class EvidenceState(NamedTuple):
    """The evidence so far, and whether the gate stands open."""

    score: Tensor  # [B, H, N, 1]
    open: Tensor  # [B, H, N, 1], 0 or 1


class Evidence(WriteGate):
    """Opens when evidence has gathered for some time, and shuts when it has gone: one false frame opens nothing.

        l = exp(-elapsed_s / memory_s);  S = l S + (1 - l) a
        open where S > high, and on until S <= low;  rate = open sigmoid(S)

    memory_s: how far back evidence counts. A steady alignment gives the same S at any rate of frames. The gradient is
    that of sigmoid(S), open or not.

    Raises: ConfigError where memory_s is not positive, or low is above high.
    Source: our form of accumulated evidence with hysteresis, as in `memory.gates.Evidence`.
    """

    in_order = True

    def __init__(
        self, dim: int, heads: int, memory_s: float = 0.06, high: float = 0.5, low: float = 0.0, bias: float = 0.0
    ):
        super().__init__(dim, heads, bias)
        if not (memory_s > 0 and low <= high):
            raise ConfigError(f"memory_s is {memory_s}, low {low}, high {high}; wanted memory_s > 0, low <= high")
        self.memory_s, self.high, self.low = memory_s, high, low

    def init_state(self, batch, tokens):
        zero = self.alignment.bias.new_zeros(batch, self.heads, tokens, 1)
        return EvidenceState(zero, zero.clone())

    def rate(self, state: EvidenceState, logits, elapsed_s, error=None):
        leak = (-elapsed_s / self.memory_s).exp().to(logits.dtype)[:, None, None, None]
        score = leak * state.score + (1 - leak) * logits
        open_ = torch.where(score > self.high, 1.0, torch.where(score > self.low, state.open, 0.0)).to(score.dtype)
        share = score.sigmoid()
        return EvidenceState(score, open_), Ruled(_through(share, open_ > 0), share)


class Surprise(WriteGate):
    """Opens for what is relevant and not yet known: alignment, raised by the error of the memory's own prediction.

        z = min(|v - k M|^2 / V, cap);  s = sigmoid(a + w (z - known));  rate = s where s > threshold, else 0

    w > 0 and known > 0 are learned; at z = known the error neither opens nor shuts. What the memory already says right
    is not written again. Stepped: each rate depends on the memory before.

    Source: surprise as the memory's own error, Titans, Behrouz et al. 2025, arXiv:2501.00663.
    Differs: it decides whether to write, beside how much.
    """

    in_order = True
    asks = True

    def __init__(self, dim: int, heads: int, threshold: float = 0.5, cap: float = 4.0, bias: float = 0.0):
        super().__init__(dim, heads, bias)
        _share("threshold", threshold)
        self.threshold, self.cap = threshold, cap
        self.weight = nn.Parameter(torch.zeros(heads, 1, 1))  # w = softplus(weight)
        self.known = nn.Parameter(torch.full((heads, 1, 1), -2.0))  # known = softplus(known)

    def rate(self, state, logits, elapsed_s, error=None):
        z = error.square().mean(-1, keepdim=True).clamp_max(self.cap)
        weight, known = nn.functional.softplus(self.weight), nn.functional.softplus(self.known)
        share = (logits + weight * (z - known)).sigmoid()
        return state, Ruled(_through(share, share > self.threshold), share)


GATES = {
    "given": Given,
    "checked": Checked,
    "confirmed": Confirmed,
    "soft": Soft,
    "hard": HardThreshold,
    "hard_concrete": HardConcrete,
    "evidence": Evidence,
    "surprise": Surprise,
}


def _through(share: Tensor, open_: Tensor) -> Tensor:
    """`share` where open and exactly 0 elsewhere; the gradient is that of `share` everywhere."""
    shut = torch.where(open_, torch.zeros_like(share), share).detach()
    return share - shut


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value}; wanted a share, 0 to 1")
