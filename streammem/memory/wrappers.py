"""Rules around rules: more steps a frame, one token at a time, a window of frames."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError, ShapeError
from streammem.memory.rule import Rule
from streammem.types import Gates


@dataclass(frozen=True)
class Repeat(Rule):
    """Writes each frame `times` times: more inner steps on the same tokens.

    The frame ages the memory once: from the second write on, retention is 1.
    """

    rule: Rule
    times: int

    def __post_init__(self):
        if self.times < 1:
            raise ConfigError(f"Repeat is asked for {self.times} writes a frame; wanted at least 1")

    def init(self, weights):
        return self.rule.init(weights)

    def write(self, state, key, value, gates):
        state = self.rule.write(state, key, value, gates)
        for _ in range(self.times - 1):
            state = self.rule.write(state, key, value, _ageless(gates))
        return state

    def read(self, state, query):
        return self.rule.read(state, query)


@dataclass(frozen=True)
class TokenByToken(Rule):
    """Writes the tokens of a frame one after the other: the token recurrence of the papers.

    The frame ages the memory once, at its first token.
    """

    rule: Rule

    def init(self, weights):
        return self.rule.init(weights)

    def write(self, state, key, value, gates):
        for n in range(key.shape[-2]):
            erase = tree.map(lambda a, n=n: a[..., n : n + 1, :], gates.erase)
            one = gates._replace(lr=gates.lr[..., n : n + 1, :], erase=erase)
            one = one if n == 0 else _ageless(one)
            state = self.rule.write(state, key[..., n : n + 1, :], value[..., n : n + 1, :], one)
        return state

    def read(self, state, query):
        return self.rule.read(state, query)

    def sequence(self, state, x, chunk, by_token=False):
        return self.rule.sequence(state, x, chunk, by_token=True)


class WindowState(NamedTuple):
    """The memory, and the tokens of the frames before this one, oldest first."""

    inner: object
    key: Tensor  # [..., (frames - 1) tokens, K]
    value: Tensor  # [..., (frames - 1) tokens, V]
    lr: Tensor  # [..., (frames - 1) tokens, 1]; 0 where nothing was seen yet


@dataclass(frozen=True)
class Window(Rule):
    """Learns from the last `frames` frames at once, each token at the rate of its own frame.

    frames: length of the window, this frame included. tokens: N of every frame.

    Source: the window of Atlas and OmegaNet, Behrouz et al. 2025, arXiv:2505.23735.
    """

    rule: Rule
    frames: int
    tokens: int

    def __post_init__(self):
        if self.frames < 1 or self.tokens < 1:
            raise ConfigError(f"Window has {self.frames} frames of {self.tokens} tokens; wanted at least 1 of each")

    def init(self, weights) -> WindowState:
        layers = list(tree.leaves(weights))
        widths = layers[0].shape[-2], layers[-1].shape[-1], 1  # K, V, 1
        held = (*layers[0].shape[:-2], (self.frames - 1) * self.tokens)
        key, value, lr = (layers[0].new_zeros(*held, width) for width in widths)
        return WindowState(self.rule.init(weights), key, value, lr)

    def write(self, state: WindowState, key, value, gates) -> WindowState:
        if key.shape[-2] != self.tokens:
            raise ShapeError(f"key is {list(key.shape)}; wanted [..., N, K] with N = {self.tokens}, as the window has")
        seen = WindowState(
            state.inner,
            torch.cat([state.key, key], -2),
            torch.cat([state.value, value], -2),
            torch.cat([state.lr, gates.lr], -2),
        )
        inner = self.rule.write(state.inner, seen.key, seen.value, gates._replace(lr=seen.lr))
        return WindowState(inner, *(x[..., self.tokens :, :].clone() for x in seen[1:]))

    def read(self, state: WindowState, query):
        return self.rule.read(state.inner, query)


def _ageless(gates: Gates) -> Gates:
    return gates._replace(retention=torch.ones_like(gates.retention))
