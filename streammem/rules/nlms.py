from dataclasses import dataclass

import torch

from streammem.chunk.affine import Terms
from streammem.errors import ConfigError
from streammem.memory.covariance import WIDE
from streammem.memory.linear import Linear


@dataclass(frozen=True)
class NLMS(Linear):
    """Normalised LMS, or Kaczmarz; affine projection where a frame has several tokens.

        M_t = M_{t-1} + k^T (k k^T + ridge I)^{-1} lr (v - k M_{t-1})

    One token: M_t = M_{t-1} + lr k^T (v - k M_{t-1}) / (|k|^2 + ridge). At rate 1 and no ridge every token of the
    frame is recalled exactly; Window(NLMS(), P, 1) is affine projection of order P. Tokens of zero rate are no tokens.

    Shapes: memory [..., K, V]; one write takes N tokens; lr [..., N, 1]. Chunk form exact.
    Units: ridge in squared units of the keys; stable for lr in (0, 2).
    Raises: ConfigError where ridge is not positive.
    Source: Kaczmarz 1937; Widrow and Hoff 1960; affine projection: Ozeki and Umeda 1984.
    """

    ridge: float = 1e-6

    def __post_init__(self):
        if not self.ridge > 0:
            raise ConfigError(f"ridge of NLMS is {self.ridge}; wanted a number above 0")

    def terms(self, key, value, gates, by_token):
        k, lr = key.to(WIDE), gates.lr.to(WIDE)
        if by_token:
            gain = lr / (k.square().sum(-1, keepdim=True) + self.ridge)
            return Terms(key, gain.to(key.dtype) * key, gain.to(key.dtype) * value, None)
        k = torch.where(lr > 0, k, torch.zeros_like(k))
        eye = torch.eye(key.shape[-2], dtype=WIDE, device=key.device)
        both = torch.cat([lr * k, lr * value.to(WIDE)], -1)
        solved = torch.linalg.solve_ex(k @ k.mT + self.ridge * eye, both)[0].to(key.dtype)
        erase, new = solved.split([key.shape[-1], value.shape[-1]], -1)
        return Terms(key, erase, new, None)
