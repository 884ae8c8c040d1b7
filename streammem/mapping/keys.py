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


class Keys(NamedTuple):
    """Eight corners of each point, corner first: x slowest, z fastest."""

    cell: Tensor  # [8, P] int64, index into the directory
    vertex: Tensor  # [8, P] int64, index inside the block
    weight: Tensor  # [8, P], sums to 1 over the corners


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
        corner = torch.stack([low, low + 1])  # [2, 3, P]
        cell, vertex = self._address(corner)
        weight = torch.stack([1 - r, r])
        return Keys(_outer(cell, torch.add), _outer(vertex, torch.add), _outer(weight, torch.mul))

    def split(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Low vertex [3, P] int64 of the cube around each point [P, 3], and its place there, [3, P] in [0, 1)."""
        scaled = points.mT.contiguous() / self.voxel_size_m
        low = scaled.floor()
        return low.long(), scaled - low

    def nearest(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """One-hot keys: (cell [P], vertex [P]) of the vertex nearest to each point [P, 3]."""
        cell, vertex = self._address((points.mT / self.voxel_size_m).round().long()[None])
        return cell[0].sum(0), vertex[0].sum(0)

    def cell_of_block(self, block: Tensor) -> Tensor:
        """Directory cell of block coordinates [..., 3]."""
        x, y, z = (block.long() & (self.window_blocks - 1)).unbind(-1)
        return (x * self.window_blocks + y) * self.window_blocks + z

    def code_of_block(self, block: Tensor) -> Tensor:
        """One number [M] int64 for block coordinates [3, M]: equal only if the blocks are."""
        x, y, z = block.long() + 2**20
        return (x << 42) + (y << 21) + z

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

    def _address(self, corner: Tensor) -> tuple[Tensor, Tensor]:
        """Per-axis parts of cell and vertex indices; corner [C, 3, P] int64."""
        block, inner = (corner >> 3) & (self.window_blocks - 1), corner & (SIDE - 1)
        return _strided(block, self.window_blocks), _strided(inner, SIDE)


def _strided(axes: Tensor, length: int) -> Tensor:
    """Multiplies the axes of [C, 3, P] by their strides in a cube of this side."""
    return torch.stack([axes[:, 0] * length**2, axes[:, 1] * length, axes[:, 2]], 1)


def _outer(axis: Tensor, combine) -> Tensor:
    """[2, 3, P] per corner and axis -> [8, P] per corner of the cube."""
    x, y, z = axis.unbind(1)
    xy = combine(x[:, None], y[None])  # [2, 2, P]
    return combine(xy[:, :, None], z[None, None]).view(8, -1)
