from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from streammem.chunk.rows import apart
from streammem.errors import ConfigError
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule

NOTHING = 1e-12  # a weight below which a memory is empty: without it the first rate would have an infinite gradient
FAR = 20.0  # nats


class Smoothing(NamedTuple):
    """Initial memory of a smoother whose bandwidth is learned."""

    memory: Tensor  # [..., K, V], what is read where nothing was written
    log_bandwidth: Tensor  # [..., 1, 1]


class SmootherState(NamedTuple):
    """The newest tokens, newest last, as departures from the initial memory."""

    memory: Tensor  # [..., K, V]
    log_bandwidth: Tensor  # [..., 1, 1]
    key: Tensor  # [..., slots, K]
    value: Tensor  # [..., slots, V], v - k M_0
    weight: Tensor  # [..., slots, 1]; 0 where the slot is free


@dataclass(frozen=True)
class KernelSmoother(Rule):
    """Kernel smoother over the newest tokens: Nadaraya-Watson, or softmax attention, and local linear regression.

        M_t = the newest `slots` tokens, each weighted by its rate, and by all retentions since
        w_i = weight_i exp(-|q - k_i|^2 / (2 h^2))
        constant:  o = q M_0 + sum_i w_i (v_i - k_i M_0) / sum_i w_i
        linear:    o = q M_0 + the value at q of argmin sum_i w_i |v_i - k_i M_0 - c - (k_i - q) S|^2 + ridge |S|^2

    slots: length of the buffer; the oldest go first, and tokens of zero rate take no room. bandwidth: h; on the unit
    sphere the constant fit is softmax(q . k / h^2). It is learned where the initial memory is a `Smoothing`, and the
    error then has to be that of tokens not yet written (ReadFirst), or h goes to zero. fit: as above. ridge: of the
    local slopes, in units of the mean weight.

    Shapes: memory [..., K, V] is M_0, read where nothing was written; one write takes N tokens. No chunk form: the
    buffer goes step by step.
    Units: bandwidth in those of the keys. Weights that have faded below 1e-12 fade to nothing. The constant fit
    averages all versions of a key that was overwritten, unless retention is below 1.
    Raises: ConfigError where a field makes no sense.
    Source: Nadaraya 1964, Watson 1964; as attention: Wang et al. 2025, arXiv:2501.12352.
    Differs: the buffer is bounded; the linear fit has a ridge, since it is singular for fewer than K + 1 tokens.
    """

    slots: int = 64
    bandwidth: float = 1.0
    fit: Literal["constant", "linear"] = "constant"
    ridge: float = 1e-6

    def __post_init__(self):
        if self.slots < 1 or not (self.bandwidth > 0 and self.ridge > 0):
            raise ConfigError(f"{self} makes no sense; wanted slots >= 1, bandwidth > 0 and ridge > 0")
        if self.fit not in ("constant", "linear"):
            raise ConfigError(f"the fit of KernelSmoother is {self.fit!r}; wanted 'constant' or 'linear'")

    def init(self, weights: Tensor | Smoothing) -> SmootherState:
        if isinstance(weights, Smoothing):
            memory, log_bandwidth = weights
        else:
            memory = weights
            log_bandwidth = torch.full_like(weights[..., :1, :1], self.bandwidth).log()
        widths = *memory.shape[-2:], 1
        held = (*memory.shape[:-2], self.slots)
        return SmootherState(memory, log_bandwidth, *(memory.new_zeros(*held, width) for width in widths))

    def write(self, state: SmootherState, key, value, gates) -> SmootherState:
        value = value - key @ state.memory
        weight = torch.cat([gates.retention * state.weight, gates.lr], -2)  # [..., slots + N, 1]
        order = (weight > 0).to(torch.uint8).argsort(dim=-2, stable=True)[..., -self.slots :, :]  # free slots go first
        held = torch.cat([state.key, key], -2), torch.cat([state.value, value], -2), weight
        kept = (a.gather(-2, order.expand(*order.shape[:-1], a.shape[-1])) for a in held)
        return SmootherState(state.memory, state.log_bandwidth, *kept)

    def read(self, state: SmootherState, query) -> Tensor:
        weight = self._weights(state, query)  # [..., N, slots]
        if self.fit == "constant":
            departure = (weight @ state.value) / weight.sum(-1, keepdim=True).clamp_min(NOTHING)
        else:
            departure = self._linear(state, query, weight).to(query.dtype)
        return query @ state.memory + departure

    def _weights(self, state: SmootherState, query) -> Tensor:
        """w of each slot, the largest of a query at most its own weight."""
        fit = -0.5 * apart(query, state.key) * torch.exp(-2 * state.log_bandwidth)  # [..., N, slots]
        used = (state.weight > 0).mT
        best = torch.where(used, fit, torch.finfo(fit.dtype).min).amax(-1, keepdim=True)
        # Free slots have no say in the largest: theirs is bounded, so that nothing times it is nothing.
        return state.weight.mT * (fit - best).clamp_max(FAR).exp()

    def _linear(self, state: SmootherState, query, weight) -> Tensor:
        """Local linear fit at each query, [..., N, V], by the K + 1 normal equations in float64."""
        weight, value = weight.to(WIDE), state.value.to(WIDE)
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(NOTHING)
        offset = (state.key[..., None, :, :] - query[..., :, None, :]).to(WIDE)  # [..., N, slots, K]
        design = torch.cat([torch.ones_like(offset[..., :1]), offset], -1)
        weighted = (design * weight[..., None]).mT  # [..., N, K + 1, slots]
        # The level has a ridge that nobody can see: it makes an empty memory solvable.
        ridge = torch.cat([value.new_full((1,), NOTHING), value.new_full(query.shape[-1:], self.ridge)])
        system = weighted @ design + ridge.diag()
        return torch.linalg.solve_ex(system, weighted @ value[..., None, :, :])[0][..., 0, :]
