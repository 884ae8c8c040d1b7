"""What was seen to be empty before anything was there: a surface that appears in it is doubted at first.

A block counts the frames that passed it whole while there is no slot for it, in a number beside the directory; a vertex
of a block counts those that passed it and its neighbours before any evidence reached it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.geometry import transform
from streammem.mapping.frames import Shot
from streammem.mapping.free_space import FreeSpace
from streammem.mapping.keys import Lattice
from streammem.mapping.retention import Present, Retention

GRID_PX = 16  # between the rays that look for empty blocks
MARGIN = 2  # rays around each that must pass the block too
MOST = 255  # frames that a number holds


def expected(how: FreeSpace, keep: Retention, old: Present, empty: Tensor, top_m: float) -> Present:
    """Vertices of which nothing is known but that they were empty: far from any surface, with so much evidence.

        m = top;   precision = min(frames, most) doubt / frame_noise^2

    Shapes: old [A, 512]; empty [A, 512] uint8.
    """
    prior = empty.clamp(max=how.most) * ((how.doubt if how.strength > 0 else 0) / keep.frame_noise_m**2)
    new = (old.precision == 0) & (empty > 0)
    top = torch.where(new, top_m, old.slow)
    return old._replace(slow=top, value=torch.where(new, top_m, old.value), precision=old.precision + new * prior)


def passed_blocks(how: FreeSpace, lattice: Lattice, shot: Shot, band_m: float) -> tuple[Tensor, Tensor]:
    """Blocks [N, 3] int64 along a grid of rays, and which of them [N] bool are passed whole.

    That is where the least depth around, in `MARGIN` rays to each side, is behind a block's far side by the band; an
    unknown depth there says nothing. Blocks come as often as the grid has points in them.
    """
    h, w = (side // GRID_PX * GRID_PX for side in shot.depth.shape)
    small = -F.max_pool2d(-shot.depth[None, None, :h, :w], GRID_PX)
    around = -F.max_pool2d(-small, 2 * MARGIN + 1, 1, MARGIN)[0, 0]
    r, c = around.shape
    v, u = (torch.arange(n, device=around.device) * GRID_PX + (GRID_PX - 1) / 2 for n in (r, c))
    K = shot.intrinsics
    x, y = ((u - K[0, 2]) / K[0, 0]).expand(r, c), ((v - K[1, 2]) / K[1, 1])[:, None].expand(r, c)
    apart_m = lattice.block_size_m / 1.5
    z = torch.arange(1, int(how.far_m / apart_m) + 1, device=around.device) * apart_m
    local = torch.stack([x, y, torch.ones_like(x)], -1) * z[:, None, None, None]
    radius_m = lattice.block_size_m * 3**0.5 / 2
    whole = (z[:, None, None] + radius_m + band_m < around) & shot.trusted
    block = (transform(shot.world_from_camera, local.view(-1, 3)) / lattice.block_size_m).floor().long()
    return block, whole.view(-1)


def counted(lattice: Lattice, passed: Tensor, block: Tensor, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Cells [N] and their numbers [N] int16 after a frame that passed these blocks, the last cell for the others."""
    cell = torch.where(whole, lattice.cell_of_block(block), lattice.cells)
    before = frames_of(lattice, passed, cell, block)
    return cell, (_tag(lattice, block) * (MOST + 1) + (before + 1).clamp(max=MOST)).short()


def frames_of(lattice: Lattice, passed: Tensor, cell: Tensor, block: Tensor) -> Tensor:
    """Frames [N] int64 that passed blocks [N, 3]; 0 where the cell's number is another block's."""
    number = passed[cell].long()
    return torch.where(number // (MOST + 1) == _tag(lattice, block), number % (MOST + 1), 0)


def _tag(lattice: Lattice, block: Tensor) -> Tensor:
    """Which turn of the window a block is in, modulo 4 along each axis, as one number below 64."""
    x, y, z = (block.long() // lattice.window_blocks & 3).unbind(-1)
    return (x * 4 + y) * 4 + z
