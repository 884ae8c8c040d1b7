"""Observations, and encoders that make tokens of them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.errors import ConfigError, ShapeError


class Observation(NamedTuple):
    """What B robots perceive at one instant; a sequence has T after B. What a robot does not have is None."""

    vector: Tensor | None = None  # [B, S] state: joints, forces, flags, ...
    image: Tensor | None = None  # [B, 3, h, w], in [-1, 1]
    tokens: Tensor | None = None  # [B, N, C] points, detections, or what a map says
    confidence: Tensor | None = None  # [B] 0 to 1, where somebody says how much this is worth remembering


def finite_rows(observation: Observation, dims: int) -> Tensor:
    """Whether each observation is finite in every part; dims: leading dimensions of B, or B and T."""
    flags = [
        leaf.isfinite().flatten(dims).all(-1) if leaf.ndim > dims else leaf.isfinite() for leaf in _parts(observation)
    ]
    return torch.stack(flags).all(0)


def cleaned(observation: Observation) -> Observation:
    """The observation with zeros for whatever is not finite; NaN times zero would still be NaN."""
    return tree.map(lambda a: torch.nan_to_num(a, 0.0, 0.0, 0.0), observation)


def _parts(observation: Observation) -> list[Tensor]:
    parts = list(tree.leaves(observation))
    if not parts:
        raise ShapeError("the observation has no part; wanted a vector, an image or tokens")
    return parts


class Straight(nn.Module):
    """The state vector itself as one token: what is written, asked and told to the head is linear in what was seen.

        x = (s - mean) / deviation

    mean and deviation are buffers, 0 and 1 until `standardise` is called.

    Shapes: [..., S] -> [..., 1, S].
    """

    def __init__(self, inputs: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))

    def standardise(self, vectors: Tensor) -> None:
        """Takes mean and deviation from recorded vectors [n, S]; a channel that never moves keeps deviation 1."""
        deviation = vectors.std(0)
        self.mean.copy_(vectors.mean(0))
        self.deviation.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def forward(self, observation: Observation) -> Tensor:
        return ((observation.vector - self.mean) / self.deviation).unsqueeze(-2)


class VectorEncoder(Straight):
    """A state vector mapped to one token.

        s as `Straight`;  x = s W;  hidden > 0: x + W silu(W s)

    hidden 0 keeps the map linear, which suits what is written: a network between the observation and the memory's keys
    made the first trial's recall fail to start.

    Shapes: [..., S] -> [..., 1, D].
    """

    def __init__(self, inputs: int, dim: int, hidden: int = 0):
        super().__init__(inputs)
        self.linear = nn.Linear(inputs, dim)
        self.deep = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, dim)) if hidden else None

    def forward(self, observation: Observation) -> Tensor:
        s = super().forward(observation)
        x = self.linear(s)
        return x if self.deep is None else x + self.deep(s)


class ImageEncoder(nn.Module):
    """A small convolutional encoder: stages of stride 2, and what is left as one token, where things are included.

        c = silu(norm(conv(c))), stage by stage
        share = softmax(sharpness c) over the pixels of a channel;  x = W [expected u, expected v, mean of each channel]

    Shapes: [..., 3, h, w] with h, w >= 2^stages -> [..., 1, D].
    Source: expected positions of channels (spatial softmax), Levine et al. 2016, arXiv:1504.00702.
    Differs: the mean of each channel beside its position.
    """

    def __init__(self, dim: int, width: int = 16, stages: int = 3):
        super().__init__()
        if stages < 1:
            raise ConfigError(f"stages is {stages}; wanted at least 1")
        widths = [3, *(width * 2**i for i in range(stages))]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(1, b), nn.SiLU())
            for a, b in zip(widths, widths[1:])
        )
        self.sharpness = nn.Parameter(torch.tensor(4.0))
        self.out = nn.Linear(3 * widths[-1], dim)

    def forward(self, observation: Observation) -> Tensor:
        image = observation.image
        c = image.flatten(0, -4)  # [n, 3, h, w]
        for stage in self.stages:
            c = stage(c)
        h, w = c.shape[-2:]
        share = (self.sharpness * c).flatten(-2).softmax(-1).unflatten(-1, (h, w))
        v = torch.linspace(-1, 1, h, dtype=c.dtype, device=c.device)
        u = torch.linspace(-1, 1, w, dtype=c.dtype, device=c.device)
        parts = [share.sum(-2) @ u, share.sum(-1) @ v, c.mean((-2, -1))]  # each [n, channels]
        return self.out(torch.cat(parts, -1)).unflatten(0, image.shape[:-3]).unsqueeze(-2)


class TokenEncoder(nn.Module):
    """Points, detections or a map's readouts, each as a token.

    Shapes: [..., N, C] -> [..., N, D].
    """

    def __init__(self, channels: int, dim: int):
        super().__init__()
        self.linear = nn.Linear(channels, dim)

    def forward(self, observation: Observation) -> Tensor:
        return self.linear(observation.tokens)


class Together(nn.Module):
    """Several encoders, their tokens side by side.

    Shapes: -> [..., sum of N, D].
    """

    def __init__(self, *encoders: nn.Module):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, observation: Observation) -> Tensor:
        return torch.cat([encode(observation) for encode in self.encoders], -2)
