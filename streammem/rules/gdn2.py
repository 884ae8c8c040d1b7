from dataclasses import dataclass

from torch import Tensor

from streammem.chunk.affine import Terms
from streammem.memory.linear import Linear


@dataclass(frozen=True)
class GDN2(Linear):
    """Gated delta rule 2: a write gate by value channel, and an erase gate of its own by key channel.

        R_t = diag(a_t) M_{t-1}
        M_t = R_t + sum_i k_i^T (lr_i * v_i - (erase_i * k_i) R_t)

    Without an erase gate it erases at the write gate's mean: with one rate by token this is `kda`.

    Shapes: memory [..., K, V]; one write takes N tokens; lr [..., N, V] or [..., N, 1], erase [..., N, K] or
    [..., N, 1], retention [..., K, 1] or [..., 1, 1]. Chunk form exact.
    Units: none; stable while sum_i |k_i| |erase_i * k_i| < 2.
    Source: the public implementation in flash-linear-attention; no paper was found.
    Differs: tokens of one frame share one gradient; for the token recurrence use TokenByToken. A token that is to
    change nothing needs both gates at zero.
    """

    def terms(self, key, value, gates, by_token):
        erase = gates.erase if isinstance(gates.erase, Tensor) else gates.lr.mean(-1, keepdim=True)
        return Terms(key, erase * key, gates.lr * value, gates.retention)
