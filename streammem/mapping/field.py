"""The map's write: a depth frame becomes an update of the signed-distance field, proposed first and committed after.

TSDF fusion       one-hot keys at the vertices, dot-product bias, no gate, nothing forgotten
ours              trilinear keys of points on rays, Huber bias, one-sided in free space, a gate, time
"""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.mapping.emptiness import counted, expected, frames_of, passed_blocks
from streammem.mapping.evidence import evidence, painted, reach
from streammem.mapping.frames import Pixels, Shot, pixels
from streammem.mapping.free_space import Sight, clear, sight
from streammem.mapping.keys import BLOCK, Lattice
from streammem.mapping.residency import Allocation, allocate
from streammem.mapping.retention import Evidence, Present, learn, present
from streammem.mapping.state import ROWS, MapState
from streammem.mapping.tokens import rays_of, tokens_of
from streammem.mapping.write import Write

PIECE = 256  # blocks whose vertices are worked on at once, on a CPU: caches hold them


class Rows(NamedTuple):
    """What A blocks hold, but for colours, as in `MapState`."""

    field: Tensor  # [A, 512, 2]
    wander: Tensor  # [A, 512]
    seen_s: Tensor  # [A, 512]
    empty: Tensor  # [A, 512] uint8


class MapUpdate(NamedTuple):
    """What a frame would change: small, and committed or dropped whole."""

    kept: Tensor  # [] bool: trusted and finite
    cell: Tensor  # [M] int64, directory cells of new blocks
    new_slot: Tensor  # [M] int64
    new_block: Tensor  # [M, 3] int32
    slot: Tensor  # [A] int64, rows that change
    rows: Rows  # what they hold then
    colour_at: Tensor  # [R] int64, vertices of the buffers that get a colour, the spare row's where padded
    colour: Tensor  # [R, 4]
    passed_cell: Tensor  # [N] int64, blocks that the frame saw to be empty
    passed: Tensor  # [N] int16
    start_s: Tensor  # [] float64
    now_s: Tensor  # [] float32
    wanted: Tensor  # [] int64, rows the frame wanted, to be compared with A
    refused: Tensor  # [] int64, blocks for which there was no slot
    confidence: Tensor  # [] mean of the gate over usable rays
    finite: Tensor  # [] bool


def propose(lattice: Lattice, how: Write, state: MapState, shot: Shot, capacity: int) -> MapUpdate:
    """Update that a frame would make, with room for `capacity` blocks; changes nothing and looks at nothing.

    Source: Curless, Levoy 1996 (the running average); the trilinear, robust, gated form is ours.
    """
    rays = rays_of(shot, how.sampling, state.frames)
    tokens = tokens_of(rays, shot.world_from_camera, how.sampling, state.frames)
    keys = lattice.keys(tokens.point)
    near = shot.world_from_camera[:3, 3]
    reached, room = allocate(lattice, state, keys, tokens.usable, near, how.most_new_blocks, capacity)
    block = state.block.index_copy(0, room.slot, room.block)
    active = reach(lattice, state, block, reached, shot, capacity)

    start_s = torch.where(state.start_s.isnan(), shot.time_s, state.start_s)
    now_s = (shot.time_s - start_s).float()
    before = _before(lattice, state, room, active.slot, now_s)
    old = present(how.retention, before.field, before.wander, before.seen_s, now_s)
    old = expected(how.free_space, how.retention, old, before.empty, how.top_m)
    if how.keys == "one_hot":
        seen, gate = None, rays.usable.float()
    else:
        seen, gate = evidence(how, old, tokens, keys, reached.local, active.beside)
    after, view = [], sight(rays, shot.depth, how.sampling)
    for part in _pieces(capacity, shot.depth.device):
        rows = tree.map(lambda a, part=part: a[part], (before, old, seen))
        after.append(_after(lattice, how, shot, view, block[active.slot[part]], *rows, now_s))
    after = tree.map(lambda *a: torch.cat(a), *after)
    colour_at, colour = painted(how, state, room, active, rays, keys, reached, gate * rays.usable)
    passed_cell, passed = counted(
        lattice, state.passed, *passed_blocks(how.free_space, lattice, shot, how.sampling.band_m)
    )
    finite = (after.field.sum() + after.wander.sum() + colour.sum()).isfinite()  # a sum keeps every NaN and Inf
    return MapUpdate(
        kept=shot.trusted & finite,
        cell=room.cell,
        new_slot=room.slot,
        new_block=room.block,
        slot=active.slot,
        rows=after,
        colour_at=colour_at,
        colour=colour,
        passed_cell=passed_cell,
        passed=passed,
        start_s=start_s,
        now_s=now_s,
        wanted=active.wanted + reached.beyond,
        refused=room.refused,
        confidence=(gate * rays.usable).sum() / rays.usable.sum().clamp(min=1),
        finite=finite,
    )


