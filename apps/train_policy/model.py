"""What acts, whatever it is: our policy or a baseline, behind one door for training and for the loop."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.errors import ConfigError
from streammem.policy.encoders import Observation
from streammem.policy.gate import GATES, WriteGate
from streammem.policy.memory_policy import MemoryPolicy
from streammem.policy.tasks.recall import ACTION, OBSERVATION

from .baselines import Attention, FrameStack, Memoryless, Recurrent
from .repeat import repeated
from .settings import PolicySettings


class Said(NamedTuple):
    """What a policy says of T steps."""

    state: object
    action: Tensor  # [B, T, A]
    share: Tensor  # [B, T] how much of each step was kept
    cost: Tensor  # [] of keeping: the mean of -log(1 - openness) of the gate, which pulls however open it is


class Contender(nn.Module):
    """A policy as training and the benchmark see it.

    Shapes: observation [B, T, D], confidence, time_s, reset [B, T]; one step less T.
    """

    def init_state(self, batch: int):
        """State before the first step."""
        raise NotImplementedError

    def sequence(self, state, observation: Tensor, confidence: Tensor, time_s: Tensor, reset=None) -> Said:
        """T steps. reset: [B, T] bool, streams that begin anew before that step; for training: the host looks at it."""
        raise NotImplementedError

    def gates(self) -> list[nn.Parameter]:
        """What is learned in the gate."""
        raise NotImplementedError

    def step(self, state, observation: Tensor, confidence: Tensor, time_s: Tensor) -> tuple:
        """One instant; returns (state, action [B, A], share [B])."""
        said = self.sequence(state, observation[:, None], confidence[:, None], time_s[:, None])
        return said.state, said.action[:, 0], said.share[:, 0]


class Ours(Contender):
    """A memory policy. chunk: steps at once, where the rule has a chunk form.

    doublings: how often a stretch of work that a sequence ends is done twice, see `repeat`; for training.
    """

    def __init__(self, policy: MemoryPolicy, chunk: int | None):
        super().__init__()
        self.policy, self.chunk = policy, chunk

    def init_state(self, batch):
        return self.policy.init_state(batch)

    def gates(self):
        return list(self.policy.memory.gate.parameters())

    def sequence(self, state, observation, confidence, time_s, reset=None, doublings: int = 0):
        seen = Observation(vector=observation, confidence=confidence)
        after, h, ruled = self.policy.features(state, seen, time_s, reset=reset, chunk=self.chunk)
        if doublings:
            before = state.memory.memory
            memory = repeated(self.policy, before, observation, ruled.rate, doublings, self.chunk or 64)
            after = after._replace(memory=after.memory._replace(memory=memory))
        return Said(after, self.policy.head(h), ruled.rate.amax((2, 3, 4)), _charged(ruled.cost))

    def step(self, state, observation, confidence, time_s):
        before = state.counters.written
        state, action = self.policy.step(state, Observation(vector=observation, confidence=confidence), time_s)
        return state, action, (state.counters.written - before).to(action.dtype)


class GatedState(NamedTuple):
    """State of a baseline and of its gate."""

    body: object
    gate: object
    newest_s: Tensor  # [B]; NaN before the first step


class Gated(Contender):
    """A gate of ours before a baseline; None keeps all.

    Raises: ConfigError where the gate asks a memory what it predicts.
    """

    def __init__(self, gate: WriteGate | None, body: nn.Module):
        super().__init__()
        if gate is not None and gate.asks:
            raise ConfigError(f"{type(gate).__name__} asks a memory; wanted a gate that looks at observations alone")
        self.gate, self.body = gate, body

    def init_state(self, batch):
        gate = () if self.gate is None else self.gate.init_state(batch, 1)
        return GatedState(self.body.init_state(batch), gate, torch.full((batch,), torch.nan, dtype=torch.float64))

    def gates(self):
        return [] if self.gate is None else list(self.gate.parameters())

    def sequence(self, state, observation, confidence, time_s, reset=None):
        cuts = [] if reset is None else reset.any(0).nonzero()[:, 0].tolist()
        bounds, parts = sorted({0, *cuts, observation.shape[1]}), []
        for start, end in zip(bounds, bounds[1:]):
            if reset is not None:
                state = tree.where(reset[:, start], self.init_state(len(reset)), state)
            state, *told = self._span(state, *(x[:, start:end] for x in (observation, confidence, time_s)))
            parts.append(told)
        action, share, cost = (torch.cat(x, 1) for x in zip(*parts))
        return Said(state, action, share, _charged(cost))

    def _span(self, state: GatedState, observation, confidence, time_s) -> tuple:
        gate, share, cost = self._ruled(state, observation, confidence, time_s)
        body, action = self.body.sequence(state.body, observation, share)
        return GatedState(body, gate, time_s[:, -1].double()), action, share, cost

    def _ruled(self, state: GatedState, observation, confidence, time_s) -> tuple:
        """(state of the gate, share [B, T], cost [B, T])."""
        if self.gate is None:
            one = torch.ones_like(confidence)
            return (), one, one
        logits = self.gate.logits(observation[:, :, None], confidence)  # [B, T, 1, 1, C], after C of the gate's own
        before = torch.cat([state.newest_s[:, None], time_s[:, :-1]], 1)
        elapsed_s = torch.nan_to_num(time_s - before)
        if not self.gate.in_order:
            gate, ruled = self.gate.rate(state.gate, logits, elapsed_s)
            return gate, ruled.rate[:, :, 0, 0, 0], ruled.cost[:, :, 0, 0, 0]
        gate, each = state.gate, []
        for t in range(logits.shape[1]):
            gate, ruled = self.gate.rate(gate, logits[:, t], elapsed_s[:, t])
            each.append(ruled)
        return gate, *(torch.stack([getattr(x, name)[:, 0, 0, 0] for x in each], 1) for name in ("rate", "cost"))


def _charged(openness: Tensor) -> Tensor:
    return -torch.log1p(-openness.clamp_max(1 - 1e-6)).mean()


def made(s: PolicySettings) -> Contender:
    """The policy of the settings, untrained."""
    if s.kind == "memory":
        return Ours(s.recipe.made(), s.chunk)
    gate = None if s.gate == "none" else GATES[s.gate](OBSERVATION, 1)
    bodies = {
        "memoryless": lambda: Memoryless(OBSERVATION, ACTION),
        "stack": lambda: FrameStack(OBSERVATION, ACTION, s.frames),
        "gru": lambda: Recurrent(OBSERVATION, ACTION),
        "attention": lambda: Attention(OBSERVATION, ACTION, s.slots, s.layers),
    }
    return Gated(gate, bodies[s.kind]())
