from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.memory import covariance
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule
from streammem.rules.kalman import Surprise

CLIP, CLIPPED_MEAN = 2.25, 0.7784  # E min(z, 2.25) = 0.7784 for the square z of a standard normal
MOST = 1e4  # variance in units of the noise: as good as unknown


class Member(NamedTuple):
    """One way in which a map may move; variances in units of the noise, gained each frame."""

    drift: float  # of each entry of the map
    turn: float = 0.0  # of each entry of its velocity; a member without has none
    starts_over: bool = False  # where surprise has accumulated


class BankState(NamedTuple):
    """A filter for each member, and what is believed of it. All float64."""

    memory: Tensor  # [..., M, 2 K, V], position above velocity
    covariance: Tensor  # [..., M, 2 K, 2 K], P in units of the noise
    noise: Tensor  # [..., M, 1, 1], r
    evidence: Tensor  # [..., M, 1, 1], discounted log-likelihood
    score: Tensor  # [..., M, 1, 1], accumulated surprise
    tokens: Tensor  # [..., 1, 1, 1], number of tokens seen, discounted


MEMBERS = (
    Member(1e-3, starts_over=True),
    Member(0.03, starts_over=True),
    Member(0.1),
    Member(0.3),
    Member(1.0),
    Member(1e-5, 1e-5),
    Member(1e-5, 1e-4),
)


