"""Rates: the gates of a memory rule, made from the tokens."""

import math

import torch
from torch import Tensor, nn

from streammem.types import Gates


class Rates(nn.Module):
    """Gates of H heads from tokens x.

        lr = most sigmoid(x W) / N by token
        retention = exp(-exp(A) softplus(x W + b)), the mean of a frame's logarithms
        momentum = sigmoid of the mean of x W;  erase = sigmoid(x W), where asked for

    most: the highest rate; 2 allows negative eigenvalues. channels: K for a retention by key channel, through a
    low-rank map, or 1. erase: width of the erase gate; 0 gives none. decay: times the initial decay; tasks longer than
    some tens of tokens want less than 1 where there are few heads.

    Shapes: x [B, T, N, D] -> gates [T, B, H, N or 1, width].
    Source: the initial decay is Mamba-2's: exp(A) in (0, 16), steps log-uniform in [0.001, 0.1].
    """

    def __init__(self, dim: int, heads: int, most: float = 1.0, channels: int = 1, erase: int = 0, decay: float = 1.0):
        super().__init__()
        self.heads, self.most, self.channels, self.erase = heads, most, channels, erase
        self.rate = nn.Linear(dim, heads)
        self.momentum = nn.Linear(dim, heads)
        wide = heads * channels
        self.decay = (
            nn.Linear(dim, wide)
            if channels == 1
            else nn.Sequential(nn.Linear(dim, channels), nn.Linear(channels, wide))
        )
        self.erasing = nn.Linear(dim, heads * erase) if erase else None
        self.log_scale = nn.Parameter((decay * torch.empty(heads, 1).uniform_(1, 16)).log())
        step = torch.exp(torch.empty(heads, channels).uniform_(math.log(1e-3), math.log(1e-1)))
        self.step_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus(bias) is the step

    def forward(self, x: Tensor) -> Gates:
        lr = self.most * self._heads(self.rate(x)).sigmoid() / x.shape[-2]
        step = nn.functional.softplus(self._heads(self.decay(x)) + self.step_bias[:, None, :])  # [T, B, H, N, width]
        kept = (-self.log_scale.exp()[:, None, :] * step.mean(-2, keepdim=True)).exp().mT
        momentum = self._heads(self.momentum(x)).mean(-2, keepdim=True).sigmoid()
        erase = () if self.erasing is None else self._heads(self.erasing(x)).sigmoid()
        return Gates(lr, kept, momentum, erase)

    def _heads(self, a: Tensor) -> Tensor:
        """[B, T, N, H width] -> [T, B, H, N, width]."""
        return a.unflatten(-1, (self.heads, -1)).permute(1, 0, 3, 2, 4)
