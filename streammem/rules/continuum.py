from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError
from streammem.memory.architecture import MLP, Chain
from streammem.memory.bias import L2, Bias
from streammem.memory.covariance import WIDE
from streammem.memory.rule import Rule


class ContinuumState(NamedTuple):
    """The blocks, the gradients that wait for their clocks, and the clock."""

    blocks: tuple  # weights, one item a block
    waiting: tuple  # gradients since the last step, as the weights
    frames: Tensor  # [..., 1, 1] float64, frames seen


@dataclass(frozen=True)
class Continuum(Rule):
    """Continuum memory of HOPE: a chain of blocks, each of which learns at its own clock.

        y = f_L(... f_1(x; M^1) ...; M^L)
        G^l = G^l + sum_i lr_i grad_l 0.5 |y(k_i) - v_i|^2
        M_t^l = a_t M_{t-1}^l - G^l and G^l = 0, where t is a multiple of period_l;  else M_t^l = M_{t-1}^l

    memory: the blocks. periods: frames between the steps of each; fast blocks hold what is new, slow ones what lasts.

    Shapes: weights: a tuple, one item a block; one write takes N tokens. No chunk form: the blocks read each other.
    Raises: ConfigError where there is not one period of at least 1 for each block.
    Source: Nested learning, Behrouz et al. 2025, arXiv:2512.24695: its continuum memory system.
    Differs: the part of HOPE in which projections are memories too is not here: for an MLP it is not defined.
    """

    memory: Chain = Chain((MLP(), MLP()))
    periods: tuple[int, ...] = (1, 4)
    bias: Bias = L2()

    def __post_init__(self):
        if len(self.periods) != len(self.memory.memories) or min(self.periods) < 1:
            wanted = f"{len(self.memory.memories)} periods of at least 1"
            raise ConfigError(f"Continuum has periods {self.periods}; wanted {wanted}")

    def init(self, weights: tuple) -> ContinuumState:
        first = next(tree.leaves(weights))
        clock = first.new_zeros(*first.shape[:-2], 1, 1, dtype=WIDE)
        return ContinuumState(weights, tree.zeros_like(weights), clock)

    def write(self, state: ContinuumState, key, value, gates) -> ContinuumState:
        prediction, pullback = self.memory.vjp(state.blocks, key)
        grads = pullback(gates.lr * self.bias.grad(prediction, value))
        waiting = tree.map(torch.add, state.waiting, grads)
        frames = state.frames + 1
        blocks = []
        held = []
        for period, block, sums in zip(self.periods, state.blocks, waiting, strict=True):
            due = torch.remainder(frames + 0.5, period) < 1
            blocks.append(tree.map(lambda w, g, due=due: torch.where(due, gates.retention * w - g, w), block, sums))
            held.append(tree.map(lambda g, due=due: torch.where(due, 0, g), sums))
        return ContinuumState(tuple(blocks), tuple(held), frames)

    def read(self, state: ContinuumState, query) -> Tensor:
        return self.memory.apply(state.blocks, query)
