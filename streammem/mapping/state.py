"""What a map remembers: fixed buffers, whose size the user sets in bytes."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError
from streammem.mapping.keys import BLOCK, Lattice


class MapState(NamedTuple):
    """S blocks of 512 vertices, and one spare row, S, where padded writes go."""

    directory: Tensor  # [cells + 1] int32, slot of the block in each cell, -1 for none; the last cell takes padding
    block: Tensor  # [S + 1, 3] int32, block coordinates of a slot
    live: Tensor  # [S + 1] bool, whether the slot holds a block
    field: Tensor  # [S + 1, 512, 2] signed distance (m) and precision (1 / m^2; 0 = never seen)
    wander: Tensor  # [S + 1, 512] how far from that distance the surface was when last seen (m)
    colour: Tensor  # [S + 1, 512, 4] red, green, blue in [0, 1] and their evidence (0 = none)
    seen_s: Tensor  # [S + 1, 512] float32, when evidence last reached the vertex, seconds since `start_s`
    empty: Tensor  # [S + 1, 512] uint8, frames that saw a vertex to be empty before anything else was known of it
    passed: Tensor  # [cells + 1] int16, frames that saw the whole block to be empty, and a tag of which block it was
    start_s: Tensor  # [] float64, time of the first frame; NaN before it
    now_s: Tensor  # [] float32, time of the newest frame, seconds since `start_s`
    frames: Tensor  # [] int64, frames written


ROWS = ("field", "wander", "colour", "seen_s", "empty")  # what a slot holds, besides its block's coordinates


def empty(lattice: Lattice, blocks: int, device="cpu") -> MapState:
    """The state before the first frame, with room for `blocks` blocks."""
    slots = blocks + 1
    return MapState(
        directory=torch.full((lattice.cells + 1,), -1, dtype=torch.int32, device=device),
        block=torch.zeros(slots, 3, dtype=torch.int32, device=device),
        live=torch.zeros(slots, dtype=torch.bool, device=device),
        field=torch.zeros(slots, BLOCK, 2, device=device),
        wander=torch.zeros(slots, BLOCK, device=device),
        colour=torch.zeros(slots, BLOCK, 4, device=device),
        seen_s=torch.zeros(slots, BLOCK, device=device),
        empty=torch.zeros(slots, BLOCK, dtype=torch.uint8, device=device),
        passed=torch.zeros(lattice.cells + 1, dtype=torch.int16, device=device),
        start_s=torch.full((), float("nan"), dtype=torch.float64, device=device),
        now_s=torch.zeros((), device=device),
        frames=torch.zeros((), dtype=torch.int64, device=device),
    )


def blocks_within(max_bytes: int, lattice: Lattice) -> int:
    """How many blocks fit a cap in bytes, the directory included.

    Raises: ConfigError where the cap leaves no room for a map.
    """
    one = tree.nbytes(empty(Lattice(1.0, 8), 1)) - tree.nbytes(empty(Lattice(1.0, 8), 0))
    fixed = tree.nbytes(empty(Lattice(1.0, 8), 0)) + (lattice.cells - 8**3) * 6
    blocks = (max_bytes - fixed) // one
    if blocks < 64:
        raise ConfigError(
            f"max_bytes is {max_bytes}; wanted at least {fixed + 64 * one} for {lattice.window_blocks}^3 directory "
            f"cells ({lattice.cells * 6} bytes) and 64 blocks of {one} bytes"
        )
    return blocks
