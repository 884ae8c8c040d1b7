"""Update rules, (rule's own, old tokens, candidate, evidence) -> new: what of the candidate becomes the state.

A rule sees each stream alone and never looks from the host. The first view of a stream is always taken whole, as the
state before it holds nothing of the scene.
"""

import abc
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.recon.state import Evidence


class Updated(NamedTuple):
    """What an update gives."""

    own: object  # the rule's own state
    tokens: Tensor  # [B, S, D]
    gate: Tensor  # [B, S] share of the candidate in each token


class UpdateRule(abc.ABC):
    """How a candidate state replaces the old one; a frozen value."""

    asks: ClassVar[frozenset[str]] = frozenset()  # fields of Evidence that the network makes only on demand

    def init(self, tokens: Tensor, feature_width: int) -> object:
        """The rule's own state before the first view, for tokens [B, S, D] and features of that width."""
        return ()

    @abc.abstractmethod
    def update(self, own: object, old: Tensor, candidate: Tensor, evidence: Evidence) -> Updated:
        """Blends; changes no argument. Shapes: old, candidate [B, S, D]."""


def blend(old: Tensor, candidate: Tensor, gate: Tensor) -> Tensor:
    """candidate * gate + old * (1 - gate), by token. Shapes: [B, S, D], gate [B, S]."""
    gate = gate[..., None]
    return candidate * gate + old * (1 - gate)


def opened(gate: Tensor, first: Tensor) -> Tensor:
    """The gate, and 1 for streams whose first view this is. Shapes: gate [B, S], first [B]."""
    return torch.where(first[:, None], torch.ones_like(gate), gate)


def _gated(own: object, old: Tensor, candidate: Tensor, gate: Tensor, first: Tensor) -> Updated:
    gate = opened(gate, first)
    return Updated(own, blend(old, candidate, gate), gate)


@dataclass(frozen=True)
class Replace(UpdateRule):
    """The candidate is the new state.

        S_t = C_t

    Source: CUT3R, Wang et al. 2025, arXiv:2501.12387.
    """

    def update(self, own, old, candidate, evidence):
        return Updated(own, candidate, torch.ones_like(candidate[..., 0]))


@dataclass(frozen=True)
class Confidence(UpdateRule):
    """Each token is written as far as it agrees with the image.

        g_j = sigmoid(mean over layers, heads, image tokens k of q_j . k_k / sqrt(K))
        S_t = g C_t + (1 - g) S_{t-1}

    Source: TTT3R, Chen et al. 2025, arXiv:2509.26645, eq. (7); as its code has it: scaled, a mean, the pose token among
    the keys.
    Differs: by stream, where the code mixes a batch.
    """

    asks: ClassVar[frozenset[str]] = frozenset({"logit"})

    def update(self, own, old, candidate, evidence):
        return _gated(own, old, candidate, evidence.logit.detach().sigmoid(), evidence.first)


@dataclass(frozen=True)
class Constant(UpdateRule):
    """Every token is written at one rate: the baseline of all gates.

        S_t = g C_t + (1 - g) S_{t-1}

    gate: the share of the candidate; trained weights make `Confidence` give about the default.
    Raises: ConfigError where the gate is not in (0, 1].
    """

    gate: float = 0.33

    def __post_init__(self):
        if not 0 < self.gate <= 1:
            raise ConfigError(f"gate is {self.gate}; wanted a share in (0, 1]")

    def update(self, own, old, candidate, evidence):
        return _gated(own, old, candidate, torch.full_like(candidate[..., 0], self.gate), evidence.first)
