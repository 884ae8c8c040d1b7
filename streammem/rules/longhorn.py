from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from streammem.chunk import affine
from streammem.chunk.affine import Terms
from streammem.errors import ConfigError, NoKernel
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


@dataclass(frozen=True)
class Longhorn(Rule):
    """Longhorn: the implicit step on the l2 bias, stable at every rate.

        M_t = argmin_M |M - M_{t-1}|^2 + sum_i lr_i |k_i M - v_i|^2
        full:  M_t = M_{t-1} + k^T G (v - k M_{t-1}),              G = (I + lr k k^T)^{-1} lr
        diag:  M_t = (1 - diag(k^T G k)) M_{t-1} + k^T G v

    One token: G = lr / (1 + lr |k|^2). No retention gate: the distance to the old memory is all that retains.

    transition: "full" is the minimiser; "diag" keeps the diagonal of the transition only, as the published kernel does.

    Shapes: memory [..., K, V]; lr [..., N, 1], or [..., N, V] for a rate by value channel. Chunk form exact, for the
    full transition with one rate a token.
    Raises: ConfigError for another transition.
    Source: Liu et al. 2024, arXiv:2407.14207.
    Differs: tokens of one frame are minimised over jointly; for the token recurrence use TokenByToken.
    """

    transition: Literal["full", "diag"] = "full"

    def __post_init__(self):
        if self.transition not in ("full", "diag"):
            raise ConfigError(f"the transition of Longhorn is {self.transition!r}; wanted 'full' or 'diag'")

    def init(self, weights: Tensor) -> Tensor:
        return weights

    def write(self, state, key, value, gates) -> Tensor:
        g = _gain(key, gates.lr)
        if self.transition == "full":
            return state + key.mT @ _each(g, value - key @ state)
        moved = torch.einsum("...nk,...vnm,...mk->...kv", key, g, key)  # [..., K, V or 1]
        return (1 - moved) * state + key.mT @ _each(g, value)

    def read(self, state, query) -> Tensor:
        return query @ state

    def sequence(self, state, x, chunk, by_token=False):
        if self.transition == "diag" or x.gates.lr.shape[-1] > 1:
            raise NoKernel(
                f"{self} with lr {list(x.gates.lr.shape)} has no chunk form here; wanted the full transition and one "
                "rate a token, or chunk=None, which steps frame by frame"
            )
        lr, key = x.gates.lr, x.key
        if by_token:
            g = lr / (1 + lr * key.square().sum(-1, keepdim=True))
            terms = Terms(key, g * key, g * x.value, None)
        else:
            g = _gain(key, lr).squeeze(-3)
            terms = Terms(key, g @ key, g @ x.value, None)
        return affine.sequence(state, x.query, terms, chunk, by_token)


def _gain(key: Tensor, lr: Tensor) -> Tensor:
    """G for each value channel, or for all at once: [..., V or 1, N, N]."""
    k, rate = key.to(WIDE), lr.to(WIDE).mT[..., None]  # rate: [..., V or 1, N, 1]
    eye = torch.eye(key.shape[-2], dtype=WIDE, device=key.device)
    system = eye + rate * (k @ k.mT)[..., None, :, :]
    return torch.linalg.solve_ex(system, rate * eye)[0].to(key.dtype)


def _each(g: Tensor, x: Tensor) -> Tensor:
    """G applied to the tokens of each value channel of x [..., N, V]."""
    return (g @ x.mT[..., None]).squeeze(-1).mT
