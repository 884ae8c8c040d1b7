"""GatedMemory: any rule behind a write gate, in elapsed time. A frame that is shut out leaves no trace."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.errors import ConfigError, NoKernel
from streammem.memory.retention import Keep
from streammem.memory.rule import Rule
from streammem.nn.initial import initial, on_simplex, retention_of
from streammem.nn.memory_layer import MemoryLayer
from streammem.policy.gate import Ruled, WriteGate
from streammem.rules import KDN, Comba
from streammem.types import Gates, Tokens

APART = (Comba, KDN)  # Comba corrects the queries of a chunk by its keys; KDN ages in a frame that is shut out


class GatedState(NamedTuple):
    """What was learned, by head, and since when nothing was."""

    memory: object  # state of the rule: [B, H, ...]
    gate: object  # state of the gate
    idle_s: Tensor  # [B] since the last write; how much the memory has faded since


class Writable(NamedTuple):
    """Frames as the memory may write them; leaves [B, ...], or [B, T, ...] for a sequence."""

    key: Tensor  # [..., H, N, K]
    value: Tensor  # [..., H, N, V]
    logits: Tensor  # [..., H, N, C] of the gate
    momentum: Tensor  # [..., H, 1, 1]


class Timed(NamedTuple):
    """What the clock says of frames; leaves [B] or [B, T]."""

    take: Tensor  # bool
    elapsed_s: Tensor
    late_s: Tensor


class Unit(nn.Module):
    """Rates of 1 / N with nothing forgotten, for a gate to scale; the momentum is learned.

    Shapes: as `nn.rates.Rates`.
    """

    def __init__(self, dim: int, heads: int, most: float):
        super().__init__()
        self.most = most
        self.momentum = nn.Linear(dim, heads)

    def forward(self, x: Tensor) -> Gates:
        momentum = self.momentum(x).mean(-2).sigmoid().transpose(0, 1)[..., None, None]  # [T, B, H, 1, 1]
        one = torch.ones_like(momentum)
        return Gates(one.expand(*one.shape[:3], x.shape[-2], 1) * (self.most / x.shape[-2]), one, momentum)


class GatedMemory(nn.Module):
    """A memory layer whose learning rate is a gate's, and whose forgetting goes by the clock.

        k, q, v = x W, k and q on the unit sphere;  rate = gate(x), 0 where the frame may not be taken
        M = rule(exp(-r idle_s) M, k, v, most rate exp(-r late_s) / N)  where any rate > 0, else M as it is, bit by bit
        y = W exp(-r idle_s) q M

    forget_s: time in which a memory fades to 1 / e, to be learned from there by head; None never forgets (r = 0).
    most: the highest rate of a frame. mixed: whether readouts of the heads are mapped back to D; else y is what they
    are, side by side.

    Shapes: x [B, N, D] -> y [B, N, D], or [B, N, H V] where not mixed; a sequence [B, T, N, D].
    Raises: ConfigError where forget_s is not positive, or the rule keeps everything and could not forget.
    """

    def __init__(
        self,
        dim: int,
        gate: WriteGate,
        rule: Rule,
        widths: tuple[int, int] = (32, 32),
        forget_s: float | None = None,
        hidden: int = 64,
        most: float = 1.0,
        mixed: bool = True,
    ):
        super().__init__()
        if forget_s is not None and not forget_s > 0:
            raise ConfigError(f"forget_s is {forget_s}; wanted seconds above 0, or None")
        if forget_s is not None and isinstance(retention_of(rule), Keep):
            raise ConfigError(f"forget_s is {forget_s} and {rule} keeps everything; wanted a rule that decays, or None")
        weights = initial(rule, gate.heads, *widths, hidden)
        self.layer = MemoryLayer(dim, gate.heads, rule, weights, widths, rates=Unit(dim, gate.heads, most))
        if not mixed:
            self.layer.out = nn.Identity()
        if on_simplex(rule):  # a step of the optimiser would leave it
            self.layer.initial.requires_grad_(False)
        self.gate, self.rule, self.most = gate, rule, most
        fade = None if forget_s is None else torch.full((gate.heads,), 1 / forget_s).log()
        self.log_fade = None if fade is None else nn.Parameter(fade)

    def init_state(self, batch: int, tokens: int) -> GatedState:
        """State before the first frame of `tokens` tokens."""
        memory = self.layer.init_state(batch).memory
        idle = next(tree.leaves(memory)).new_zeros(batch, dtype=torch.float64)
        return GatedState(memory, self.gate.init_state(batch, tokens), idle)

    def writable(self, x: Tensor, confidence: Tensor | None) -> Writable:
        """Frames x [B, T, N, D] made ready; nothing of it depends on the memory."""
        _, tokens = self.layer.tokens((), x)
        first = tree.map(lambda a: a.transpose(0, 1), tokens)  # [B, T, H, N, ...]
        return Writable(first.key, first.value, self.gate.logits(x, confidence), first.gates.momentum)

    def observe(self, state: GatedState, frame: Writable, timed: Timed) -> tuple:
        """Writes one frame, unless the memory would not be finite; returns (state, Ruled, refused [B] bool)."""
        error = frame.value - self.rule.read(state.memory, frame.key) if self.gate.asks else None
        gate, ruled = self._ruled(state.gate, frame.logits, timed, error)
        written, idle_s, retention = self._idle(state.idle_s, ruled.rate, timed.elapsed_s)
        gates = self._gates(ruled.rate, frame.momentum, retention, timed.late_s)
        new = self.rule.write(state.memory, frame.key, frame.value, gates)
        finite = tree.finite(new)
        return GatedState(tree.where(written & finite, new, state.memory), gate, idle_s), ruled, written & ~finite

    def read(self, state: GatedState, x: Tensor) -> Tensor:
        """What is remembered at frames x [B, N, D]; writes nothing."""
        fade = self._kept(state.idle_s)  # [B, H, 1, 1]
        _, tokens = self.layer.tokens((), x[:, None])
        y = fade * self.rule.read(state.memory, tokens.query[0])
        return self._out(y)

    def sequence(self, state: GatedState, frames: Writable, timed: Timed, query: Tensor, chunk: int | None):
        """T frames written and read one after the other: (state, y [B, T, N, D], Ruled, refused [B, T]), as steps are.

        query: x [B, T, N, D] to read at. chunk: frames that the rule takes at once, where it has a chunk form and the
        gate does not ask the memory; else None. Chunks refuse nothing: a memory that diverges stays so. Without chunks
        the host looks which frames are shut out of every stream, and passes them over.

        Raises: NoKernel where the rule has no chunk form, ConfigError where the gate asks.
        """
        if self.gate.asks and chunk is not None:
            raise ConfigError(f"chunk is {chunk} and {type(self.gate).__name__} asks the memory; wanted chunk=None")
        if self.gate.asks:
            return self._stepped(state, frames, timed, query)
        if chunk is not None and isinstance(self.rule, APART):
            raise NoKernel(f"chunks of {self.rule} are not its frames written apart from reading; wanted chunk=None")
        gate, ruled = self._ruled_all(state.gate, frames.logits, timed)
        idle_s, kept, fades = self._idle_all(state.idle_s, ruled.rate, timed.elapsed_s)
        gates = self._gates(ruled.rate, frames.momentum, kept, timed.late_s)
        _, asked = self.layer.tokens((), query)
        first = tree.map(lambda a: a.transpose(0, 1), (frames.key, frames.value, gates))  # [T, B, ...]
        tokens, refused = Tokens(asked.query, *first), torch.zeros_like(timed.take)
        if chunk is None:
            memory, y, refused = self._written(state.memory, tokens)
        else:
            memory, y = self.rule.sequence(state.memory, tokens, chunk)
        y = self._out(fades * y.transpose(0, 1))
        return GatedState(memory, gate, idle_s), y, ruled, refused

    def _written(self, memory, x: Tokens) -> tuple:
        """Frames [T, B, ...] one by one, where any is written: (memory, y [T, B, H, N, V], refused [B, T])."""
        written = (x.gates.lr > 0).flatten(2).any(2)  # [T, B]
        writes = written.any(1).nonzero()[:, 0].tolist()
        refused, out = torch.zeros_like(written), []
        for start, end in zip([-1, *writes], [*writes, len(written)]):
            if start >= 0:
                frame = tree.map(lambda a, t=start: a[t], x)
                new = self.rule.write(memory, frame.key, frame.value, frame.gates)
                finite = tree.finite(new)
                refused[start] = written[start] & ~finite
                memory = tree.where(written[start] & finite, new, memory)
            if end > max(start, 0):
                query = x.query[max(start, 0) : end]  # [n, B, H, N, K], all at one memory
                y = self.rule.read(memory, query.movedim(0, 2).flatten(2, 3))
                out.append(y.unflatten(2, (len(query), -1)).movedim(2, 0))
        return memory, torch.cat(out), refused.T

    def _stepped(self, state: GatedState, frames: Writable, timed: Timed, query: Tensor):
        out, told = [], []
        for t in range(query.shape[1]):
            frame, now = (tree.map(lambda a, t=t: a[:, t], x) for x in (frames, timed))
            state, *verdict = self.observe(state, frame, now)
            out.append(self.read(state, query[:, t]))
            told.append(tuple(verdict))
        return state, torch.stack(out, 1), *tree.map(lambda *a: torch.stack(a, 1), *told)

    def _ruled(self, state, logits: Tensor, timed: Timed, error: Tensor | None = None) -> tuple:
        """The gate's verdict; a frame that may not be taken has no rate and leaves the gate's state alone."""
        new, ruled = self.gate.rate(state, logits, timed.elapsed_s, error)
        take = timed.take[..., None, None, None]
        ruled = Ruled(torch.where(take, ruled.rate, 0.0), torch.where(take, ruled.cost, 0.0))
        return (tree.where(timed.take, new, state) if self.gate.in_order else state), ruled

    def _ruled_all(self, state, logits: Tensor, timed: Timed) -> tuple:
        if not self.gate.in_order:
            return self._ruled(state, logits, timed)
        each = []
        for t in range(logits.shape[1]):
            state, ruled = self._ruled(state, logits[:, t], tree.map(lambda a, t=t: a[:, t], timed))
            each.append(ruled)
        return state, tree.map(lambda *a: torch.stack(a, 1), *each)

    def _idle(self, idle_s: Tensor, rate: Tensor, elapsed_s: Tensor) -> tuple:
        """(written [B], idle time after the frame, retention of its write [B, H, 1, 1])."""
        written = (rate > 0).flatten(1).any(1)
        idle_s = idle_s + elapsed_s
        waited = torch.where(written, idle_s, torch.zeros_like(idle_s))
        return written, torch.where(written, torch.zeros_like(idle_s), idle_s), self._kept(waited)

    def _idle_all(self, idle_s: Tensor, rate: Tensor, elapsed_s: Tensor) -> tuple:
        """(idle time after T frames, retention of their writes, fading of their reads); these [B, T, H, 1, 1]."""
        each = []
        for t in range(rate.shape[1]):
            _, idle_s, retention = self._idle(idle_s, rate[:, t], elapsed_s[:, t])
            each.append((retention, self._kept(idle_s)))
        return idle_s, *(torch.stack(x, 1) for x in zip(*each))

    def _kept(self, seconds: Tensor) -> Tensor:
        """Share of a memory that is left after seconds [...]: [..., H, 1, 1]."""
        like = self.layer.qkv.weight
        if self.log_fade is None:
            return like.new_ones(()).expand(*seconds.shape, self.gate.heads, 1, 1)
        return (-self.log_fade.exp() * seconds.to(like.dtype)[..., None]).exp()[..., None, None]

    def _gates(self, rate: Tensor, momentum: Tensor, retention: Tensor, late_s: Tensor) -> Gates:
        return Gates(self.most * rate * self._kept(late_s) / rate.shape[-2], retention, momentum)

    def _out(self, y: Tensor) -> Tensor:
        """[..., H, N, V] -> [..., N, D or H V]; a memory about to diverge says nothing, and not infinity."""
        return self.layer.out(torch.where(y.isfinite(), y, 0.0).transpose(-3, -2).flatten(-2))
