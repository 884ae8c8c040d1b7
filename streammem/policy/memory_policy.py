"""MemoryPolicy: what robots saw, remembered, and made into actions. Writing and reading are separate calls."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.errors import ShapeError
from streammem.policy.clock import Admission, Clock, Counters, started
from streammem.policy.encoders import Observation, cleaned, finite_rows
from streammem.policy.gated_memory import GatedMemory, GatedState, Timed, Writable


class PolicyState(NamedTuple):
    """All that a policy carries through an episode; its size never changes."""

    memory: GatedState
    seen: Tensor  # [B, N, D] the newest observation that was taken, encoded
    clock: Clock
    counters: Counters


class MemoryPolicy(nn.Module):
    """A policy with a memory.

        x = encoder(observation);  memory written at x where the gate opens
        y = memory read at x;  action = head([x, y])

    tokens: N of every observation. admission: what is taken of what comes late or twice.

    Shapes: actions as the head has them. `batch` streams are independent.
    """

    def __init__(
        self,
        encoder: nn.Module,
        memory: GatedMemory,
        head: nn.Module,
        tokens: int = 1,
        admission: Admission | None = None,
    ):
        super().__init__()
        self.encoder, self.memory, self.head, self.tokens = encoder, memory, head, tokens
        self.admission = Admission() if admission is None else admission

    @property
    def rule(self):
        """What learns."""
        return self.memory.rule

    def init_state(self, batch: int) -> PolicyState:
        """State before the first observation."""
        like = self.memory.layer.qkv.weight
        seen = like.new_zeros(batch, self.tokens, like.shape[-1])
        return PolicyState(self.memory.init_state(batch, self.tokens), seen, *started(batch, like.device))

    def observe(self, state: PolicyState, observation: Observation, time_s: Tensor, valid: Tensor | None = None):
        """Writes what is worth it; returns the state. At any rate, in any order of times.

        time_s: [B], seconds, when it was sensed; resolved in float64. valid: [B] bool, all where it is None. What is
        invalid, not finite, seen already or too late changes nothing but a counter.
        """
        finite = finite_rows(observation, 1)
        valid = torch.ones_like(finite) if valid is None else valid
        clock, counters, admitted = self.admission(state.clock, state.counters, time_s, valid, finite)
        observation = cleaned(observation)
        x = self._encoded(observation)
        frame = tree.map(lambda a: a[:, 0], self._writable(x[:, None], observation, 1))
        timed = Timed(admitted.take, admitted.elapsed_s, admitted.late_s)
        memory, ruled, refused = self.memory.observe(state.memory, frame, timed)
        seen = tree.where(admitted.newest, x, state.seen)
        counted = _counted(counters, ruled.rate[:, None], refused[:, None])
        return PolicyState(memory, seen, clock, counted)

    def act(self, state: PolicyState, query: Observation | None = None, noise: Tensor | None = None) -> Tensor:
        """The action, [B, A] or as the head has it; changes nothing.

        query: what to act on; None, and wherever it is not finite: the newest observation that was taken.
        """
        x = state.seen
        if query is not None:
            x = tree.where(finite_rows(query, 1), self._encoded(cleaned(query)), x)
        return self.head(self._joined(x, self.memory.read(state.memory, x)), noise)

    def step(self, state: PolicyState, observation: Observation, time_s: Tensor, valid: Tensor | None = None) -> tuple:
        """Observes, then acts on the newest: (state, action)."""
        state = self.observe(state, observation, time_s, valid)
        return state, self.act(state)

    def reset(self, state: PolicyState, mask: Tensor) -> PolicyState:
        """Streams where `mask` [B] is true start over.

        Raises: ShapeError where the mask is not [B] bool.
        """
        if mask.shape != state.clock.newest_s.shape or mask.dtype != torch.bool:
            raise ShapeError(f"mask is {list(mask.shape)} {mask.dtype}; wanted [B] bool, B = {len(state.seen)}")
        return tree.where(mask, self.init_state(len(mask)), state)

    def features(
        self,
        state: PolicyState,
        observation: Observation,
        time_s: Tensor,
        valid: Tensor | None = None,
        reset: Tensor | None = None,
        chunk: int | None = None,
    ) -> tuple:
        """T steps of recorded episodes, for training: (state, h, Ruled), h what the head makes actions of.

        Leaves of the observation are [B, T, ...]; time_s, valid, reset: [B, T]. reset: the stream starts over before
        that step; the host looks at it. chunk: as in `GatedMemory.sequence`.

        Shapes: h [B, T, D'], rates and costs [B, T, H, N, 1].
        """
        finite = finite_rows(observation, 2)
        valid = torch.ones_like(finite) if valid is None else valid
        observation = cleaned(observation)
        x = self._encoded(observation)
        frames = self._writable(x, observation, 2)
        cuts = [] if reset is None else reset.any(0).nonzero()[:, 0].tolist()
        bounds = sorted({0, *cuts, x.shape[1]})
        parts = []
        for start, end in zip(bounds, bounds[1:]):
            if reset is not None:
                state = self.reset(state, reset[:, start])
            span = tree.map(lambda a, s=start, e=end: a[:, s:e], (x, frames, time_s, valid, finite))
            state, *told = self._span(state, *span, chunk)
            parts.append(tuple(told))
        return state, *tree.map(lambda *a: torch.cat(a, 1), *parts)

    def sequence(self, state: PolicyState, observation: Observation, time_s: Tensor, **options) -> tuple:
        """(state, actions [B, T, ...]) of T steps, as T calls of `step` would give; options as for `features`."""
        state, h, _ = self.features(state, observation, time_s, **options)
        return state, self.head(h)

    def _span(self, state: PolicyState, x, frames: Writable, time_s, valid, finite, chunk) -> tuple:
        """Steps without a reset: (state, h, Ruled)."""
        clock, counters, timed, held = self._admitted(state, time_s.to(torch.float64), valid, finite)
        index = held[..., None, None].expand(-1, -1, *x.shape[2:])
        acted = torch.cat([state.seen[:, None], x], 1).gather(1, index)
        memory, y, ruled, refused = self.memory.sequence(state.memory, frames, timed, acted, chunk)
        counted = _counted(counters, ruled.rate, refused)
        return PolicyState(memory, acted[:, -1], clock, counted), self._joined(acted, y), ruled

    def _admitted(self, state: PolicyState, time_s: Tensor, valid: Tensor, finite: Tensor) -> tuple:
        """(clock, counters, Timed, held) of T steps; held [B, T]: what is acted on, an index into [seen, x].

        Steps that all come in order and whole, as a recording's do, are admitted at once: the host looks whether.
        """
        clock, counters, each, held = state.clock, state.counters, [], torch.zeros_like(time_s[:, 0], dtype=torch.int64)
        before = torch.cat([clock.newest_s[:, None], time_s[:, :-1]], 1)
        if torch.all(valid & finite & (time_s > before)):
            elapsed_s = torch.where(before.isfinite(), time_s - before, 0.0)
            clock = Clock(time_s[:, -1], torch.cat([clock.recent_s, time_s], 1)[:, -clock.recent_s.shape[1] :])
            missing = counters.missing + self.admission.missing(elapsed_s).sum(1)
            counters = counters._replace(taken=counters.taken + time_s.shape[1], missing=missing)
            held = torch.arange(1, time_s.shape[1] + 1, device=time_s.device).expand_as(time_s)
            return clock, counters, Timed(valid, elapsed_s, torch.zeros_like(elapsed_s)), held
        for t in range(time_s.shape[1]):
            clock, counters, admitted = self.admission(clock, counters, time_s[:, t], valid[:, t], finite[:, t])
            held = torch.where(admitted.newest, t + 1, held)
            each.append((Timed(admitted.take, admitted.elapsed_s, admitted.late_s), held))
        return clock, counters, *tree.map(lambda *a: torch.stack(a, 1), *each)

    def _encoded(self, observation: Observation) -> Tensor:
        """[..., N, D]."""
        x = self.encoder(observation)
        if x.shape[-2] != self.tokens:
            raise ShapeError(f"the encoder made {x.shape[-2]} tokens; wanted tokens = {self.tokens}")
        return x

    def _writable(self, x: Tensor, observation: Observation, dims: int) -> Writable:
        """Frames x [B, T, N, D] for the memory; dims: leading dimensions of the observation, 1 where T is 1."""
        confidence = observation.confidence
        if confidence is not None and dims == 1:
            confidence = confidence[:, None]
        return self.memory.writable(x, confidence)

    def _joined(self, x: Tensor, y: Tensor) -> Tensor:
        """[..., N, D] twice -> [..., 2 N D]."""
        return torch.cat([x.flatten(-2), y.flatten(-2)], -1)


def _counted(counters: Counters, rate: Tensor, refused: Tensor) -> Counters:
    """Counters after frames of rates [B, T, H, N, 1], some of which were refused, [B, T]."""
    written = (rate > 0).flatten(2).any(2) & ~refused
    return counters._replace(written=counters.written + written.sum(1), refused=counters.refused + refused.sum(1))


class Residual(nn.Module):
    """Memory added to the features of a policy that exists, and almost nothing of it at the start.

        x + tanh(alpha) memory(x),    alpha = 1e-3

    memory: (state, x) -> (state, y), as `nn.MemoryLayer` is; y as x.

    Shapes: x [B, N, D] -> the same.
    Source: RoboTTT, eq. (3).
    """

    def __init__(self, memory: nn.Module, alpha: float = 1e-3):
        super().__init__()
        self.memory = memory
        self.alpha = nn.Parameter(torch.tensor(alpha))

    def init_state(self, batch: int):
        """State of the memory."""
        return self.memory.init_state(batch)

    def forward(self, state, x: Tensor) -> tuple:
        state, y = self.memory(state, x)
        return state, x + self.alpha.tanh() * y

    def sequence(self, state, x: Tensor, **options) -> tuple:
        """T frames; options as for `MemoryLayer.sequence`."""
        state, y = self.memory.sequence(state, x, **options)
        return state, x + self.alpha.tanh() * y
