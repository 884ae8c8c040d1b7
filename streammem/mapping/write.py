"""How a frame is written, as one frozen value."""

from dataclasses import dataclass, field
from typing import Literal

from streammem.errors import ConfigError
from streammem.mapping.free_space import FreeSpace
from streammem.mapping.gate import Gate
from streammem.mapping.retention import Retention
from streammem.mapping.tokens import Sampling


@dataclass(frozen=True)
class Write:
    """How a frame is written.

    keys: "trilinear", points on rays; "one_hot", the vertices themselves with the distance along the optical axis.
    bias: "huber", descent on a robust squared error; "dot", Hebbian sums whose quotient is the running average.
    "one_hot" with "dot" is TSDF fusion.
    """

    sampling: Sampling = field(default_factory=Sampling)
    retention: Retention = field(default_factory=Retention)
    gate: Gate = field(default_factory=Gate)
    free_space: FreeSpace = field(default_factory=FreeSpace)
    keys: Literal["trilinear", "one_hot"] = "trilinear"
    bias: Literal["huber", "dot"] = "huber"
    huber: float = 3.0  # error, in units of its noise, from which on it counts linearly
    known_precision: float = 50.0  # 1 / m^2, from which on a vertex may be read
    most_new_blocks: int = 4096  # in one frame

    def __post_init__(self):
        if (self.keys == "one_hot") != (self.bias == "dot"):
            raise ConfigError(
                f'keys "{self.keys}" with bias "{self.bias}"; wanted "trilinear" with "huber" or "one_hot" with "dot"'
            )
        if not self.huber > 0 or self.most_new_blocks < 1:
            raise ConfigError(f"huber is {self.huber}, most_new_blocks {self.most_new_blocks}; wanted both above 0")

    @property
    def top_m(self) -> float:
        """Distances are cut off here: the end of the band, as seen along its outermost corner."""
        return self.sampling.band_m * 4 / 3
