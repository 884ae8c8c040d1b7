"""Memory as a context, as a gate, as a layer: three arrangements of a memory and attention.

All three have `init_state(batch)` and `sequence(state, x [B, T, D]) -> (state, y)`, causal in T.

Source: Titans, Behrouz et al. 2025, arXiv:2501.00663.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem.nn.attention import WindowAttention, WindowState
from streammem.nn.memory_layer import LayerState, MemoryLayer


class TitansState(NamedTuple):
    """State of both branches."""

    memory: LayerState
    attention: WindowState | tuple


class Arrangement(nn.Module):
    """An attention and a memory. chunk: as in `scan`, for the memory."""

    def __init__(self, attention: WindowAttention, memory: MemoryLayer, chunk: int | None = None):
        super().__init__()
        self.attention, self.memory, self.chunk = attention, memory, chunk

    def init_state(self, batch: int) -> TitansState:
        """State before the first token."""
        return TitansState(self.memory.init_state(batch), self.attention.init_state(batch))


class MAC(Arrangement):
    """Memory as a context: each segment attends to what the memory says of it, and is then written.

        h = read(M_{t-1}, x);  y = attention(x; [persistent, h, x]), causal within the segment
        M_t, m = memory(y), token by token;  out = norm(y) sigmoid(norm(m))

    The segments of a call begin at its first token; cut a stream at multiples of `segment`.

    attention: its window is the segment.
    Differs: the memory reads after each token's own write, so that nothing of a segment is seen before its time.
    """

    def init_state(self, batch: int) -> TitansState:
        """State before the first token."""
        return TitansState(self.memory.init_state(batch), ())

    def sequence(self, state: TitansState, x: Tensor) -> tuple[TitansState, Tensor]:
        """Reads, attends and writes segment by segment."""
        memory, outs = state.memory, []
        for part in x.split(self.attention.window, 1):
            recalled = self.memory.read(memory, part)
            y = self._attended(part, recalled)
            memory, m = self.memory.sequence(memory, y, chunk=self.chunk)
            outs.append(_gated(y, m))
        return TitansState(memory, ()), torch.cat(outs, 1)

    def _attended(self, x: Tensor, recalled: Tensor) -> Tensor:
        always, steps = self.attention.always, x.shape[1]
        causal = torch.ones(steps, steps, dtype=torch.bool, device=x.device).tril()
        seen = torch.cat([causal.new_ones(steps, len(always)), causal, causal], -1)
        context = torch.cat([always.expand(len(x), -1, -1), recalled, x], 1)
        return self.attention.attend(x, context, seen.expand(len(x), -1, -1))


class MAG(Arrangement):
    """Memory as a gate: attention over a window beside a memory; out = norm(attention(x)) sigmoid(norm(memory(x)))."""

    def sequence(self, state: TitansState, x: Tensor) -> tuple[TitansState, Tensor]:
        """Both branches over T tokens."""
        attention, y = self.attention.sequence(state.attention, x)
        memory, m = self.memory.sequence(state.memory, x, chunk=self.chunk)
        return TitansState(memory, attention), _gated(y, m)


class MAL(Arrangement):
    """Memory as a layer: a memory, and attention over a window of what it says; out = attention(x + memory(x))."""

    def sequence(self, state: TitansState, x: Tensor) -> tuple[TitansState, Tensor]:
        """One after the other over T tokens."""
        memory, m = self.memory.sequence(state.memory, x, chunk=self.chunk)
        attention, y = self.attention.sequence(state.attention, x + m)
        return TitansState(memory, attention), y


def _gated(y: Tensor, m: Tensor) -> Tensor:
    return nn.functional.rms_norm(y, y.shape[-1:]) * nn.functional.rms_norm(m, m.shape[-1:]).sigmoid()
