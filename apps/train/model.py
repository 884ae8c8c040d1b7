"""A small model around a rule: embedding, blocks of a memory layer each, read-out."""

import torch
from torch import Tensor, nn

from streammem.errors import ConfigError
from streammem.nn.initial import initial, on_simplex
from streammem.nn.memory_layer import MemoryLayer
from streammem.nn.rates import Rates

from .settings import ModelSettings
from .tasks import Task


class SequenceModel(nn.Module):
    """Scores of the answers at every token of a sequence.

        x = embed(inputs);  x = x + memory(norm(x)), block by block;  scores = norm(x) W

    Shapes: inputs [B, T] symbols or [B, T, channels] -> [B, T, outputs].
    Raises: ConfigError where a sequence is not whole frames.
    """

    def __init__(self, settings: ModelSettings, task: Task):
        super().__init__()
        s, self.settings = settings, settings
        self.embed = nn.Embedding(task.symbols, s.width) if task.symbols else nn.Linear(task.channels, s.width)
        self.norms = nn.ModuleList(nn.RMSNorm(s.width) for _ in range(s.blocks))
        self.memories = nn.ModuleList(self._memory() for _ in range(s.blocks))
        self.norm, self.head = nn.RMSNorm(s.width), nn.Linear(s.width, task.outputs)

    def _memory(self) -> MemoryLayer:
        s = self.settings
        rule = s.rule.made(s.frame)
        weights = initial(rule, s.heads, s.key, s.value, s.hidden)
        rates = Rates(s.width, s.heads, s.most, decay=s.decay)
        layer = MemoryLayer(s.width, s.heads, rule, weights, (s.key, s.value), s.conv, rates, s.gated)
        if on_simplex(rule):  # a step of the optimiser would leave it
            layer.initial.requires_grad_(False)
        return layer

    def forward(self, inputs: Tensor) -> Tensor:
        length, frame = inputs.shape[1], self.settings.frame
        if length % frame:
            raise ConfigError(f"sequences have {length} tokens and frames {frame}; wanted whole frames")
        x = self.embed(inputs)
        for norm, memory in zip(self.norms, self.memories):
            frames = norm(x) if frame == 1 else norm(x).unflatten(1, (-1, frame))
            y = memory.sequence(memory.init_state(len(x)), frames, chunk=self.settings.chunk)[1]
            x = x + y.reshape(x.shape)
        return self.head(self.norm(x))


def parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    return next(model.parameters()).device
