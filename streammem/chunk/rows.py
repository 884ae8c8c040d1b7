"""Frames of tokens in one row, and products of gates between them."""

import torch
from torch import Tensor


def in_a_row(a: Tensor) -> Tensor:
    """[T, ..., N, X] -> [..., T N, X]."""
    return a.movedim(0, -3).flatten(-3, -2)


def by_frame(a: Tensor, tokens: int) -> Tensor:
    """[..., T N, X] -> [T, ..., N, X]."""
    return a.unflatten(-2, (-1, tokens)).movedim(-3, 0)


def by_token(a: Tensor, tokens: int) -> Tensor:
    """[..., T, X] -> [..., T N, X], the same for each token of a frame."""
    return a[..., None, :].expand(*a.shape[:-1], tokens, a.shape[-1]).flatten(-3, -2)


def products(gate: Tensor) -> tuple[Tensor, Tensor]:
    """Products of gates [..., T, 1]: from the first to t, [..., T, 1]; and from j + 1 to t, lower [..., T, T].

    By multiplication and not by logarithms, so that a gate may be zero.
    """
    steps = gate.shape[-2]
    rows = [torch.zeros_like(gate.mT)]  # row before the first
    one = torch.eye(steps, dtype=gate.dtype, device=gate.device)
    for t in range(steps):
        rows.append(rows[-1] * gate[..., t : t + 1, :] + one[t])
    return gate.cumprod(-2), torch.cat(rows[1:], -2)


def apart(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances of a [..., N, K] and b [..., S, K]: [..., N, S]."""
    squares = [x.square().sum(-1, keepdim=True) for x in (a, b)]
    return (squares[0] + squares[1].mT - 2 * a @ b.mT).clamp_min(0)
