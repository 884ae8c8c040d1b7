"""The map at one moment, laid out for reading: time applied, each block with its neighbours' first vertices."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping.keys import SIDE, Lattice
from streammem.mapping.retention import Retention, present
from streammem.mapping.state import MapState

WIDE = SIDE + 1  # vertices along a block with its neighbours' first ones: a point's eight corners are in one row
CORNERS = [(x * WIDE + y) * WIDE + z for x in (0, 1) for y in (0, 1) for z in (0, 1)]


class Table(NamedTuple):
    """The first n slots, and a spare one that knows nothing."""

    directory: Tensor  # [cells + 1] int32
    block: Tensor  # [n, 3] int32, coordinates of the blocks
    code: Tensor  # [n + 1] int64, which block a slot holds; -1 for none
    pair: Tensor  # [(n + 1) 729] complex64: value and precision, for one gather to bring both
    colour: Tensor  # [S + 1, 512, 4]
    spare: int  # n


def table(lattice: Lattice, how: Retention, state: MapState, now_s: Tensor, slots: int) -> Table:
    """The map as it stands at a moment; all live slots must be among the first `slots`."""
    part = slice(slots)
    now = present(how, state.field[part], state.wander[part], state.seen_s[part], now_s)
    pair = torch.complex(now.value, now.precision).view(-1, SIDE, SIDE, SIDE)
    pair = torch.cat([pair, torch.zeros_like(pair[:1])])
    block = state.block[part]
    live = state.live[part]
    code = torch.where(live, lattice.code_of_block(block.mT), -1)
    code = torch.cat([code, torch.full_like(code[:1], -1)])
    wide = torch.zeros(slots + 1, WIDE, WIDE, WIDE, dtype=pair.dtype, device=pair.device)
    inner, edge = slice(SIDE), slice(SIDE, WIDE)
    for x in (0, 1):
        for y in (0, 1):
            for z in (0, 1):
                slot = _slot_of(lattice, state.directory, code, block + torch.tensor([x, y, z], device=block.device))
                slot = torch.where(live, slot, slots)
                take = [slice(1) if far else inner for far in (x, y, z)]
                put = [edge if far else inner for far in (x, y, z)]
                wide[part, put[0], put[1], put[2]] = pair[:, take[0], take[1], take[2]][slot]
    return Table(state.directory, block, code, wide.view(-1), state.colour, slots)


def slot_of(lattice: Lattice, table: Table, vertex: Tensor) -> Tensor:
    """Slots [P] of the blocks that vertices [3, P] are in, the spare one where there is none."""
    return _slot_of(lattice, table.directory, table.code, (vertex >> 3).mT)


def _slot_of(lattice: Lattice, directory: Tensor, code: Tensor, block: Tensor) -> Tensor:
    """Slots [P] of blocks [P, 3] among those of `code`, its last one where a cell holds none or another block."""
    spare = len(code) - 1
    slot = directory[lattice.cell_of_block(block)].long()
    slot = torch.where(slot < 0, spare, slot)
    return torch.where(code[slot] == lattice.code_of_block(block.mT), slot, spare)
