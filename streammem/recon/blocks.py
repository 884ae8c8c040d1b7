"""What every part of the network is made of: attention, perceptrons, and blocks of both. No attention map is kept."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from streammem.recon.rope import Rotation, rotate, rotate_in_half

EPS = 1e-6
MLP_RATIO = 4


class Glance(NamedTuple):
    """What a cross-attention says of itself beside its result; None where nobody asked."""

    logit: Tensor | None  # [B, N] mean over heads and keys of the scaled logits, before the softmax
    read: Tensor | None  # [B, N, D] what was read: values weighted by attention, before the last projection


class Mlp(nn.Module):
    """Two linear maps with an exact GELU between them."""

    def __init__(self, dim: int, out: int | None = None):
        super().__init__()
        self.fc1 = nn.Linear(dim, MLP_RATIO * dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(MLP_RATIO * dim, dim if out is None else out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class SelfAttention(nn.Module):
    """softmax(R q (R k)^T / sqrt(K)) v, all three from the same tokens. Shapes: x [B, N, D] -> [B, N, D].

    half: R rounds to float16, so that a last bit of one block's result can become 1e-3 of a query in the next. On a
    processor the attention then runs in float64: its own last bits are one cause less.
    """

    def __init__(self, dim: int, heads: int, half: bool = False):
        super().__init__()
        self.heads, self.half, self.turn = heads, half, rotate_in_half if half else rotate
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, by: Rotation | None) -> Tensor:
        query, key, value = (_split(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        if by is not None:
            query, key = self.turn(query, by), self.turn(key, by)
        exact = torch.float64 if self.half and x.device.type == "cpu" else x.dtype
        read = scaled_dot_product_attention(query.to(exact), key.to(exact), value.to(exact))
        return self.proj(_joined(read).to(x.dtype))


class CrossAttention(nn.Module):
    """softmax(R q (R k)^T / sqrt(K)) v, queries from x and the rest from a context.

    The mean of the logits over keys and heads needs no map of them, since a mean of products with one factor fixed is
    the product with the mean:

        logit_j = mean_{a,k} q_aj . k_ak / sqrt(K) = sum_a q_aj . mean_k(k_ak) / (H sqrt(K))

    Shapes: x [B, N, D], context [B, M, D] -> [B, N, D].
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.projq = nn.Linear(dim, dim)
        self.projk = nn.Linear(dim, dim)
        self.projv = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, context: Tensor, own: Rotation | None, others: Rotation | None, wanted: frozenset[str]
    ) -> tuple[Tensor, Glance]:
        query = _split(self.projq(x), self.heads)
        key, value = _split(self.projk(context), self.heads), _split(self.projv(context), self.heads)
        if own is not None:
            query, key = rotate(query, own), rotate(key, others)
        read = _joined(scaled_dot_product_attention(query, key, value))
        logit = mean_logit(query, key) if "logit" in wanted else None
        return self.proj(read), Glance(logit, read if "read" in wanted else None)


def mean_logit(query: Tensor, key: Tensor) -> Tensor:
    """Mean over heads and keys of the scaled logits, without them. Shapes: [B, H, N, K], [B, H, M, K] -> [B, N]."""
    heads, width = query.shape[1], query.shape[-1]
    mean_key = key.mean(2, keepdim=True)  # [B, H, 1, K]
    return (query @ mean_key.mT).sum(1)[..., 0] * (width**-0.5 / heads)


class EncoderBlock(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x)). Shapes: [B, N, D] -> [B, N, D]."""

    def __init__(self, dim: int, heads: int, half: bool = False):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = SelfAttention(dim, heads, half)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim)

    def forward(self, x: Tensor, by: Rotation | None) -> Tensor:
        x = x + self.attn(self.norm1(x), by)
        return x + self.mlp(self.norm2(x))


class DecoderBlock(nn.Module):
    """x += self(norm(x)); x += cross(norm(x), norm(context)); x += mlp(norm(x)).

    Shapes: x [B, N, D], context [B, M, D] -> [B, N, D].
    """

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = SelfAttention(dim, heads)
        self.cross_attn = CrossAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.norm3 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim)
        self.norm_y = nn.LayerNorm(dim, eps=EPS)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        own: Rotation | None = None,
        others: Rotation | None = None,
        wanted: frozenset[str] = frozenset(),
    ) -> tuple[Tensor, Glance]:
        x = x + self.attn(self.norm1(x), own)
        found, glance = self.cross_attn(self.norm2(x), self.norm_y(context), own, others, wanted)
        x = x + found
        return x + self.mlp(self.norm3(x)), glance


class ConditionedNorm(nn.Module):
    """Layer norm that a condition scales and shifts: norm(x) (1 + scale) + shift, [shift, scale] = linear(silu(c)).

    Shapes: x [B, N, D], condition [B, 1, D].
    """

    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift, scale = self.mlp(condition).chunk(2, -1)
        return self.norm(x) * (1 + scale) + shift


class ConditionedBlock(nn.Module):
    """An encoder block whose norms listen to a condition. Shapes: x [B, N, D], condition [B, 1, D] -> [B, N, D]."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1 = ConditionedNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.norm2 = ConditionedNorm(dim)
        self.mlp = Mlp(dim)

    def forward(self, x: Tensor, condition: Tensor, by: Rotation) -> Tensor:
        x = x + self.attn(self.norm1(x, condition), by)
        return x + self.mlp(self.norm2(x, condition))


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, H, N, K]


def _joined(x: Tensor) -> Tensor:
    return torch.flatten(x.transpose(1, 2), 2)  # [B, N, D]
