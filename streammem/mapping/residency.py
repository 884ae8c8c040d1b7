"""Which blocks are in the fixed buffers: new ones get a free slot, the rest waits on the host."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping.keys import Keys, Lattice
from streammem.mapping.state import MapState


class Allocation(NamedTuple):
    """A directory with room for the blocks of a frame, and what changed in it."""

    directory: Tensor  # [cells + 1] int32
    cell: Tensor  # [M] int64, directory cells of new blocks, the last cell where padded
    slot: Tensor  # [M] int64, their slots, the spare one where padded
    block: Tensor  # [M, 3] int32, their coordinates
    refused: Tensor  # [] int64, blocks for which there was no slot


def allocate(lattice: Lattice, state: MapState, keys: Keys, usable: Tensor, near: Tensor, most: int) -> Allocation:
    """Gives a slot to each block that a usable token touches and that has none, to `most` of them.

    Shapes: usable [P] bool; near [3], a point in the world within half a window of all tokens.
    """
    spare, padding = len(state.live) - 1, lattice.cells
    wanted = torch.zeros(padding + 1, dtype=torch.bool, device=usable.device)
    wanted = wanted.index_fill(0, torch.where(usable, keys.cell, padding).view(-1), True) & (state.directory < 0)
    wanted[padding] = False
    cell = torch.nonzero_static(wanted, size=most, fill_value=padding)[:, 0]
    free = ~state.live
    free[spare] = False
    slot = torch.nonzero_static(free, size=most, fill_value=spare)[:, 0]
    given = (cell < padding) & (slot < spare)
    refused = wanted.sum() - given.sum()
    cell, slot = torch.where(given, cell, padding), torch.where(given, slot, spare)
    directory = state.directory.scatter(0, cell, torch.where(given, slot, -1).int())
    return Allocation(directory, cell, slot, lattice.block_of_cell(cell, near), refused)


class Moved(NamedTuple):
    """Blocks between the buffers and the host: counts since the map was made."""

    evicted: int
    returned: int


class Host:
    """Blocks that are not resident, by their coordinates, in the host's memory.

    The buffers are fixed and nothing is forgotten by moving: rows leave when slots run short or the camera is half a
    window away, and come back, bit for bit, when the camera is near them.
    """

    def __init__(self, lattice: Lattice, reserve: int, reach_m: float):
        self._lattice, self._reserve, self._reach_m = lattice, reserve, reach_m
        self.rows: dict[tuple[int, int, int], tuple[Tensor, ...]] = {}
        self.moved = Moved(0, 0)

    def settle(self, state: MapState, camera: Tensor) -> None:
        """Makes room for a frame seen from `camera` [3] and brings back what it may see; looks at the device."""
        self._leave(state, camera)
        if self.rows:
            self._return(state, camera)

    def _distance_m(self, block: Tensor, camera: Tensor) -> Tensor:
        """Largest coordinate difference [M] between block centres and the camera."""
        return ((block + 0.5) * self._lattice.block_size_m - camera).abs().amax(-1)

    def _leave(self, state: MapState, camera: Tensor) -> None:
        slot = state.live.nonzero()[:, 0]
        distance = self._distance_m(state.block[slot], camera)
        edge_m = (self._lattice.window_blocks / 2 - 1) * self._lattice.block_size_m
        short = self._reserve - (len(state.live) - 1 - len(slot))
        order = distance.argsort(descending=True, stable=True)
        count = max(int((distance > edge_m).sum()), min(short, int((distance > self._reach_m).sum())), 0)
        self.evict(state, slot[order[:count]])

    def evict(self, state: MapState, slot: Tensor) -> None:
        """Moves the blocks of slots [M] to the host."""
        if not len(slot):
            return
        rows = [getattr(state, name)[slot].cpu() for name in ("field", "wander", "colour", "seen_s")]
        for i, key in enumerate(map(tuple, state.block[slot].tolist())):
            self.rows[key] = tuple(row[i].clone() for row in rows)
        state.directory[self._lattice.cell_of_block(state.block[slot])] = -1
        state.live[slot] = False
        self.moved = self.moved._replace(evicted=self.moved.evicted + len(slot))

    def _return(self, state: MapState, camera: Tensor) -> None:
        block = torch.tensor(sorted(self.rows), dtype=torch.int32)
        distance = self._distance_m(block, camera.cpu())
        near = distance <= self._reach_m
        block = block[near][distance[near].argsort(stable=True)].to(state.block.device)
        free = (~state.live[:-1]).nonzero()[:, 0]
        room = max(len(free) - self._reserve, 0)
        cell = self._lattice.cell_of_block(block)
        block = block[state.directory[cell] < 0][:room]
        slot = free[: len(block)]
        back = [self.rows.pop(tuple(key)) for key in block.tolist()]
        if not back:
            return
        for name, row in zip(("field", "wander", "colour", "seen_s"), zip(*back)):
            getattr(state, name)[slot] = torch.stack(row).to(slot.device)
        state.block[slot] = block
        state.live[slot] = True
        state.directory[self._lattice.cell_of_block(block)] = slot.int()
        self.moved = self.moved._replace(returned=self.moved.returned + len(block))
