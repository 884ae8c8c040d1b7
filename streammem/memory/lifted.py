"""Rules over features of their keys, and rules that are asked before they are told."""

from dataclasses import dataclass

from streammem.memory.chunked import frozen_gradient
from streammem.memory.features import Features
from streammem.memory.rule import Composed, Rule
from streammem.memory.wrappers import Window


@dataclass(frozen=True)
class Lifted(Rule):
    """The rule, over features of keys and queries. The memory has a row, or an input, for each feature."""

    rule: Rule
    features: Features

    def init(self, weights):
        return self.rule.init(weights)

    def write(self, state, key, value, gates):
        return self.rule.write(state, self.features(key), value, gates)

    def read(self, state, query):
        return self.rule.read(state, self.features(query))


@dataclass(frozen=True)
class ReadFirst(Rule):
    """The rule, asked before it is told: a step reads the memory of the frames before, then writes its own."""

    rule: Rule

    def init(self, weights):
        return self.rule.init(weights)

    def write(self, state, key, value, gates):
        return self.rule.write(state, key, value, gates)

    def read(self, state, query):
        return self.rule.read(state, query)

    def step(self, state, x):
        return self.write(state, x.key, x.value, x.gates), self.read(state, x.query)


def windowed(rule: Composed, frames: int, tokens: int, features: Features | None, chunk: int) -> Rule:
    """The rule over a window of frames, with gradients frozen for a chunk, over features of the keys where given."""
    window = Window(frozen_gradient(rule, chunk), frames, tokens)
    return window if features is None else Lifted(window, features)
