"""The exact chunk form of every rule that is affine in a matrix memory: WY / UT for the delta family, gated linear
attention where nothing is erased."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.chunk import layout
from streammem.errors import ConfigError, NoKernel


class Terms(NamedTuple):
    """What a frame does to a matrix memory:  R = retention M;  M <- R + key^T (value - erase R)."""

    key: Tensor  # [..., N, K], where something is written
    erase: Tensor | None  # [..., N, K], what is read and taken away; None: nothing
    value: Tensor  # [..., N, V], with its rate
    retention: Tensor | None  # [..., 1, 1] or [..., K, 1]; None: all is kept


def write(memory: Tensor, terms: Terms) -> Tensor:
    """The memory after one frame."""
    kept = memory if terms.retention is None else terms.retention * memory
    new = terms.value if terms.erase is None else terms.value - terms.erase @ kept
    return kept + terms.key.mT @ new


def sequence(memory: Tensor, query: Tensor, terms: Terms, chunk: int, by_token=False, before=False):
    """T frames, `chunk` at a time: (memory after them, readouts).

        U = (I + A)^{-1} (value - (erase e^g) M),      A_ij = sum_k erase_ik key_jk e^{g_ik - g_jk},  j before i
        O = (query e^g) M + (sum_k query_ik key_jk e^{g_ik - g_jk},  j not after i) U
        M <- e^{g_end} M + (key e^{g_end - g})^T U,     g the log of what was kept since the start of the chunk

    Exact: the length of the chunk changes the rounding only.

    by_token: the tokens of a frame are written one after the other, the decay before the first. before: what is erased
    is read before the frame decays the memory.

    Shapes: query [T, ..., M, K], terms with a first axis T -> readouts [T, ..., M, V]. Sums in float32 at least. A
    retention below 1e-35 is taken for 1e-35, and has no gradient.
    Raises: ConfigError where chunk is not positive, NoKernel for several tokens by_token and before.
    Source: Yang et al. 2024, arXiv:2406.06484 and 2412.06464; by channel: arXiv:2312.06635.
    """
    if chunk < 1:
        raise ConfigError(f"chunk is {chunk}; wanted at least 1 frame")
    if by_token and before and terms.key.shape[-2] > 1:
        raise NoKernel("tokens one by one have no chunk form where they erase before the decay; wanted chunk=None")
    frames, chunk = query.shape[0], min(chunk, query.shape[0])
    wide = torch.float32
    for x in (memory, query, terms.key, terms.value):
        wide = torch.promote_types(wide, x.dtype)
    q, k, u = (layout.split(x, chunk, wide) for x in (query, terms.key, terms.value))
    one = terms.key.new_ones(frames, *[1] * (terms.key.ndim - 1))
    step = layout.log_decay(one if terms.retention is None else terms.retention, chunk)
    g = step.cumsum(-3)  # [..., C, c, 1, 1 or K]
    n, device = k.shape[-2], q.device
    new, removed = u.flatten(-3, -2), None
    if terms.erase is not None:
        y, at = layout.split(terms.erase, chunk, wide), (g - step if before else g)
        a = layout.pairs(y, at, k, g, layout.earlier(chunk, n, by_token, device))
        sides = torch.cat([new, (y * at.exp().to(wide)).flatten(-3, -2)], -1)
        solved = torch.linalg.solve_triangular(a, sides, upper=False, unitriangular=True)
        new, removed = solved.split([u.shape[-1], k.shape[-1]], -1)
    end = g[..., -1:, :, :]
    left = (k * (end - g).exp().to(wide)).flatten(-3, -2).mT  # [..., C, K, c N]
    kept = end.exp().to(wide)[..., 0, :, :].mT  # [..., C, 1 or K, 1]
    last, starts, new = carried(memory.to(wide), kept, left, new, removed)
    out = (q * g.exp().to(wide)).flatten(-3, -2) @ starts
    out = out + layout.pairs(q, g, k, g, layout.seen(chunk, q.shape[-2], n, device)) @ new
    out = out.unflatten(-2, (chunk, -1))
    return last.to(memory.dtype), layout.join(out, frames, query.dtype)


def carried(memory: Tensor, kept: Tensor, left: Tensor, new: Tensor, removed: Tensor | None):
    """Memory after the last chunk, before each [..., C, K, V], and what each token writes [..., C, c N, V]."""
    starts, written = [], []
    removals = [None] * left.shape[-3] if removed is None else removed.unbind(-3)
    for keep, key, value, removal in zip(kept.unbind(-3), left.unbind(-3), new.unbind(-3), removals):
        starts.append(memory)
        value = value if removal is None else value - removal @ memory
        written.append(value)
        memory = keep * memory + key @ value
    return memory, torch.stack(starts, -3), torch.stack(written, -3)