@dataclass(frozen=True)
class KalmanBank(Rule):
    """Bank of Kalman filters that need no tuning: each assumes another motion, the likeliest are read.

        each member:  M', P' = its motion;  e = v - k M';  s = k P' k^T + 1 / lr;  z = |e|^2 / (V r s)
        P' = P' + boost where its surprise is raised
        evidence = forget evidence + log t(e; r s);  r = r + r (min(z, 2.25) / 0.78 - 1) / tokens
        G, P = Kalman's, each token at the weight min(1, (degrees + 1) / (degrees + z))
        M_t = M' + G e;  read: the mean of the memories, weighted by softmax(evidence)

    members: the motions. degrees: of Student's t, which keeps outliers out. forget: share of the evidence kept a frame,
    so that what is likely may change. window: tokens over which the noise is measured. surprise: detector of abrupt
    change; its boost is in units of the noise. prior_variance: of the initial memory, in these units too.

    Shapes: memory [..., K, V]; one write takes N tokens. The state is M (1 + 4 K / V + ...) times a matrix memory. No
    chunk form: each frame weighs the members anew.
    Units: none but those of the noise, which is measured: scaling all values changes nothing but the scale.
    Raises: ConfigError where a field makes no sense.
    Source: multiple models: Magill 1965; forgetting of their evidence: Raftery et al. 2010; robust weights: Lange et
    al. 1989. The combination is ours.
    """

    members: tuple[Member, ...] = MEMBERS
    degrees: float = 4.0
    forget: float = 0.98
    window: float = 200.0
    prior_variance: float = 100.0
    surprise: Surprise = Surprise(leak=0.7, threshold=8.0, boost=30.0, cap=10.0, slack=0.5)

    def __post_init__(self):
        if not self.members or min(min(m.drift, m.turn) for m in self.members) < 0:
            raise ConfigError(
                f"KalmanBank has members {self.members}; wanted at least one, none with a negative variance"
            )
        if not (self.degrees > 0 and 0 <= self.forget < 1 and self.window >= 1 and 0 < self.prior_variance <= MOST):
            raise ConfigError(
                f"{self} makes no sense; wanted degrees > 0, forget in [0, 1), window >= 1, prior in (0, {MOST:g}]"
            )

    def init(self, weights: Tensor) -> BankState:
        lead, width = (*weights.shape[:-2], len(self.members)), weights.shape[-2]
        memory = torch.cat([weights, torch.zeros_like(weights)], -2).to(WIDE)[..., None, :, :]
        moves = self._each([float(m.turn > 0) for m in self.members], memory)
        p = self._diagonal(self.prior_variance + 0 * moves, 1e-4 * self.prior_variance * moves, width)
        one = memory.new_ones(*lead, 1, 1)
        memory, p = memory.expand(*lead, -1, -1).clone(), p.expand(*lead, -1, -1).clone()
        return BankState(
            memory, p, one, *(torch.zeros_like(one) for _ in range(2)), torch.zeros_like(one[..., :1, :, :])
        )

    def predict(self, state: BankState, retention: Tensor) -> BankState:
        """The state one frame later, before that frame is seen."""
        width = state.memory.shape[-2] // 2
        a = retention.to(WIDE)[..., None, :, :]
        eye = torch.eye(width, dtype=WIDE, device=a.device)
        kept, still = a * eye, eye + 0 * a
        move = torch.cat([torch.cat([kept, kept], -1), torch.cat([0 * still, still], -1)], -2)
        drift, turn = (
            self._each(values, a) for values in ([m.drift for m in self.members], [m.turn for m in self.members])
        )
        p = move @ state.covariance @ move.mT + self._diagonal(drift, turn, width)
        return state._replace(memory=move @ state.memory, covariance=p)

    def write(self, state: BankState, key, value, gates) -> BankState:
        state = self.predict(state, gates.retention)
        width = key.shape[-1]
        key = torch.nn.functional.pad(key, (0, width)).to(WIDE)[..., None, :, :]  # [..., 1, N, 2 K]
        value, lr = value.to(WIDE)[..., None, :, :], gates.lr.to(WIDE)[..., None, :, :]
        error, known = value - key @ state.memory, lr > 0  # [..., M, N, V]
        p, r = state.covariance, state.noise
        spread = key @ p
        s = covariance.expected(spread, key, lr)  # [..., M, N, 1]
        z = error.square().mean(-1, keepdim=True) / (r * s)
        score = self.surprise.score(state.score, z, known)
        alarm = self.surprise.raised(score) * self._each([float(m.starts_over) for m in self.members], p)
        p = p + self._diagonal(alarm, 0 * alarm, width)
        spread = key @ p
        again = error.square().mean(-1, keepdim=True) / (r * covariance.expected(spread, key, lr))
        weight = lr * ((self.degrees + 1) / (self.degrees + again)).clamp_max(1)
        gain, p = covariance.condition(p, spread, key, weight)
        evidence, noise, tokens = self._judged(state, z, s, known, value.shape[-1])
        return BankState(state.memory + gain @ error, covariance.bounded(p, MOST), noise, evidence, score, tokens)

    def read(self, state: BankState, query) -> Tensor:
        memory = (self.beliefs(state) * state.memory).sum(-3)[..., : query.shape[-1], :]
        return (query.to(WIDE) @ memory).to(query.dtype)

    def beliefs(self, state: BankState) -> Tensor:
        """Probability of each member, [..., M, 1, 1]."""
        return state.evidence.softmax(-3)

    def _judged(self, state: BankState, z, s, known, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Evidence, noise and tokens after a frame; z is by token, a mean over the `width` channels of values."""
        seen = known.to(WIDE)
        count = seen.sum(-2, keepdim=True)
        t = self.degrees
        log = -0.5 * width * (state.noise * s).log() - 0.5 * (t + width) * torch.log1p(width * z / t)
        evidence = (1 - (1 - self.forget) * (count > 0).to(WIDE)) * state.evidence + (seen * log).sum(-2, keepdim=True)
        tokens = (1 - 1 / self.window) * state.tokens + count
        change = (seen * (z.clamp_max(CLIP) / CLIPPED_MEAN - 1)).sum(-2, keepdim=True) / tokens.clamp_min(1)
        return evidence, state.noise * (1 + change).clamp(0.5, 2), tokens

    def _each(self, values: list[float], like: Tensor) -> Tensor:
        """A number for each member, [M, 1, 1]."""
        return torch.cat([like.new_full((1, 1, 1), x) for x in values])

    def _diagonal(self, position: Tensor, velocity: Tensor, width: int) -> Tensor:
        """[..., M, 1, 1] twice -> [..., M, 2 K, 2 K]."""
        both = [x.squeeze(-1).expand(*x.shape[:-2], width) for x in (position, velocity)]
        return torch.cat(both, -1).diag_embed()
