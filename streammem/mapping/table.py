"""The map at one moment, laid out for reading: time applied, each block with its neighbours' first vertices."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping.keys import BLOCK, CORNERS, SIDE, WIDE, Lattice
from streammem.mapping.retention import Retention, present
from streammem.mapping.state import MapState


class Table(NamedTuple):
    """The first n slots, and a spare one that knows nothing."""

    directory: Tensor  # [cells + 1] int32
    block: Tensor  # [n, 3] int32, coordinates of the blocks
    code: Tensor  # [n + 1] int64, which block a slot holds; -1 for none
    value: Tensor  # [(n + 1) 729], wide rows
    precision: Tensor  # [(n + 1) 729]
    colour: Tensor  # [S + 1, 512, 4]
    spare: int  # n


def table(lattice: Lattice, how: Retention, state: MapState, now_s: Tensor, slots: int) -> Table:
    """The map as it stands at a moment; all live slots must be among the first `slots`."""
    part = slice(slots)
    now = present(how, state.field[part], state.wander[part], state.seen_s[part], now_s)
    block, live = state.block[part], state.live[part]
    code = torch.where(live, lattice.code_of_block(*block.long().unbind(-1)), -1)
    code = torch.cat([code, torch.full_like(code[:1], -1)])
    beside = block[:, None] + torch.tensor(CORNERS, dtype=block.dtype, device=block.device)
    slot = _slot_of(lattice, state.directory, code, *beside.view(-1, 3).unbind(-1)).view(-1, len(CORNERS))
    slot = torch.where(live[:, None], slot, slots)
    slot = torch.cat([slot, torch.full_like(slot[:1], slots)])
    value, precision = (widened(torch.cat([x, torch.zeros_like(x[:1])]), slot) for x in (now.value, now.precision))
    return Table(state.directory, block, code, value, precision, state.colour, slots)


def widened(of: Tensor, row: Tensor) -> Tensor:
    """Wide rows [n 729] of what blocks hold, [m, 512]: for each its own row and those of the blocks beside it.

    Shapes: row [n, 8] int64, in the order of CORNERS.
    """
    cube = of.view(-1, SIDE, SIDE, SIDE)
    wide = of.new_empty(len(row), WIDE, WIDE, WIDE)
    for d, corner in enumerate(CORNERS):
        take, put = _parts(corner)
        wide[put] = cube[take].index_select(0, row[:, d])
    return wide.view(-1)


def folded(wide: Tensor, row: Tensor, rows: int) -> Tensor:
    """Sums over blocks [rows, 512] of wide rows [n 729]: each part added to the block that it is of.

    Shapes: row [n, 8] int64, in the order of CORNERS.
    """
    wide = wide.view(-1, WIDE, WIDE, WIDE)
    sums = wide.new_zeros(rows, SIDE, SIDE, SIDE)
    for d, corner in enumerate(CORNERS):
        take, put = _parts(corner)
        sums[take] = sums[take].index_add(0, row[:, d], wide[put])
    return sums.view(rows, BLOCK)


def _parts(corner: tuple[int, int, int]) -> tuple[tuple, tuple]:
    """Which part of a neighbour's vertices a wide row has, and where."""
    take = [slice(1) if far else slice(SIDE) for far in corner]
    put = [slice(SIDE, WIDE) if far else slice(SIDE) for far in corner]
    return (slice(None), *take), (slice(None), *put)


def slot_of(lattice: Lattice, table: Table, vertex: Tensor) -> Tensor:
    """Slots [P] int32 of the blocks that vertices [3, P] are in, the spare one where there is none."""
    return _slot_of(lattice, table.directory, table.code, *(vertex >> 3))


def _slot_of(lattice: Lattice, directory: Tensor, code: Tensor, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Slots [P] int32 of blocks among those of `code`, its last one where a cell holds none or another block."""
    spare = len(code) - 1
    slot = directory.index_select(0, lattice.cell_of(x, y, z))
    slot = torch.where(slot < 0, spare, slot)
    there = code.index_select(0, slot) == lattice.code_of_block(x, y, z)
    return torch.where(there, slot, spare)
