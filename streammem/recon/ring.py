"""The last numbers of a stream, in fixed memory, and their median."""

from typing import NamedTuple

import torch
from torch import Tensor


class Ring(NamedTuple):
    """The last n numbers of each stream, NaN where none was yet."""

    values: Tensor  # [B, n]
    count: Tensor  # [B] int64, noted since the stream started


def ring(batch: int, size: int, device="cpu") -> Ring:
    """An empty one."""
    count = torch.zeros(batch, dtype=torch.int64, device=device)
    return Ring(torch.full((batch, size), torch.nan, device=device), count)


def noted(ring: Ring, value: Tensor) -> Ring:
    """The ring with one more number [B] in it, where that is finite and above 0."""
    good = value.isfinite() & (value > 0)
    at = (ring.count % ring.values.shape[1])[:, None]
    kept = torch.where(good[:, None], value[:, None].to(ring.values), ring.values.gather(1, at))
    return Ring(ring.values.scatter(1, at, kept), ring.count + good)


def median(ring: Ring) -> Tensor:
    """The median [B] of what is in it; NaN of nothing."""
    return ring.values.nanmedian(-1).values
