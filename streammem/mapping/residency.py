"""Which blocks are in the fixed buffers: new ones get a free slot, the rest waits on the host."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.mapping.keys import CORNERS, Keys, Lattice
from streammem.mapping.state import ROWS, MapState

FOCUS, REACH = 0.6, 1.2  # of the range: where the middle of the view is, and how far from it anything may be


class Reached(NamedTuple):
    """The L blocks that tokens start in, each once, and the blocks beside them that tokens reach into."""

    local: Tensor  # [P] int32 of a token's block among the L; L where it is not usable or has no slot
    slot: Tensor  # [L + 1, 8] int64, of a block and those beside it in the order of CORNERS, the spare one for none
    used: Tensor  # [L + 1, 8] bool, whether a token reaches there
    beyond: Tensor  # [] int64, blocks that tokens start in and for which L is too small


class Allocation(NamedTuple):
    """What changes in the directory."""

    cell: Tensor  # [M] int64, directory cells of new blocks, the last cell where padded
    slot: Tensor  # [M] int64, their slots, the spare one where padded
    block: Tensor  # [M, 3] int32, their coordinates
    refused: Tensor  # [] int64, blocks for which there was no slot


def allocate(
    lattice: Lattice, state: MapState, keys: Keys, usable: Tensor, near: Tensor, most: int, capacity: int
) -> tuple[Reached, Allocation]:
    """Finds the blocks that usable tokens touch, to `capacity` that they start in, and gives a slot to each that has
    none, to `most` of them.

    Shapes: usable [P] bool; near [3], a point in the world within half a window of all tokens.
    """
    spare, padding, device = len(state.live) - 1, lattice.cells, usable.device
    memo = torch.empty(padding + 1, dtype=torch.int32, device=device)  # of the cells; only what was written is read
    token_cell = torch.where(usable, keys.cell, padding)
    start, started = _distinct(memo, token_cell, usable, capacity, padding)
    order = torch.arange(capacity, dtype=torch.int32, device=device)
    memo.scatter_(0, token_cell.long(), capacity).scatter_(0, start, torch.where(start < padding, order, capacity))
    local = memo.index_select(0, token_cell)

    used = _reaches(local, keys.across, capacity)
    beside = lattice.block_of_cell(start, near)[:, None] + torch.tensor(CORNERS, dtype=torch.int32, device=device)
    beside = F.pad(lattice.cell_of_block(beside), (0, 0, 0, 1), value=padding).view(-1)  # [(L + 1) 8]
    slot = state.directory.index_select(0, beside)
    missing = used.view(-1) & (slot < 0)
    wanting = torch.where(missing, beside, padding)
    cell, wanted = _distinct(memo, wanting, missing, most, padding)
    free = ~state.live
    free[spare] = False
    new = torch.nonzero_static(free, size=most, fill_value=spare)[:, 0]
    given = (cell < padding) & (new < spare)
    memo.scatter_(0, wanting, spare).scatter_(0, cell, torch.where(given, new, spare).int())
    slot = torch.where(missing, memo.index_select(0, wanting), torch.where(slot < 0, spare, slot)).view(-1, 8).long()

    lacking = ((used & (slot == spare)).float() @ _subsets(device)) > 0  # [L + 1, across]: a corner has no block
    local = torch.where(lacking.view(-1).index_select(0, local * 8 + keys.across), capacity, local)
    cell, new = torch.where(given, cell, padding), torch.where(given, new, spare)
    room = Allocation(cell, new, lattice.block_of_cell(cell, near), wanted - given.sum())
    return Reached(local, slot, used, (started - capacity).clamp(min=0)), room


def _distinct(memo: Tensor, cell: Tensor, real: Tensor, most: int, padding: int) -> tuple[Tensor, Tensor]:
    """The different cells [most] int64 among `cell` [N] where `real`, in order, padded; and how many there are."""
    number = torch.arange(len(cell), dtype=torch.int32, device=cell.device)
    memo.scatter_(0, cell.long(), number)
    once = real & (memo.index_select(0, cell) == number)  # one of those of each cell, no matter which
    at = torch.nonzero_static(once, size=most, fill_value=len(cell))[:, 0]
    return F.pad(cell, (0, 1), value=padding).index_select(0, at).long().sort().values, once.sum()


def _reaches(local: Tensor, across: Tensor, capacity: int) -> Tensor:
    """Which of a block's neighbours tokens reach into, [L + 1, 8] bool."""
    kinds = torch.zeros((capacity + 1) * 8, dtype=torch.bool, device=local.device)
    kinds = kinds.index_fill_(0, local.long() * 8 + across, True).view(-1, 8)
    used = (kinds.float() @ _subsets(local.device).mT) > 0
    used[capacity] = False
    return used


