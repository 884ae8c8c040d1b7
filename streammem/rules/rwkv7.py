from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from streammem.chunk import affine
from streammem.chunk.affine import Terms
from streammem.memory.rule import Rule


@dataclass(frozen=True)
class RWKV7(Rule):
    """RWKV-7: a decay by channel, and what is removed has a direction and a rate by channel of its own.

        h = unit(erase * k);  w = k * (1 + mix (lr - 1))
        M_t = diag(a_t) M_{t-1} + sum_i w_i^T v_i - (removal lr_i * h_i)^T (h_i M_{t-1})

    mix: how far the rate scales what is written, 0 not at all, 1 fully. gates.erase scales the key where it removes,
    by channel; () is 1. removal: 1 as published; 2 reaches the negative eigenvalues of the state-tracking proof.

    Shapes: memory [..., K, V]; one write takes N tokens; lr [..., N, K] or [..., N, 1], retention [..., K, 1]. Chunk
    form exact.
    Units: none; the published decay is exp(-0.6065 sigmoid(.)), above 0.545.
    Source: Peng et al. 2025, arXiv:2503.14456.
    Differs: tokens of one frame share one gradient; for the token recurrence use TokenByToken. mix is one number, and
    at mix below 1 a token of zero rate still writes (1 - mix) k^T v.
    """

    mix: float = 1.0
    removal: float = 1.0

    def init(self, weights: Tensor) -> Tensor:
        return weights

    def write(self, state, key, value, gates) -> Tensor:
        removed, towards, written = self._directions(key, gates)
        taken = towards.mT @ (removed @ state)
        return gates.retention * state - taken + written.mT @ value

    def read(self, state, query) -> Tensor:
        return query @ state

    def sequence(self, state, x, chunk, by_token=False):
        if by_token and x.key.shape[-2] > 1:
            return Rule.sequence(self, state, x, chunk, by_token)
        removed, towards, written = self._directions(x.key, x.gates)
        # Each token as two rows that are written at once: one takes away, one writes.
        key = torch.stack([towards, written], -2).flatten(-3, -2)
        erase = torch.stack([removed, torch.zeros_like(removed)], -2).flatten(-3, -2)
        value = torch.stack([torch.zeros_like(x.value), x.value], -2).flatten(-3, -2)
        terms = Terms(key, erase, value, x.gates.retention)
        return affine.sequence(state, x.query, terms, chunk, before=True)

    def _directions(self, key: Tensor, gates):
        """Where memory is read to be removed, where that is taken from, where the value goes; each [..., N, K]."""
        removed = normalize(gates.erase * key if isinstance(gates.erase, Tensor) else key, dim=-1)
        return removed, self.removal * gates.lr * removed, key * (1 + self.mix * (gates.lr - 1))
