"""Action heads: what the policy saw and remembers, made into actions. Each has its own loss."""

import torch
from torch import Tensor, nn

from streammem.errors import ConfigError


class RegressionHead(nn.Module):
    """One action.

        action = W gelu(W gelu(W h))

    Shapes: h [..., D] -> [..., A]; loss: target as the action, weight [...] -> scalar.
    """

    def __init__(self, dim: int, actions: int, hidden: int = 128):
        super().__init__()
        self.net = _mlp(dim, hidden, actions)

    def forward(self, h: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.net(h)

    def loss(self, h: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Weighted mean of the squared error; steps of weight 0 do not count."""
        return _mean((self(h) - target).square().mean(-1), weight)


class ChunkHead(nn.Module):
    """The next C actions at once.

    Shapes: h [..., D] -> [..., C, A]; loss: target [..., C, A], weight [...] or [..., C] where some of the chunk is
    padding -> scalar.
    Source: action chunks, Zhao et al. 2023, arXiv:2304.13705.
    Differs: squared error; no mixing of chunks over time.
    """

    def __init__(self, dim: int, actions: int, chunk: int, hidden: int = 128):
        super().__init__()
        if chunk < 1:
            raise ConfigError(f"chunk is {chunk}; wanted at least 1 action")
        self.chunk = chunk
        self.net = _mlp(dim, hidden, chunk * actions)

    def forward(self, h: Tensor, noise: Tensor | None = None) -> Tensor:
        return self.net(h).unflatten(-1, (self.chunk, -1))

    def loss(self, h: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Weighted mean of the squared error over all actions that are there."""
        weight = weight if weight.ndim == target.ndim - 1 else weight[..., None].expand(target.shape[:-1])
        return _mean((self(h) - target).square().mean(-1), weight)


class FlowHead(nn.Module):
    """Actions of several kinds: noise is carried to an action by a learned velocity.

        loss: a_s = (1 - s) e + s a,  |velocity(h, a_s, s) - (a - e)|^2,  s uniform, e normal
        action: a <- a + velocity(h, a, s) / steps, from noise at s = 0

    Without noise the start is 0, the mean of the noise: the same observation gives the same action.

    Shapes: h [..., D], noise [..., A] -> [..., A]; loss as RegressionHead.
    Source: Lipman et al. 2023, arXiv:2210.02747, eq. (22), sigma_min 0.
    """

    def __init__(self, dim: int, actions: int, steps: int = 5, hidden: int = 128):
        super().__init__()
        if steps < 1:
            raise ConfigError(f"steps is {steps}; wanted at least 1")
        self.actions, self.steps = actions, steps
        self.net = _mlp(dim + actions + 1, hidden, actions)

    def velocity(self, h: Tensor, action: Tensor, s: Tensor) -> Tensor:
        """Where an action on its way is going; s [..., 1]."""
        return self.net(torch.cat([h, action, s], -1))

    def forward(self, h: Tensor, noise: Tensor | None = None) -> Tensor:
        action = h.new_zeros(*h.shape[:-1], self.actions) if noise is None else noise
        for i in range(self.steps):
            s = torch.full_like(action[..., :1], i / self.steps)
            action = action + self.velocity(h, action, s) / self.steps
        return action

    def loss(self, h: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Weighted mean of the squared error of the velocity, at one random point of the way."""
        noise, s = torch.randn_like(target), torch.rand_like(target[..., :1])
        between = (1 - s) * noise + s * target
        return _mean((self.velocity(h, between, s) - (target - noise)).square().mean(-1), weight)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, outputs)
    )


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    return (weight * each).sum() / weight.sum().clamp_min(1e-9)