def _before(lattice: Lattice, state: MapState, room: Allocation, slot: Tensor, now_s: Tensor) -> Rows:
    """What blocks hold before the frame; new ones nothing but the frames that passed them whole."""
    blank = torch.zeros(len(state.live), dtype=torch.bool, device=slot.device).index_fill(0, room.slot, True)
    fresh = blank[slot, None]
    whole = torch.zeros(len(state.live), dtype=torch.uint8, device=slot.device)
    frames = frames_of(lattice, state.passed, room.cell, room.block)
    whole = whole.index_copy(0, room.slot, frames.to(torch.uint8))
    return Rows(
        field=state.field[slot].where(~fresh[..., None], 0),
        wander=state.wander[slot].where(~fresh, 0),
        seen_s=state.seen_s[slot].where(~fresh, now_s),
        empty=torch.where(fresh, whole[slot, None], state.empty[slot]),
    )


def _after(
    lattice: Lattice,
    how: Write,
    shot: Shot,
    view: Sight,
    block: Tensor,
    before: Rows,
    old: Present,
    seen: Evidence | None,
    now_s: Tensor,
) -> Rows:
    """What blocks [A, 3] hold after the frame; each vertex by itself but for its neighbours in the block."""
    at = pixels(*lattice.seen_from(shot.world_from_camera, block), shot.intrinsics, *shot.depth.shape)
    if seen is None:
        new = _average(how, old, at, shot)
        deep = torch.zeros_like(new.touched)
    else:
        new = learn(how.retention, old, seen, how.top_m)
        new, deep = clear(how.free_space, how.sampling, how.retention, new, at, view, how.top_m)
    slow, precision = (
        torch.where(new.touched, now, then) for now, then in zip((new.slow, new.precision), before.field.unbind(-1))
    )
    frames = (before.empty.short() + (deep & shot.trusted)).clamp(max=255)
    return Rows(
        field=torch.stack([slow, precision], -1),
        wander=torch.where(new.touched, new.value - new.slow, before.wander),
        seen_s=torch.where(new.touched, now_s, before.seen_s),
        empty=(frames * (precision == 0)).to(torch.uint8),
    )


def _pieces(length: int, device: torch.device) -> list[slice]:
    """Rows that are worked on at once: all, but on a CPU."""
    size = PIECE if device.type == "cpu" else length
    return [slice(start, start + size) for start in range(0, length, size)]


def commit_(state: MapState, update: MapUpdate) -> None:
    """Writes an update into the buffers, or nothing where it is not to be kept."""
    spare, padding = len(state.live) - 1, len(state.directory) - 1
    slot = torch.where(update.kept, update.slot, spare)
    new_slot = torch.where(update.kept, update.new_slot, spare)
    cell = torch.where(update.kept, update.cell, padding)
    state.directory[cell] = torch.where(new_slot < spare, new_slot, -1).int()
    state.block[new_slot] = update.new_block
    state.live[new_slot] = True
    state.live[spare] = False
    for name, rows in update.rows._asdict().items():
        getattr(state, name)[slot] = rows
    state.colour[new_slot] = 0
    state.colour.view(-1, 4)[torch.where(update.kept, update.colour_at, spare * BLOCK)] = update.colour
    for name in ROWS:
        getattr(state, name)[spare] = 0
    state.block[spare] = 0
    state.passed[torch.where(update.kept, update.passed_cell, padding)] = update.passed
    state.passed[padding] = 0
    state.start_s.copy_(torch.where(update.kept, update.start_s, state.start_s))
    state.now_s.copy_(torch.where(update.kept, update.now_s, state.now_s))
    state.frames.add_(update.kept)


def _average(how: Write, old: Present, seen: Pixels, shot: Shot) -> Present:
    """TSDF fusion: every vertex before the far end of the band averages the distance along the optical axis.

    m <- (m precision + min(depth - z, band)) / (precision + 1);  precision += 1
    """
    band_m = how.sampling.band_m
    depth = shot.depth[seen.row, seen.column]
    distance = depth - seen.z
    hit = seen.inside & (depth > 0) & (distance > -band_m) & shot.trusted
    value = distance.clamp(max=band_m)
    slow = torch.where(hit, (old.slow * old.precision + value) / (old.precision + 1), old.slow)
    return Present(slow, old.precision + hit, slow, old.left, hit)
