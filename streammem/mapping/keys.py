"""Sparse keys: a 3D point is the 8 trilinear weights on the voxel vertices around it.

Vertices live in blocks of 8 x 8 x 8. A block is found through a directory that wraps around like a torus: its cell is
the block's coordinate modulo the window. Blocks farther than half a window from the camera are not resident, so a cell
holds at most one block and a look-up is one addition and one read, without probing and without a look from the host.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import inverse_rigid, transform

SIDE = 8  # vertices along a block
BLOCK = SIDE**3  # vertices in a block
WIDE = SIDE + 1  # vertices along a wide row, a block and its neighbours' first ones: it has a point's eight corners
CORNERS = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
STEPS = [(x * WIDE + y) * WIDE + z for x, y, z in CORNERS]  # from a point's lowest corner to all, in the row


class Keys(NamedTuple):
    """Eight corners of each point: the block of the lowest, and where its wide row has all of them."""

    cell: Tensor  # [P] int32, index of that block in the directory
    start: Tensor  # [P] int32, place of the lowest corner in the block's wide row
    across: Tensor  # [P] int32, which of CORNERS' blocks the highest corner is in: 4 x + 2 y + z, each 0 or 1
    place: Tensor  # [3, P] where between its lowest and its highest corner a point is, in [0, 1)

    def weight(self, part: slice = slice(None)) -> Tensor:
        """[8, P], sums to 1 over the corners; in the order of CORNERS."""
        r = self.place[:, part]
        return outer(*torch.stack([1 - r, r], 1), torch.mul)


@dataclass(frozen=True)
class Lattice:
    """The vertex grid of a map and its directory's window.

    Units: metres; blocks.
    Raises: ConfigError for a voxel that is not positive or a window that is not a power of two.
    """

    voxel_size_m: float
    window_blocks: int = 128

    def __post_init__(self):
        if not self.voxel_size_m > 0:
            raise ConfigError(f"voxel_size_m is {self.voxel_size_m}; wanted a length above 0, such as 0.02")
        if self.window_blocks < 8 or self.window_blocks & (self.window_blocks - 1):
            raise ConfigError(f"window_blocks is {self.window_blocks}; wanted a power of two from 8 on, such as 128")

    @property
    def block_size_m(self) -> float:
        return SIDE * self.voxel_size_m

    @property
    def cells(self) -> int:
        return self.window_blocks**3

    def keys(self, points: Tensor) -> Keys:
        """Trilinear keys of points.

            g = floor(x / voxel);  r = x / voxel - g;  w_abc = prod_axis (r if corner else 1 - r)

        Shapes: points [P, 3], metres in the world.
        """
        low, r = self.split(points)
        inner = low & (SIDE - 1)
        x, y, z = inner
        last = (inner == SIDE - 1).int()
        start = (x * WIDE + y) * WIDE + z
        return Keys(self.cell_of(*(low >> 3)), start, (last[0] * 2 + last[1]) * 2 + last[2], r)

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Low vertex [3, P] int32 of the cube around each point [P, 3], and its place there, [3, P] in [0, 1)."""
        scaled = points.mT.contiguous() / self.voxel_size_m
        low = scaled.floor()
        return low.int(), scaled - low

    def cell_of_block(self, block: Tensor) -> Tensor:
        """Directory cell [...] int64 of block coordinates [..., 3]."""
        return self.cell_of(*block.long().unbind(-1))

    def cell_of(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Directory cell of blocks, by coordinate and of its type."""
        W = self.window_blocks
        return ((x & (W - 1)) * W + (y & (W - 1))) * W + (z & (W - 1))

    def code_of_block(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """One number int64, from 0 on, for block coordinates: equal only if the blocks are."""
        return (x.long() << 42) + (y.long() << 21) + z + (2**62 + 2**41 + 2**20)

    def block_of_cell(self, cell: Tensor, near: Tensor) -> Tensor:
        """Coordinates [M, 3] int32 of the blocks in cells [M] that lie within half a window of a point `near` [3]."""
        W = self.window_blocks
        low = torch.stack([cell // W**2 % W, cell // W % W, cell % W], -1)
        middle = (near / self.block_size_m).floor().long()
        return (middle + (low - middle + W // 2) % W - W // 2).int()

    def vertices(self, block: Tensor) -> Tensor:
        """Vertex positions [A, 512, 3] of blocks [A, 3], metres in the world."""
        return block[:, None] * self.block_size_m + self._inner(block.device)

    def seen_from(self, world_from_camera: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The vertices of blocks [A, 3] in a camera's frame: x, y, z, [A, 512] each."""
        first = transform(inverse_rigid(world_from_camera), block * self.block_size_m)
        inner = self._inner(block.device) @ world_from_camera[:3, :3]
        return tuple(first[:, i, None] + inner[:, i] for i in range(3))

    def _inner(self, device) -> Tensor:
        """Vertices [512, 3] of a block from its first."""
        i = torch.arange(SIDE, device=device) * self.voxel_size_m
        return torch.stack(torch.meshgrid(i, i, i, indexing="ij"), -1).view(BLOCK, 3)


def outer(x: Tensor, y: Tensor, z: Tensor, combine) -> Tensor:
    """[2, P] of each axis -> [8, P] of each corner of the cube."""
    xy = combine(x[:, None], y)  # [2, 2, P]
    return combine(xy[:, :, None], z).view(8, -1)
