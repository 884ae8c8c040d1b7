"""Linear: what all rules have in common whose write is affine in a matrix memory."""

import abc

from torch import Tensor

from streammem.chunk import affine
from streammem.chunk.affine import Terms
from streammem.memory.rule import Rule
from streammem.types import Gates


class Linear(Rule):
    """A matrix memory and nothing else; a rule says what a frame does to it, and both forms follow.

    R = retention M;  M <- R + key^T (value - erase R)
    """

    @abc.abstractmethod
    def terms(self, key: Tensor, value: Tensor, gates: Gates, by_token: bool) -> Terms:
        """Returns what a frame does to the memory. by_token: its tokens are written one after the other."""

    def init(self, weights: Tensor) -> Tensor:
        return weights

    def write(self, state: Tensor, key, value, gates) -> Tensor:
        return affine.write(state, self.terms(key, value, gates, by_token=False))

    def read(self, state: Tensor, query) -> Tensor:
        return query @ state

    def sequence(self, state: Tensor, x, chunk, by_token=False):
        terms = self.terms(x.key, x.value, x.gates, by_token)
        return affine.sequence(state, x.query, terms, chunk, by_token)
