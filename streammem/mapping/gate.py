"""Confidence of a ray: how well what it shows agrees with what the map expects there."""

from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError


@dataclass(frozen=True)
class Gate:
    """When a ray is believed.

    Raises: ConfigError for a floor outside [0, 1].
    """

    evenness: float = 4.0  # log ratio of "the mapped surface" to "anything else" for a ray that agrees exactly
    floor: float = 0.1  # least confidence: what persists is learnt in the end; 1 switches the gate off

    def __post_init__(self):
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor is {self.floor}; wanted a confidence in [0, 1], such as 0.1")


def confidence(how: Gate, surprise: Tensor, known: Tensor) -> Tensor:
    """Sigmoid of the mean alignment of a ray's samples with the map.

        alignment_j = evenness - surprise_j^2 / 2;   confidence = max(floor, sigmoid(mean_j alignment_j))

    The alignment is the log likelihood ratio of "this ray sees the mapped surface" (a Gaussian of the sensor's noise)
    against "it sees anything else" (a flat density, `evenness` below the Gaussian's peak in the logarithm), so that the
    sigmoid is the posterior probability of the first. Where the map knows nothing the gate is open.

    Shapes: surprise [J, R], errors in units of their noise; known [J, R] bool; result [R].
    Source: TTT3R, arXiv:2509.26645, for the sigmoid of the mean pre-softmax alignment.
    Differs: TTT3R aligns learned features over tokens; here the features are signed distances over a ray's samples.
    """
    count = known.sum(0)
    alignment = torch.where(known, how.evenness - 0.5 * surprise.square(), 0).sum(0) / count.clamp(min=1)
    return torch.where(count > 0, alignment.sigmoid().clamp(min=how.floor), 1.0)
