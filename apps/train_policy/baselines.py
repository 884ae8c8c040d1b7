"""Policies without our memory, each offered the same gate: what the memory has to beat.

All have `init_state(batch)`, `sequence(state, observation [B, T, D], share [B, T]) -> (state, action [B, T, A])`, and
`step(state, observation [B, D], share [B]) -> (state, action [B, A])`, which say the same. share: how much of each step
is kept, from a gate; 1 throughout is no gate. What "kept" means is each one's own, and 0 leaves its state as it was.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem.errors import ConfigError


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    inner = (nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
    return nn.Sequential(*inner, nn.Linear(hidden, outputs))


class Baseline(nn.Module):
    """A policy whose step is a sequence of one."""

    def step(self, state, observation: Tensor, share: Tensor):
        """One instant; returns (state, action)."""
        state, action = self.sequence(state, observation[:, None], share[:, None])
        return state, action[:, 0]


class Memoryless(Baseline):
    """A perceptron of what is seen now."""

    def __init__(self, width: int, actions: int, hidden: int = 160):
        super().__init__()
        self.head = perceptron(width, hidden, actions)

    def init_state(self, batch: int):
        """None is needed."""
        return ()

    def sequence(self, state, observation, share):
        """Step by step, each alone."""
        return state, self.head(observation)


class StackState(NamedTuple):
    """The frames that were kept last, the latest at the end."""

    frames: Tensor  # [B, F, D]


class FrameStack(Baseline):
    """A perceptron of what is seen now and of the last `frames` frames that were kept, the latest last."""

    def __init__(self, width: int, actions: int, frames: int = 8, hidden: int = 128):
        super().__init__()
        self.frames, self.width = frames, width
        self.head = perceptron((frames + 1) * width, hidden, actions)

    def init_state(self, batch: int) -> StackState:
        """Blank frames."""
        return StackState(self.head[0].weight.new_zeros(batch, self.frames, self.width))

    def sequence(self, state, observation, share):
        """At step t the stack holds the last kept frames up to t, each times its share."""
        batch, steps = share.shape
        row = torch.cat([state.frames, share[..., None] * observation], 1)
        kept = torch.cat([share.new_ones(batch, self.frames), (share > 0).to(share.dtype)], 1).long()
        count = kept.cumsum(1)  # kept so far, this one included
        at = torch.arange(row.shape[1], device=row.device).expand(batch, -1)
        place = torch.zeros_like(at).scatter_reduce(1, count - 1, torch.where(kept > 0, at, 0), "amax")
        rank = count[:, self.frames :, None] - 1 - torch.arange(self.frames - 1, -1, -1, device=row.device)
        index = place.gather(1, rank.flatten(1))  # [B, T F]
        stack = row.gather(1, index[..., None].expand(-1, -1, self.width)).unflatten(1, (steps, self.frames))
        action = self.head(torch.cat([stack.flatten(2), observation], -1))
        return StackState(stack[:, -1]), action


class Recurrent(Baseline):
    """A gated recurrent unit; what is not kept does not reach its state: h = h + share (gru(x, h) - h)."""

    def __init__(self, width: int, actions: int, hidden: int = 128):
        super().__init__()
        self.embed, self.cell = nn.Linear(width, 64), nn.GRU(64, hidden, batch_first=True)
        self.head = perceptron(hidden + width, 128, actions)

    def init_state(self, batch: int) -> Tensor:
        """Zeros."""
        return self.cell.weight_hh_l0.new_zeros(batch, self.cell.hidden_size)

    def sequence(self, state, observation, share):
        """Where all is kept, in one call; else step by step."""
        x = nn.functional.gelu(self.embed(observation))
        if torch.all(share == 1):
            y, last = self.cell(x, state[None])
            return last[0], self.head(torch.cat([y, observation], -1))
        hidden = []
        for t in range(x.shape[1]):
            new = self.cell(x[:, t : t + 1], state[None].contiguous())[1][0]
            state = torch.lerp(state, new, share[:, t, None])
            hidden.append(state)
        return state, self.head(torch.cat([torch.stack(hidden, 1), observation], -1))


class EventState(NamedTuple):
    """What can be attended to: a ring of slots."""

    key: Tensor  # [B, S, D]
    value: Tensor  # [B, S, D]
    share: Tensor  # [B, S]; 0: the slot is empty
    count: Tensor  # [B] int64, steps kept so far


class Attention(Baseline):
    """Attention to the last `slots` steps that were kept, and to nothing.

        y = softmax(q k^T / sqrt(D) + log share) v, over the kept and one learned pair

    With no gate it is a window, or the full context where `slots` are many; with a gate, a buffer of events.
    layers: the second attends to what the first made of the steps.
    """

    def __init__(self, width: int, actions: int, slots: int, layers: int = 1, dim: int = 64, heads: int = 4):
        super().__init__()
        if slots < 1 or layers < 1 or dim % heads:
            raise ConfigError(f"slots {slots}, layers {layers}, heads {heads} of {dim}; wanted them to make sense")
        self.slots, self.dim, self.heads = slots, dim, heads
        self.embed = nn.Linear(width, dim) if layers > 1 else nn.Identity()
        first = dim if layers > 1 else width
        self.qkv = nn.ModuleList(nn.Linear(dim if i else first, 3 * dim) for i in range(layers))
        self.nothing = nn.Parameter(torch.zeros(layers, 2, dim))
        self.mix = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), perceptron(dim, 2 * dim, dim)) for _ in range(layers))
        self.head = perceptron(dim + width, 128, actions)

    def init_state(self, batch: int) -> tuple[EventState, ...]:
        """Empty slots, for each layer."""
        blank = self.nothing.new_zeros(batch, self.slots, self.dim)
        count = torch.zeros(batch, dtype=torch.int64, device=blank.device)
        return tuple(EventState(blank, blank, blank[..., 0], count) for _ in self.qkv)

    def sequence(self, state, observation, share):
        """Layer by layer."""
        x, states = self.embed(observation), []
        for layer, qkv in enumerate(self.qkv):
            new, y = self._attended(layer, state[layer], qkv(x), share)
            states.append(new)
            x = y if len(self.qkv) == 1 else x + y
            x = x + self.mix[layer](x) if len(self.qkv) > 1 else x
        return tuple(states), self.head(torch.cat([x, observation], -1))

    def _attended(self, layer: int, state: EventState, projected: Tensor, share: Tensor):
        query, key, value = projected.chunk(3, -1)
        kept, steps = share > 0, share.shape[1]
        number = state.count[:, None] + kept.cumsum(1)  # [B, T] steps kept up to this one
        slot = torch.arange(self.slots, device=share.device)
        # the number of the step in each slot: the largest n <= count with (n - 1) % slots == slot
        last = state.count[:, None]
        held = last - (last - 1 - slot) % self.slots  # [B, S]
        numbers = torch.cat([held, number], 1)[:, None]  # [B, 1, S + T]
        now = number[..., None]
        seen = (numbers <= now) & (numbers > now - self.slots) & (numbers > 0)
        filled = torch.cat([state.share > 0, kept], 1)[:, None]
        at = torch.arange(steps, device=share.device)
        causal = torch.cat([torch.ones(steps, self.slots, dtype=torch.bool, device=share.device), at <= at[:, None]], 1)
        bias = torch.cat([state.share, share], 1).clamp_min(1e-9).log()[:, None]
        bias = torch.where(seen & filled & causal, bias, -torch.inf)
        nothing = self.nothing[layer][:, None, None].expand(-1, len(share), -1, -1)
        keys = torch.cat([state.key, key, nothing[0]], 1)
        values = torch.cat([state.value, value, nothing[1]], 1)
        bias = torch.cat([bias, bias.new_zeros(*bias.shape[:2], 1)], -1)[:, None]
        q, k, v = (a.unflatten(-1, (self.heads, -1)).transpose(1, 2) for a in (query, keys, values))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, self.heads, -1, -1))
        return self._kept(state, key, value, share, number), y.transpose(1, 2).flatten(2)

    def _kept(self, state: EventState, key: Tensor, value: Tensor, share: Tensor, number: Tensor) -> EventState:
        """The ring after these steps: each kept step in the slot of its number, the latest on top."""
        spare = self.slots  # where steps go that are not kept or no longer seen
        fresh = (share > 0) & (number > number[:, -1:] - self.slots)
        slot = torch.where(fresh, (number - 1) % self.slots, spare)
        index = slot[..., None].expand(-1, -1, self.dim)

        def put(into: Tensor, new: Tensor) -> Tensor:
            wide = torch.cat([into, torch.zeros_like(into[:, :1])], 1)
            return wide.scatter(1, index if new.ndim == 3 else slot, new)[:, : self.slots]

        return EventState(put(state.key, key), put(state.value, value), put(state.share, share), number[:, -1])
