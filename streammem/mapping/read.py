"""The map's read: the trilinear sum over the corners that are known."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping.keys import SIDE, STEPS, WIDE, Lattice, outer
from streammem.mapping.table import Table, slot_of


class Field(NamedTuple):
    """A map to read, and from which precision, which share of its corners and up to which range a point is known."""

    lattice: Lattice
    table: Table
    known_precision: float  # 1 / m^2
    known_share: float
    far_m: float


class Sample(NamedTuple):
    """The field at P points."""

    distance: Tensor  # [P] metres, positive in front of a surface; 0 where not known
    precision: Tensor  # [P] 1 / m^2; 0 where not known
    known: Tensor  # [P] bool
    place: Tensor  # [3, P] where in its cube a point is
    value: Tensor  # [2, 2, 2, P] distances at the corners, the mean where one is not known


def read(field: Field, points: Tensor) -> Sample:
    """Signed distance at points, normalised over the known corners.

        d = sum_c w_c m_c / sum_c w_c  over corners with precision > known_precision;  known: sum_c w_c > known_share

    Shapes: points [P, 3] metres in the world.
    """
    vertex, place = field.lattice.split(points)
    slot = slot_of(field.lattice, field.table, vertex)
    x, y, z = vertex & (SIDE - 1)
    steps = torch.tensor(STEPS, dtype=torch.int32, device=slot.device)
    at = (((slot * WIDE + x) * WIDE + y) * WIDE + z + steps[:, None]).view(-1)
    value, precision = (of.index_select(0, at).view(8, -1) for of in (field.table.value, field.table.precision))
    weight = outer(*torch.stack([1 - place, place], 1), torch.mul)
    share = weight * (precision > field.known_precision)
    total = share.sum(0)
    known = total > field.known_share
    norm = known / total.clamp(min=1e-6)
    distance = (share * value).sum(0) * norm
    value = torch.where(share > 0, value, distance)
    return Sample(distance, (share * precision).sum(0) * norm, known, place, value.view(2, 2, 2, -1))


def nearest(field: Field, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value [P] and precision [P] at the vertex nearest to each point [P, 3], and whether there is a block [P]."""
    vertex = (points.mT / field.lattice.voxel_size_m).round().int()
    slot = slot_of(field.lattice, field.table, vertex)
    x, y, z = vertex & (SIDE - 1)
    at = ((slot * WIDE + x) * WIDE + y) * WIDE + z
    value, precision = (of.index_select(0, at) for of in (field.table.value, field.table.precision))
    return value, precision, slot < field.table.spare


def gradient(field: Field, sample: Sample) -> Tensor:
    """Slope of the signed distance [P, 3], from the eight corners."""
    value, (x, y, z) = sample.value, sample.place
    dx, dy, dz = value[1] - value[0], value[:, 1] - value[:, 0], value[:, :, 1] - value[:, :, 0]  # [2, 2, P] each
    slopes = torch.stack([_blend(dx, y, z), _blend(dy, x, z), _blend(dz, x, y)], -1)
    return slopes / field.lattice.voxel_size_m


def _blend(corner: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Bilinear value [P] of four corners [2, 2, P]."""
    edge = corner[0] + (corner[1] - corner[0]) * first
    return edge[0] + (edge[1] - edge[0]) * second


def colour(field: Field, points: Tensor) -> Tensor:
    """Colours [P, 3] in [0, 1] of the vertices nearest to points [P, 3]; 0 where none was seen."""
    vertex = (points.mT / field.lattice.voxel_size_m).round().int()
    slot = slot_of(field.lattice, field.table, vertex)
    x, y, z = vertex & (SIDE - 1)
    colours = field.table.colour.view(-1, 4)[slot * SIDE**3 + (x * SIDE + y) * SIDE + z]
    return torch.where((slot < field.table.spare)[:, None], colours[:, :3], 0)
