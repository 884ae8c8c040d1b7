"""The map's read: the trilinear sum over the corners that are known."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping.keys import BLOCK, Keys, Lattice
from streammem.mapping.retention import Table


class Sample(NamedTuple):
    """The field at P points."""

    distance: Tensor  # [P] metres, positive in front of a surface; 0 where not known
    precision: Tensor  # [P] 1 / m^2; 0 where not known
    known: Tensor  # [P] bool
    keys: Keys
    address: Tensor  # [8, P] int64, rows of the table
    share: Tensor  # [8, P] trilinear weights of known corners, summing to 1 where known
    value: Tensor  # [8, P] distances at the corners


def read(lattice: Lattice, table: Table, points: Tensor, known_precision: float, known_share: float) -> Sample:
    """Signed distance at points, normalised over the known corners.

        d = sum_c w_c m_c / sum_c w_c  over corners with precision > known_precision;  known: sum_c w_c > known_share

    Shapes: points [P, 3] metres in the world, within half a window of where the map last looked.
    """
    keys = lattice.keys(points)
    slot = table.directory[keys.cell].long()
    address = torch.where(slot < 0, table.spare, slot) * BLOCK + keys.vertex
    pair = table.pair[address]  # [8, P]: one gather for both
    value, precision = pair.real, pair.imag
    share = keys.weight * (precision > known_precision)
    total = share.sum(0)
    known = total > known_share
    share = share / total.clamp(min=1e-6) * known
    return Sample((share * value).sum(0), (share * precision).sum(0), known, keys, address, share, value)


def gradient(lattice: Lattice, sample: Sample) -> Tensor:
    """Slope of the signed distance [P, 3], from the eight corners; an unknown one counts as the mean of the others."""
    value = torch.where(sample.share > 0, sample.value, sample.distance).view(2, 2, 2, -1)
    weight = sample.keys.weight.view(2, 2, 2, -1)
    x, y, z = weight.sum((1, 2)), weight.sum((0, 2)), weight.sum((0, 1))  # [2, P] each
    dx = torch.einsum("bcp,bp,cp->p", value[1] - value[0], y, z)
    dy = torch.einsum("acp,ap,cp->p", value[:, 1] - value[:, 0], x, z)
    dz = torch.einsum("abp,ap,bp->p", value[:, :, 1] - value[:, :, 0], x, y)
    return torch.stack([dx, dy, dz], -1) / lattice.voxel_size_m


def colour(table: Table, sample: Sample) -> Tensor:
    """Colours [P, 3] in [0, 1], over the corners whose colour was seen; 0 where none was."""
    corner = table.colour[sample.address]  # [8, P, 4]
    weight = (sample.keys.weight * (corner[..., 3] > 0))[..., None]
    return (corner[..., :3] * weight).sum(0) / weight.sum(0).clamp(min=1e-6)
