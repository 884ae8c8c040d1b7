"""Update rules that watch how much changed: by token a filter, by frame one number, by token two, or by direction."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from streammem.errors import ConfigError
from streammem.recon.update import Updated, UpdateRule, blend, opened

TINY = 1e-12


class KalmanOwn(NamedTuple):
    """What the filter carries."""

    variance: Tensor  # [B, S] of each token, in units of the candidate's
    candidate: Tensor  # [B, S, D] the last one
    usual: Tensor  # [B, 1] running mean of the drift; 0: none yet


@dataclass(frozen=True)
class Kalman(UpdateRule):
    """A scalar Kalman filter a token: what moves is believed quickly, what stands is averaged.

        d_j = mean_D (C_j,t - C_j,t-1)^2;  e = h e + (1 - h) mean_j d_j;  q_j = process d_j / e
        p- = p + q;  k = p- / (p- + 1)
        S_t = k C_t + (1 - k) S_{t-1};  p = (1 - k)^2 p- + k^2

    process: drift of an average token in units of the candidate's variance; the gain settles near its square root.
    prior: variance after the first view. memory: h, share of the running mean that is kept.
    Raises: ConfigError where a number is out of range.
    Source: FILT3R, arXiv:2603.18493: gain, Joseph form, and a drift of candidates normalised by a running mean.
    Differs: the source was read in summary; the drift's norm and the constants are ours.
    """

    process: float = 0.1
    prior: float = 1.0
    memory: float = 0.9

    def __post_init__(self):
        if not (self.process > 0 and self.prior > 0):
            raise ConfigError(f"process {self.process}, prior {self.prior}; wanted both above 0")
        _share("memory", self.memory)

    def init(self, tokens, feature_width):
        flat = torch.zeros_like(tokens[..., 0])
        return KalmanOwn(flat, torch.zeros_like(tokens), flat[:, :1])

    def update(self, own, old, candidate, evidence):
        first = evidence.first[:, None]
        drift = (candidate - own.candidate).square().mean(-1)  # [B, S]
        relative, usual = _relative(drift, own.usual, self.memory, evidence.first)
        prior = own.variance + self.process * relative
        gain = opened(prior / (prior + 1), evidence.first)
        posterior = (1 - gain).square() * prior + gain.square()
        variance = torch.where(first, torch.full_like(prior, self.prior), posterior)
        return Updated(KalmanOwn(variance, candidate, usual), blend(old, candidate, gain), gain)


class FrameOwn(NamedTuple):
    """What the frame's gate carries."""

    summary: Tensor  # [B, E] of the last view
    usual: Tensor  # [B, 1] running mean of the change; 0: none yet


@dataclass(frozen=True)
class FrameGate(UpdateRule):
    """One rate for all tokens of a view, from how much the image's feature changed.

        c = 1 - cos(g_t, g_{t-1});  e = h e + (1 - h) c
        o = gate / (1 - gate) c / e;  S_t = o / (1 + o) C_t + 1 / (1 + o) S_{t-1}

    gate: the rate of a view that changes as much as is usual. memory: h.
    Raises: ConfigError where a number is out of range.
    Source: the idea of one scalar a frame from feature change, arXiv:2605.16981; the equation is ours.
    """

    gate: float = 0.33
    memory: float = 0.9

    def __post_init__(self):
        _share("gate", self.gate)
        _share("memory", self.memory)

    def init(self, tokens, feature_width):
        return FrameOwn(tokens.new_zeros(len(tokens), feature_width), tokens.new_zeros(len(tokens), 1))

    def update(self, own, old, candidate, evidence):
        # as half a squared distance 1 - cos is never negative, and exactly 0 where nothing changed
        now, last = normalize(evidence.summary, dim=-1), normalize(own.summary, dim=-1)
        change = 0.5 * (now - last).square().sum(-1, keepdim=True)  # [B, 1]
        relative, usual = _relative(change, own.usual, self.memory, evidence.first)
        odds = self.gate / (1 - self.gate) * relative  # [B, 1]
        gate = opened((odds / (1 + odds)).expand_as(candidate[..., 0]), evidence.first)
        return Updated(FrameOwn(evidence.summary, usual), blend(old, candidate, gate), gate)


