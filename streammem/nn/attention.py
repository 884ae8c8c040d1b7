"""Attention over a sliding window, with tokens that are always there."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem.errors import ConfigError


class WindowState(NamedTuple):
    """The tokens that can still be seen."""

    past: Tensor  # [B, window - 1, D]
    filled: Tensor  # [B, 1] how many of them were there, the last ones


class WindowAttention(nn.Module):
    """Causal attention to the last `window` tokens, this one included, and to `persistent` learned ones.

    Shapes: x [B, T, D] -> [B, T, D].
    Raises: ConfigError where the heads do not divide the width, or window is not positive.
    """

    def __init__(self, dim: int, heads: int, window: int, persistent: int = 0):
        super().__init__()
        if dim % heads or window < 1:
            raise ConfigError(f"{heads} heads, width {dim}, window {window}; wanted heads that divide it, window >= 1")
        self.heads, self.window = heads, window
        self.always = nn.Parameter(torch.randn(persistent, dim) / dim**0.5)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> WindowState:
        """Nothing seen yet."""
        past = self.always.new_zeros(batch, self.window - 1, self.always.shape[-1])
        return WindowState(past, past.new_zeros(batch, 1))

    def sequence(self, state: WindowState, x: Tensor) -> tuple[WindowState, Tensor]:
        """Attends from each of T tokens; returns (state, y), as T calls with one token would."""
        row = torch.cat([state.past, x], 1)
        before, steps = self.window - 1, x.shape[1]
        at = torch.arange(row.shape[1], device=x.device) - before  # time of each token
        now = at[before:, None]
        near = (at <= now) & (at > now - self.window)  # [T, window - 1 + T]
        known = near & (at >= -state.filled)[:, None, :]  # [B, T, window - 1 + T]
        seen = torch.cat([known.new_ones(len(x), steps, len(self.always)), known], -1)
        y = self.attend(x, torch.cat([self.always.expand(len(x), -1, -1), row], 1), seen)
        filled = (state.filled + steps).clamp_max(before)
        return WindowState(row[:, row.shape[1] - before :].clone(), filled), y

    def attend(self, x: Tensor, context: Tensor, seen: Tensor) -> Tensor:
        """Attention from x [B, T, D] to context [B, S, D], where `seen` [B, T, S] is true."""
        query, key, value = (
            nn.functional.linear(a, w).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for a, w in zip((x, context, context), self.qkv.weight.chunk(3))
        )
        y = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen[:, None])
        return self.out(y.transpose(1, 2).flatten(2))
