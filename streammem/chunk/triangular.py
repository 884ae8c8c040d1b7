"""The delta rule in the feature space of a kernel, for a chunk of tokens at once: one triangular solve."""

from typing import NamedTuple

import torch
from torch import Tensor


class Held(NamedTuple):
    """Tokens with their coefficients, oldest first or in any order."""

    key: Tensor  # [..., S, K]
    coefficient: Tensor  # [..., S, V]
    number: Tensor  # [..., S, 1], position among all tokens ever written, from 1; 0 for a token that was not


def coefficients(target: Tensor, rate: Tensor, old: Tensor, new: Tensor, normalised: bool) -> Tensor:
    """u of the tokens of a chunk, [..., C, V].

        u = (I + lr strict_tril(new))^{-1} lr (target - old)      normalised: (I + lr new)^{-1} (target - lr old)

    Shapes: target and old (what the tokens before the chunk say) [..., C, V], rate [..., C, 1], new [..., C, C], zero
    on and above its diagonal.
    """
    wide = torch.promote_types(target.dtype, torch.float32)
    lr = rate.to(wide)
    right = target - lr * old if normalised else lr * (target - old)
    eye = torch.eye(new.shape[-1], dtype=wide, device=new.device)
    system = eye + lr * new.to(wide)
    return torch.linalg.solve_triangular(system, right.to(wide), upper=False, unitriangular=True).to(target.dtype)


def numbered(rate: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens written up to and with each, [..., C, 1], and the number of each: that, or 0 for a token of zero rate."""
    count = before.amax(-2, keepdim=True) + (rate > 0).to(before.dtype).cumsum(-2)
    return count, torch.where(rate > 0, count, 0)


def visible(count: Tensor, number: Tensor, slots: int) -> Tensor:
    """Which tokens are held once `count` have been written: [..., C, 1] and [..., S, 1] -> [..., C, S]."""
    return (number.mT > 0.5) & (number.mT <= count) & (number.mT > count - slots)


def newest(held: Held, count: Tensor, slots: int) -> Held:
    """The newest `slots` tokens, each in slot (number - 1) mod slots, zeros in free slots; count [..., 1, 1]."""
    slot = torch.arange(slots, dtype=count.dtype, device=count.device)[:, None]  # [slots, 1]
    number = count - torch.remainder(count - 1 - slot, slots)  # [..., slots, 1]
    match = (number == held.number.mT) & (number > 0.5)  # [..., slots, S]
    at = match.to(torch.uint8).argmax(-1, keepdim=True)
    found = match.any(-1, keepdim=True)

    def picked(x: Tensor) -> Tensor:
        return torch.where(found, x.gather(-2, at.expand(*at.shape[:-1], x.shape[-1])), 0)

    return Held(picked(held.key), picked(held.coefficient), torch.where(found, number, 0))