class ChangesOwn(NamedTuple):
    """What the temporal and spatial gate carries."""

    read: Tensor  # [B, S, D] what each token read from the last image
    usual_token: Tensor  # [B, 1] running means; 0: none yet
    usual_read: Tensor  # [B, 1]


@dataclass(frozen=True)
class TemporalSpatial(UpdateRule):
    """Two gates multiplied: how much a token changes, and how much changed in what it looks at.

        a_j = |C_j - S_j| / usual;  b_j = |r_j,t - r_j,t-1| / usual,  r_j what token j read from the image
        g_j = a_j / (1 + a_j) b_j / (1 + b_j);  S_t = g C_t + (1 - g) S_{t-1}

    usual: running means over tokens and views. memory: share of them that is kept.
    Raises: ConfigError where memory is out of range.
    Source: the idea of a temporal and a spatial gate, TTSA3R, arXiv:2601.22615; the equation is ours. The change
    of the image, weighted by attention, is taken as the change of what attention read, so that no map is needed.
    """

    memory: float = 0.9
    asks: ClassVar[frozenset[str]] = frozenset({"read"})

    def __post_init__(self):
        _share("memory", self.memory)

    def init(self, tokens, feature_width):
        none = tokens.new_zeros(len(tokens), 1)
        return ChangesOwn(torch.zeros_like(tokens), none, none)

    def update(self, own, old, candidate, evidence):
        a, token = _relative((candidate - old).norm(dim=-1), own.usual_token, self.memory, evidence.first)
        b, read = _relative((evidence.read - own.read).norm(dim=-1), own.usual_read, self.memory, evidence.first)
        gate = opened(a / (1 + a) * b / (1 + b), evidence.first)
        return Updated(ChangesOwn(evidence.read, token, read), blend(old, candidate, gate), gate)


@dataclass(frozen=True)
class Orthogonal(UpdateRule):
    """Only what the last updates did not already say is written, by token.

        u = C_t - S_{t-1};  n = m / |m|;  v = u - max(0, u . n) n
        S_t = S_{t-1} + gate v;  m = h m + (1 - h) u

    gate: the share of what is new. memory: h, over views.
    Raises: ConfigError where a number is out of range.
    Source: the idea of writing the part orthogonal to recent updates, from notes on DDD3R (unpublished); the equation
    is ours.
    """

    gate: float = 0.33
    memory: float = 0.7

    def __post_init__(self):
        _share("gate", self.gate)
        _share("memory", self.memory)

    def init(self, tokens, feature_width):
        return torch.zeros_like(tokens)

    def update(self, own, old, candidate, evidence):
        first = evidence.first[:, None, None]
        step = candidate - old
        lately = own / own.norm(dim=-1, keepdim=True).clamp(min=TINY)
        new = step - (step * lately).sum(-1, keepdim=True).clamp(min=0) * lately
        tokens = torch.where(first, candidate, old + self.gate * new)
        share = self.gate * new.norm(dim=-1) / step.norm(dim=-1).clamp(min=TINY)
        own = torch.where(first, torch.zeros_like(own), self.memory * own + (1 - self.memory) * step)
        return Updated(own, tokens, opened(share, evidence.first))


def _relative(change: Tensor, usual: Tensor, memory: float, first: Tensor) -> tuple[Tensor, Tensor]:
    """Changes [B, N] in units of their running mean [B, 1], and that mean; it begins with the second view."""
    mean = change.mean(-1, keepdim=True)
    usual = torch.where(usual > 0, memory * usual + (1 - memory) * mean, mean)
    relative = change / usual.clamp(min=TINY)
    return relative, torch.where(first[:, None], torch.zeros_like(usual), usual)


def _share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"{name} is {value}; wanted a share between 0 and 1")
