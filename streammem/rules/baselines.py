from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


@dataclass(frozen=True)
class Frozen(Rule):
    """Never writes: what the initial memory alone is worth.

        M_t = M_0

    Shapes: memory [..., K, V]. No chunk form: nothing is written.
    """

    def init(self, weights: Tensor) -> Tensor:
        return weights

    def write(self, state, key, value, gates) -> Tensor:
        return state

    def read(self, state, query) -> Tensor:
        return query @ state


@dataclass(frozen=True)
class LastFrame(Rule):
    """Knows the last frame and nothing else: what persistence alone is worth.

        M_t = (k^T lr k + ridge I)^{-1} k^T lr v

    A frame whose tokens all have zero rate is no frame.

    Shapes: memory [..., K, V]; one write takes N tokens. No chunk form: each frame is solved alone.
    Raises: ConfigError where ridge is not positive.
    """

    ridge: float = 1e-3

    def __post_init__(self):
        if not self.ridge > 0:
            raise ConfigError(f"ridge of LastFrame is {self.ridge}; wanted a number above 0")

    def init(self, weights: Tensor) -> Tensor:
        return weights

    def write(self, state, key, value, gates) -> Tensor:
        k, v, lr = (x.to(WIDE) for x in (key, value, gates.lr))
        eye = torch.eye(key.shape[-1], dtype=WIDE, device=key.device)
        weighted = k.mT * lr.mT  # [..., K, N]
        memory = torch.linalg.solve_ex(weighted @ k + self.ridge * eye, weighted @ v)[0].contiguous()
        return torch.where((lr > 0).any(-2, keepdim=True), memory.to(state.dtype), state)

    def read(self, state, query) -> Tensor:
        return query @ state
