"""think: a latent that reads the memory over and over before it answers."""

import abc

from torch import Tensor

from streammem.memory.rule import Rule
from streammem.types import Gates


class Mind(abc.ABC):
    """What a thought asks, what it makes of the answer, and what it would write down."""

    @abc.abstractmethod
    def query(self, thought) -> Tensor:
        """Returns the query [..., N, K]."""

    @abc.abstractmethod
    def turn(self, thought, answer: Tensor):
        """Returns the next thought."""

    @abc.abstractmethod
    def tokens(self, thought) -> tuple[Tensor, Tensor, Gates]:
        """Returns key, value and gates of the thought."""


def think(rule: Rule, state, thought, mind: Mind, turns: int, write: bool = False) -> tuple:
    """Turns a thought over, reading the memory each time; returns (state, thought).

        r = read(M, q(z));  z <- turn(z, r);  with `write`:  M <- write(M, tokens(z))

    Without `write` the state that comes back is the one that came in; commit what was thought, if anything, by
    `rule.write(state, *mind.tokens(thought))`. A memory that is rewritten while it is thought with learns worse.

    Source: Memoir, arXiv:2607.20792; the equations are ours, for only its abstract could be had.
    """
    for _ in range(turns):
        thought = mind.turn(thought, rule.read(state, mind.query(thought)))
        if write:
            state = rule.write(state, *mind.tokens(thought))
    return state, thought
