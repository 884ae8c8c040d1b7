from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from streammem.chunk import affine, layout
from streammem.chunk.solve import Effort, chebyshev, conjugate_gradient, solved
from streammem.errors import ConfigError
from streammem.memory.rule import Rule

SOLVERS = {"cg": conjugate_gradient, "chebyshev": chebyshev}


class MesaWeights(NamedTuple):
    """An initial memory, and the ridge of each key channel: both can be learned."""

    memory: Tensor  # [..., K, V]
    ridge: Tensor  # [..., K, 1], above 0


class MesaState(NamedTuple):
    """Sums of the discounted tokens, and what the ridge pulls to. Float32 at least."""

    information: Tensor  # [..., K, K], H
    target: Tensor  # [..., K, V], G
    prior: Tensor  # [..., K, V], M_0
    ridge: Tensor  # [..., K, 1]


@dataclass(frozen=True)
class Mesa(Rule):
    """Mesa layer: discounted least squares with a constant ridge, solved when it is read.

        H_t = a_t H_{t-1} + sum_i lr_i k_i^T k_i;  G_t = a_t G_{t-1} + sum_i lr_i k_i^T v_i
        M_t = (H_t + L)^{-1} (G_t + L M_0),  L = ridge + adaptive |H_t|_F
        y_t = (mix x + (1 - mix) q_t) (G_t + L M_0),  x = q_t (H_t + L)^{-1}, by iteration

    ridge: of every channel, unless the weights are `MesaWeights`. adaptive: share of |H| that the ridge gains: Gated
    KalmaNet, whose systems have a condition of at most (1 + adaptive) / adaptive; its numbers are ridge near 0,
    adaptive 0.02 and Chebyshev. solver: "cg", conjugate gradients that stop by row below a residual of `tolerance`, or
    "chebyshev", a fixed polynomial, gentler to the gradients of stacked layers. mix 0 is gated linear attention.

    Shapes: memory [..., K, V]; one write takes N tokens; retention [..., 1, 1]. Chunk form exact: the systems of all
    tokens of all chunks at once.
    Units: ridge in squared units of the keys.
    Raises: ConfigError where ridge or adaptive make no sense.
    Source: von Oswald et al. 2025, arXiv:2506.05233; adaptive: Gated KalmaNet, arXiv:2511.21016.
    Differs: the ridge pulls to the initial memory. Gradients are those of the exact solution.
    """

    ridge: float = 1.0
    adaptive: float = 0.0
    solver: Literal["cg", "chebyshev"] = "cg"
    iterations: int = 30
    tolerance: float = 0.0
    mix: float = 1.0

    def __post_init__(self):
        if not (self.ridge > 0 and self.adaptive >= 0):
            raise ConfigError(f"{self} has a ridge that makes no sense; wanted ridge > 0 and adaptive >= 0")
        if self.solver not in SOLVERS or self.iterations < 1 or not self.tolerance >= 0:
            raise ConfigError(f"{self} cannot solve; wanted 'cg' or 'chebyshev', iterations >= 1, tolerance >= 0")

    def init(self, weights: Tensor | MesaWeights) -> MesaState:
        if isinstance(weights, Tensor):
            weights = MesaWeights(weights, torch.full_like(weights[..., :1], self.ridge))
        memory, ridge = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in weights)
        square = memory.new_zeros(*memory.shape[:-1], memory.shape[-2])
        return MesaState(square, torch.zeros_like(memory), memory, ridge)

    def write(self, state: MesaState, key, value, gates) -> MesaState:
        dtype = state.target.dtype
        left, a = (gates.lr * key).to(dtype).mT, gates.retention.to(dtype)
        return state._replace(
            information=a * state.information + left @ key.to(dtype), target=a * state.target + left @ value.to(dtype)
        )

    def read(self, state: MesaState, query) -> Tensor:
        q, size = query.to(state.target.dtype), _norm(state.information)
        ridge = state.ridge.mT + self.adaptive * size  # [..., 1, K]
        x = self._solved(_dense, ridge, size, q, state.information, ridge)
        return (x @ state.target + (ridge * x) @ state.prior).to(query.dtype)

    def sequence(self, state: MesaState, x, chunk, by_token=False):
        frames, chunk = len(x.key), min(chunk, len(x.key))
        q, k, v, lr = (layout.split(part, chunk, state.target.dtype) for part in (*x[:3], x.gates.lr))
        g = layout.log_decay(x.gates.retention, chunk).cumsum(-3)  # [..., C, c, 1, 1]
        n, m, dtype = k.shape[-2], q.shape[-2], q.dtype
        left = (lr * k * (g[..., -1:, :, :] - g).exp().to(dtype)).flatten(-3, -2).mT
        both, key = torch.cat([k, v], -1).flatten(-3, -2), k.flatten(-3, -2)
        kept = g[..., -1, :, :].exp().to(dtype)
        last, starts, _ = affine.carried(torch.cat([state.information, state.target], -1), kept, left, both, None)
        h, target = starts.split([k.shape[-1], v.shape[-1]], -1)  # before each chunk
        rows = lr.flatten(-3, -2).mT  # [..., C, 1, c N]
        z, decay = (self._reach(g, count, n, rows, chunk, dtype) for count in (m, 1))
        size = _norms(h, key, decay, g.exp().to(dtype)[..., 0])  # [..., C, c, 1]
        size = size[..., None, :].expand(*size.shape[:-1], m, 1).flatten(-3, -2)
        start = g.exp().to(dtype).expand(*g.shape[:-2], m, 1).flatten(-3, -2)  # [..., C, c M, 1]
        prior, ridge = state.prior[..., None, :, :], state.ridge[..., None, :, :].mT + self.adaptive * size
        solved = self._solved(_running, ridge, size, q.flatten(-3, -2), h, key, z, start, ridge)
        value = v.flatten(-3, -2)
        out = start * (solved @ target) + ((solved @ key.mT) * z) @ value + (ridge * solved) @ prior
        information, target = last.split([k.shape[-1], v.shape[-1]], -1)
        out = layout.join(out.unflatten(-2, (chunk, m)), frames, x.query.dtype)
        return state._replace(information=information, target=target), out

    def _reach(self, g: Tensor, n: int, m: int, rows: Tensor, chunk: int, dtype) -> Tensor:
        """Weight of each token at each of n reads a frame: [..., C, c n, c m]."""
        mask = layout.seen(chunk, n, m, g.device)
        return layout.between(g, n, g, m, mask, dtype) * rows

    def _solved(self, operator, ridge: Tensor, size: Tensor, q: Tensor, *parameters: Tensor) -> Tensor:
        low = ridge.amin(-1, keepdim=True).detach()
        high = (ridge.amax(-1, keepdim=True) + size).detach()
        x = solved(SOLVERS[self.solver], operator, parameters, q, low, high, Effort(self.iterations, self.tolerance))
        return x if self.mix == 1 else self.mix * x + (1 - self.mix) * q


def _dense(x: Tensor, h: Tensor, ridge: Tensor) -> Tensor:
    return x @ h + ridge * x


def _running(x: Tensor, h: Tensor, key: Tensor, z: Tensor, start: Tensor, ridge: Tensor) -> Tensor:
    """x_t (H_t + L_t), each row with the H of its own frame: gated linear attention with keys as values."""
    return start * (x @ h) + ((x @ key.mT) * z) @ key + ridge * x


def _norm(h: Tensor) -> Tensor:
    """|H|_F: [..., K, K] -> [..., 1, 1]."""
    return _root(h.square().sum((-2, -1), keepdim=True))


def _norms(h: Tensor, key: Tensor, z: Tensor, start: Tensor) -> Tensor:
    """|H_t|_F after each frame of a chunk: [..., C, c, 1]."""
    gram = (key @ key.mT).square()  # [..., C, c N, c N]
    along = ((key @ h) * key).sum(-1, keepdim=True)  # k H k^T
    own = ((z @ gram) * z).sum(-1, keepdim=True)
    return _root(start.square() * h.square().sum((-2, -1), keepdim=True) + 2 * start * (z @ along) + own)


def _root(square: Tensor) -> Tensor:
    """Square root with a finite slope at 0."""
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()
