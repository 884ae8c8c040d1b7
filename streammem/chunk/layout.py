"""Chunks of frames, and products of tokens weighed by what was kept between them.

Inside, tokens are [..., C, c, n, w]: C chunks of c frames of n tokens. Rates of decay are kept as logarithms, summed
from the start of a chunk in float64; only exp(later - earlier) is ever formed, which is at most 1.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

SUB = 16  # tokens between which decays by channel are formed pair by pair
LEAST = 1e-35  # retention below this is taken for it, so that its logarithm is finite


def split(x: Tensor, chunk: int, dtype: torch.dtype) -> Tensor:
    """[T, ..., n, w] -> [..., C, c, n, w]; frames of zeros fill the last chunk."""
    x = x.movedim(0, -3).to(dtype)
    missing = -x.shape[-3] % chunk
    return pad(x, (0, 0, 0, 0, 0, missing)).unflatten(-3, (-1, chunk))


def join(x: Tensor, frames: int, dtype: torch.dtype) -> Tensor:
    """[..., C, c, n, w] -> [T, ..., n, w]: undoes `split`."""
    return x.flatten(-4, -3)[..., :frames, :, :].movedim(-3, 0).to(dtype)


def log_decay(retention: Tensor, chunk: int) -> Tensor:
    """Logarithm of what each frame keeps: [T, ..., 1 or K, 1] -> [..., C, c, 1, 1 or K]."""
    return split(retention.mT.double().clamp_min(LEAST).log(), chunk, torch.float64)


def earlier(frames: int, n: int, by_token: bool, device) -> Tensor:
    """Which tokens were written before each: [c n, c n] of 0 and 1. A frame at once, or its tokens one by one."""
    order = torch.arange(frames * n, device=device) // (1 if by_token else n)
    return order[:, None] > order


def seen(frames: int, n: int, m: int, device) -> Tensor:
    """Which of the tokens (m a frame) are in the memory when a frame's queries (n a frame) read it: [c n, c m]."""
    i, j = (torch.arange(frames * count, device=device) // count for count in (n, m))
    return i[:, None] >= j


def pairs(a: Tensor, a_decay: Tensor, b: Tensor, b_decay: Tensor, mask: Tensor) -> Tensor:
    """sum_k a_ik b_jk exp(a_decay_ik - b_decay_jk) where `mask` is true, else 0: [..., C, c n, c m].

    Shapes: a [..., C, c, n, K], b [..., C, c, m, K]; decays [..., C, c, 1, 1 or K], not increasing along c.
    """
    if a_decay.shape[-1] == 1:
        product = a.flatten(-3, -2) @ b.flatten(-3, -2).mT
        return product * between(a_decay, a.shape[-2], b_decay, b.shape[-2], mask, a.dtype)
    return _by_channel(a, a_decay, b, b_decay) * mask


def between(a_decay: Tensor, n: int, b_decay: Tensor, m: int, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(a_decay - b_decay) where `mask` is true, else 0: decays [..., C, c, 1, 1] -> [..., C, c n, c m]."""
    steps = (a_decay[..., 0] - b_decay[..., 0].mT).clamp_max(0).exp().to(dtype)  # [..., C, c, c]
    shape = *steps.shape[:-2], steps.shape[-2], n, steps.shape[-1], m
    return steps[..., :, None, :, None].expand(shape).flatten(-4, -3).flatten(-2, -1) * mask


def _by_channel(a: Tensor, a_decay: Tensor, b: Tensor, b_decay: Tensor) -> Tensor:
    """As `pairs`, unmasked; entries of later frames are not to be used.

    A product of two factors would need exp(-decay), which overflows. So frames go by sub-chunks: inside one, decays
    are formed pair by pair; to earlier ones, both factors are relative to the start of the sub-chunk.
    """
    frames, size = a.shape[-3], max(1, SUB // b.shape[-2])
    blocks = []
    for start in range(0, frames, size):
        here = slice(start, start + size)
        row, column = a[..., here, :, :], b[..., here, :, :]
        origin = b_decay[..., start - 1 : start, :, :] if start else torch.zeros_like(b_decay[..., :1, :, :])
        left = (a_decay[..., here, :, :] - origin).to(a.dtype)  # [..., C, s, 1, K]
        right = (b_decay[..., here, :, :] - origin).to(a.dtype)
        between = _differences(left, right).exp()  # [..., C, s, s, K]
        near = torch.einsum("...ink,...jmk,...ijk->...injm", row, column, between).flatten(-4, -3).flatten(-2, -1)
        parts = [near, near.new_zeros(*near.shape[:-1], (frames - start - row.shape[-3]) * b.shape[-2])]
        if start:
            past = b[..., :start, :, :] * (origin - b_decay[..., :start, :, :]).exp().to(a.dtype)
            now = row * left.clamp_max(0).exp()
            parts.insert(0, now.flatten(-3, -2) @ past.flatten(-3, -2).mT)
        blocks.append(torch.cat(parts, -1))
    return torch.cat(blocks, -2)


def _differences(left: Tensor, right: Tensor) -> Tensor:
    """left_ik - right_jk, at most 0: [..., s, 1, K] twice -> [..., s, s, K]."""
    return (left - right.squeeze(-2)[..., None, :, :]).clamp_max(0)
