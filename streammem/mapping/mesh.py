"""The map as triangles and points, for people and for files: it looks at the device, and is no step."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.export import triangles
from streammem.mapping.keys import SIDE, Lattice


class Mesh(NamedTuple):
    """A surface in the host's memory."""

    vertices: Tensor  # [P, 3] metres in the world
    triangles: Tensor  # [M, 3] int32, rows of vertices
    normals: Tensor  # [P, 3] towards the free side
    colours: Tensor  # [P, 3] in [0, 1]


class Points(NamedTuple):
    """A surface as points."""

    points: Tensor  # [P, 3] metres in the world
    normals: Tensor  # [P, 3]
    colours: Tensor  # [P, 3] in [0, 1]


class Blocks(NamedTuple):
    """Rows of a map, wherever they were kept."""

    block: Tensor  # [M, 3] int32
    value: Tensor  # [M, 512] m
    precision: Tensor  # [M, 512] 1 / m^2
    colour: Tensor  # [M, 512, 4]


def mesh(lattice: Lattice, blocks: Blocks, known_precision: float) -> Mesh:
    """Triangles of the zero level, between vertices that are all known (marching cubes)."""

    def grid(a: Tensor) -> Tensor:
        """[M, 512, C] with z fastest -> [M, 8, 8, 8, C] with x fastest, as the extraction keeps them."""
        return a.view(-1, SIDE, SIDE, SIDE, a.shape[-1]).permute(0, 3, 2, 1, 4).contiguous()

    if not len(blocks.block):
        nothing = torch.zeros(0, 3)
        return Mesh(nothing, nothing.int(), nothing, nothing)
    known = (blocks.precision > known_precision).float()[..., None]
    value, colour = grid(blocks.value[..., None]), grid(blocks.colour[..., :3])
    return Mesh(*triangles(blocks.block, value, grid(known), colour, lattice.voxel_size_m))


def surface_points(lattice: Lattice, blocks: Blocks, known_precision: float) -> Points:
    """The vertices of the mesh, as points."""
    found = mesh(lattice, blocks, known_precision)
    return Points(found.vertices, found.normals, found.colours)
