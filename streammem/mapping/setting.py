"""What a map is, as one frozen value."""

from dataclasses import dataclass, field

from streammem.errors import ConfigError
from streammem.mapping.keys import Lattice
from streammem.mapping.raycast import Cast
from streammem.mapping.state import blocks_within
from streammem.mapping.track import Tracker
from streammem.mapping.write import Write


@dataclass(frozen=True)
class MapSettings:
    """What a map is.

    Raises: ConfigError for a range that the directory's window cannot hold, or a cap without room for a map.
    """

    voxel_size_m: float = 0.02
    near_m: float = 0.1
    max_depth_m: float = 4.0
    max_bytes: int = 512 * 2**20  # of the resident state
    window_blocks: int = 128  # blocks along the side of the resident cube around the camera
    write: Write = field(default_factory=Write)
    known_share: float = 0.5  # trilinear weight of known vertices around a point, from which on it is known
    cast: Cast = field(default_factory=Cast)
    track: Tracker = field(default_factory=Tracker)

    def __post_init__(self):
        lattice = Lattice(self.voxel_size_m, self.window_blocks)
        reach_m = self.max_depth_m * 1.5 + self.write.sampling.band_m
        if not 0 < self.near_m < self.max_depth_m:
            raise ConfigError(
                f"near_m is {self.near_m} and max_depth_m {self.max_depth_m}; wanted 0 < near_m < max_depth_m"
            )
        if reach_m > lattice.block_size_m * (self.window_blocks / 2 - 2):
            raise ConfigError(
                f"max_depth_m {self.max_depth_m} does not fit a window of {self.window_blocks} blocks of "
                f"{lattice.block_size_m:.3g} m; wanted more window_blocks, larger voxels or a shorter range"
            )
        if self.write.sampling.band_m < 2 * self.voxel_size_m:
            raise ConfigError(
                f"band_m is {self.write.sampling.band_m} at voxels of {self.voxel_size_m} m; wanted 2 voxels or more, "
                "or rays step over surfaces"
            )
        blocks_within(self.max_bytes, lattice)