def _subsets(device) -> Tensor:
    """1 where a token across `column` has a corner in the neighbour `row`, [8, 8]."""
    d = torch.arange(8, device=device)
    return ((d[:, None] & d) == d[:, None]).float()


class Moved(NamedTuple):
    """Blocks between the buffers and the host: counts since the map was made."""

    evicted: int
    returned: int
    merged: int  # evicted onto another memory of the same block, made while the first had no slot


class Host:
    """Blocks that are not resident, by their coordinates, in the host's memory.

    The buffers are fixed and nothing is forgotten by moving: rows leave when slots run short, those farthest from what
    the camera looks at first, or when the camera is half a window away; and come back, bit for bit, before a frame that
    may see them.
    """

    def __init__(self, lattice: Lattice, reserve: int, range_m: float):
        self._lattice, self._reserve, self._range_m = lattice, reserve, range_m
        self.rows: dict[tuple[int, int, int], tuple[Tensor, ...]] = {}
        self.moved = Moved(0, 0, 0)

    def settle(self, state: MapState, world_from_camera: Tensor) -> None:
        """Makes room for a frame of this pose [4, 4] and brings back what it may see; looks at the device.

        Of the blocks that are resident or that the frame may see, those nearest to what it looks at stay or come.
        """
        slot = state.live.nonzero()[:, 0]
        half_m = (self._lattice.window_blocks / 2 - 1) * self._lattice.block_size_m
        centre = (state.block[slot] + 0.5) * self._lattice.block_size_m
        outside = (centre - world_from_camera[:3, 3]).abs().amax(-1) > half_m
        self.evict(state, slot[outside])
        slot = slot[~outside]
        away = torch.tensor(sorted(self.rows), dtype=torch.int32, device=slot.device).view(-1, 3)
        apart = self._apart_m(away, world_from_camera)
        near = (apart <= REACH * self._range_m) & (state.directory[self._lattice.cell_of_block(away)] < 0)
        away, apart = away[near], apart[near]
        order = torch.cat([self._apart_m(state.block[slot], world_from_camera), apart]).argsort(stable=True)
        kept = torch.zeros(len(order), dtype=torch.bool, device=slot.device)
        kept[order[: len(state.live) - 1 - self._reserve]] = True
        self.evict(state, slot[~kept[: len(slot)]])
        self._return(state, away[kept[len(slot) :]])

    def _apart_m(self, block: Tensor, world_from_camera: Tensor) -> Tensor:
        """Distance [M] of blocks from the middle of what the camera may see."""
        focus = world_from_camera[:3, 3] + FOCUS * self._range_m * world_from_camera[:3, 2]
        return ((block + 0.5) * self._lattice.block_size_m - focus).norm(dim=-1)

    def evict(self, state: MapState, slot: Tensor) -> None:
        """Moves the blocks of slots [M] to the host."""
        if not len(slot):
            return
        rows = [getattr(state, name)[slot].cpu() for name in ROWS]
        keys = [tuple(key) for key in state.block[slot].tolist()]
        merged = sum(key in self.rows for key in keys)
        for i, key in enumerate(keys):
            row = tuple(part[i].clone() for part in rows)
            self.rows[key] = _surer(row, self.rows[key]) if key in self.rows else row
        state.directory[self._lattice.cell_of_block(state.block[slot])] = -1
        state.live[slot] = False
        evicted, returned, before = self.moved
        self.moved = Moved(evicted + len(slot), returned, before + merged)

    def _return(self, state: MapState, block: Tensor) -> None:
        if not len(block):
            return
        slot = (~state.live[:-1]).nonzero()[: len(block), 0]
        for name, parts in zip(ROWS, zip(*(self.rows.pop(tuple(key)) for key in block.tolist()))):
            getattr(state, name)[slot] = torch.stack(parts).to(slot.device)
        state.block[slot] = block
        state.live[slot] = True
        state.directory[self._lattice.cell_of_block(block)] = slot.int()
        self.moved = self.moved._replace(returned=self.moved.returned + len(block))


def _surer(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Two memories of one block, made while no slot was free for the first: at each vertex the one that knows more."""
    mine = a[0][:, 1] >= b[0][:, 1]
    return tuple(torch.where(mine.view(-1, *[1] * (x.ndim - 1)), x, y) for x, y in zip(a, b))
