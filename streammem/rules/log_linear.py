from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError
from streammem.memory.linear import Linear
from streammem.memory.rule import Composed, Rule
from streammem.memory.wrappers import TokenByToken
from streammem.rules.gated_delta import gated_delta


class LevelWeights(NamedTuple):
    """An initial memory, and how much each level counts when it is read: both can be learned."""

    memory: Tensor  # [..., K, V]
    share: Tensor  # [..., L, 1, 1]


class LevelState(NamedTuple):
    """A memory for each level, youngest first."""

    inner: object  # state of the rule, with an axis L before its last two
    share: Tensor  # [..., L, 1, 1]
    frames: Tensor  # [..., 1, 1] int64, frames so far


@dataclass(frozen=True)
class LogLinear(Rule):
    """Log-linear memory: the past in spans of 1, 1, 2, 4, 8 ... frames, each with a memory and a weight of its own.

        every level:  M_l = what the rule makes of M_l and a frame of value 0
        level 0:      M_0 = what the rule makes of an empty memory and the frame
        before that, level 0 joins the spans as 1 is added to a binary number: full spans merge into the next
        M_t = sum_l share_l M_l

    With every share 1 this is the rule itself. The oldest level takes all that is older.

    rule: any whose write is affine in a matrix memory, with that memory as its state. levels: L; T frames need
    2 + log2 T.

    Shapes: memory [..., K, V], or `LevelWeights`; the state is L times as large. No chunk form: the levels merge step
    by step.
    Raises: ConfigError where the rule is not affine, or levels below 2.
    Source: Guo et al. 2025, arXiv:2506.04761.
    Differs: the share of a level is learned and does not depend on the token.
    """

    rule: Rule = gated_delta()
    levels: int = 12

    def __post_init__(self):
        rule = self.rule.rule if isinstance(self.rule, TokenByToken) else self.rule
        if not (isinstance(rule, Linear) or (isinstance(rule, Composed) and rule.affine)):
            raise ConfigError(f"LogLinear is asked to wrap {rule}; wanted a rule that is affine in a matrix memory")
        if self.levels < 2:
            raise ConfigError(f"LogLinear has {self.levels} levels; wanted at least 2")

    def init(self, weights: Tensor | LevelWeights) -> LevelState:
        if isinstance(weights, Tensor):
            ones = weights.new_ones(*weights.shape[:-2], self.levels, 1, 1)
            weights = LevelWeights(weights, ones)
        memory, share = weights
        empty = torch.zeros_like(memory)
        levels = torch.stack([*[empty] * (self.levels - 1), memory], -3)
        frames = torch.zeros_like(memory[..., :1, :1], dtype=torch.int64)
        return LevelState(self.rule.init(levels), share, frames)

    def write(self, state: LevelState, key, value, gates) -> LevelState:
        counted = (state.frames - 1).clamp_min(0)
        older = tree.map(lambda levels: _joined(levels, counted), state.inner)
        first = torch.arange(self.levels, device=key.device)[:, None, None] == 0
        gates = tree.map(lambda a: a[..., None, :, :], gates)
        key, value = key[..., None, :, :], value[..., None, :, :] * first.to(value.dtype)
        return LevelState(self.rule.write(older, key, value, gates), state.share, state.frames + 1)

    def read(self, state: LevelState, query) -> Tensor:
        memory = tree.map(lambda levels: (state.share * levels).sum(-3), state.inner)
        return self.rule.read(memory, query)


def _joined(levels: Tensor, counted: Tensor) -> Tensor:
    """Level 0 added to the spans above it, which hold `counted` frames; level 0 is empty then."""
    first, *spans = levels.unbind(-3)
    carry, carrying, joined = first, torch.ones_like(counted, dtype=torch.bool), [torch.zeros_like(first)]
    for bit, span in enumerate(spans[:-1]):
        merge = carrying & (counted >> bit & 1).bool()
        joined.append(torch.where(merge, 0, torch.where(carrying, span + carry, span)))
        carry, carrying = torch.where(merge, span + carry, carry), merge
    joined.append(torch.where(carrying, spans[-1] + carry, spans[-1]))
    return torch.stack(joined, -3)
