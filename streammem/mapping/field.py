"""The map's write: a depth frame becomes an update of the signed-distance field, proposed first and committed after.

TSDF fusion       one-hot keys at the vertices, dot-product bias, no gate, nothing forgotten
ours              trilinear keys of points on rays, Huber bias, one-sided in free space, a gate, time
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import inverse_rigid, transform
from streammem.mapping.emptiness import counted, expected, frames_of, passed_blocks
from streammem.mapping.frames import Pixels, Shot, pixels
from streammem.mapping.free_space import FreeSpace, clear, visible_blocks
from streammem.mapping.gate import Gate, confidence
from streammem.mapping.keys import BLOCK, Keys, Lattice
from streammem.mapping.residency import Allocation, allocate
from streammem.mapping.retention import Evidence, Present, Retention, learn, present
from streammem.mapping.state import ROWS, MapState
from streammem.mapping.tokens import MapTokens, Rays, Sampling, rays_of, tokens_of


@dataclass(frozen=True)
class Write:
    """How a frame is written.

    keys: "trilinear", points on rays; "one_hot", the vertices themselves with the distance along the optical axis.
    bias: "huber", descent on a robust squared error; "dot", Hebbian sums whose quotient is the running average.
    "one_hot" with "dot" is TSDF fusion.
    """

    sampling: Sampling = field(default_factory=Sampling)
    retention: Retention = field(default_factory=Retention)
    gate: Gate = field(default_factory=Gate)
    free_space: FreeSpace = field(default_factory=FreeSpace)
    keys: Literal["trilinear", "one_hot"] = "trilinear"
    bias: Literal["huber", "dot"] = "huber"
    huber: float = 3.0  # error, in units of its noise, from which on it counts linearly
    known_precision: float = 50.0  # 1 / m^2, from which on a vertex may be read
    most_new_blocks: int = 4096  # in one frame

    def __post_init__(self):
        if (self.keys == "one_hot") != (self.bias == "dot"):
            raise ConfigError(
                f'keys "{self.keys}" with bias "{self.bias}"; wanted "trilinear" with "huber" or "one_hot" with "dot"'
            )
        if not self.huber > 0 or self.most_new_blocks < 1:
            raise ConfigError(f"huber is {self.huber}, most_new_blocks {self.most_new_blocks}; wanted both above 0")

    @property
    def top_m(self) -> float:
        """Distances are cut off here: the end of the band, as seen along its outermost corner."""
        return self.sampling.band_m * 4 / 3


class MapUpdate(NamedTuple):
    """What a frame would change: small, and committed or dropped whole."""

    kept: Tensor  # [] bool: trusted and finite
    cell: Tensor  # [M] int64, directory cells of new blocks
    new_slot: Tensor  # [M] int64
    new_block: Tensor  # [M, 3] int32
    slot: Tensor  # [A] int64, rows that change
    field: Tensor  # [A, 512, 2]
    wander: Tensor  # [A, 512]
    colour_at: Tensor  # [R] int64, vertices of the buffers that get a colour, the spare row's where padded
    colour: Tensor  # [R, 4]
    seen_s: Tensor  # [A, 512]
    empty: Tensor  # [A, 512] uint8
    passed_cell: Tensor  # [N] int64, blocks that the frame saw to be empty
    passed: Tensor  # [N] int16
    start_s: Tensor  # [] float64
    now_s: Tensor  # [] float32
    rows: Tensor  # [] int64, rows the frame wanted, to be compared with A
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
    room = allocate(lattice, state, keys, tokens.usable, shot.world_from_camera[:3, 3], how.most_new_blocks)
    slot = room.directory[keys.cell].long()  # [8, P]
    usable = tokens.usable & (slot >= 0).all(0)
    slot = torch.where(usable, slot, len(state.live) - 1)
    block = state.block.index_copy(0, room.slot, room.block)
    active = _active(lattice, state, block, slot, shot, capacity)

    start_s = torch.where(state.start_s.isnan(), shot.time_s, state.start_s)
    now_s = (shot.time_s - start_s).float()
    fresh = torch.zeros(len(block), dtype=torch.bool, device=slot.device).index_fill(0, room.slot, True)[
        active.slot, None
    ]
    old_field = state.field[active.slot].where(~fresh[..., None], 0)
    wander, seen_s = state.wander[active.slot].where(~fresh, 0), state.seen_s[active.slot].where(~fresh, now_s)
    empty = _empty(lattice, state, room, fresh, active.slot)
    old = expected(
        how.free_space, how.retention, present(how.retention, old_field, wander, seen_s, now_s), empty, how.top_m
    )

    at = active.local[slot] * BLOCK + keys.vertex
    local = lattice.seen_from(shot.world_from_camera, block[active.slot])
    seen = pixels(*local, shot.intrinsics, *shot.depth.shape)
    if how.keys == "one_hot":
        new, gate = _average(how, old, seen, shot), rays.usable.float()
        deep = torch.zeros_like(new.touched)
    else:
        evidence, gate = _evidence(how, old, tokens, keys, at, usable)
        new = learn(how.retention, old, evidence, how.top_m)
        new, deep = clear(how.free_space, how.sampling, how.retention, new, seen, shot.depth, rays, how.top_m)
    colour_at, colour = _colour(how, state, room, active, rays, keys, slot, gate * rays.usable)
    new_field = torch.where(new.touched[..., None], torch.stack([new.slow, new.precision], -1), old_field)
    unknown = new_field[..., 1] == 0
    empty = torch.where(unknown, (empty.short() + (deep & shot.trusted)).clamp(max=255), 0).to(torch.uint8)
    passed_cell, passed = counted(
        lattice, state.passed, *passed_blocks(how.free_space, lattice, shot, how.sampling.band_m)
    )
    new_wander = torch.where(new.touched, new.value - new.slow, wander)
    finite = (new_field.sum() + new_wander.sum() + colour.sum()).isfinite()  # a sum keeps every NaN and Inf
    return MapUpdate(
        kept=shot.trusted & finite,
        cell=room.cell,
        new_slot=room.slot,
        new_block=room.block,
        slot=active.slot,
        field=new_field,
        wander=new_wander,
        colour_at=colour_at,
        colour=colour,
        seen_s=torch.where(new.touched, now_s, seen_s),
        empty=empty,
        passed_cell=passed_cell,
        passed=passed,
        start_s=start_s,
        now_s=now_s,
        rows=active.wanted,
        refused=room.refused,
        confidence=(gate * rays.usable).sum() / rays.usable.sum().clamp(min=1),
        finite=finite,
    )


def _empty(lattice: Lattice, state: MapState, room: Allocation, fresh: Tensor, slot: Tensor) -> Tensor:
    """Frames [A, 512] uint8 that saw vertices to be empty; a new block's are those that passed it whole."""
    whole = torch.zeros(len(state.live), dtype=torch.uint8, device=slot.device)
    frames = frames_of(lattice, state.passed, room.cell, room.block)
    whole = whole.index_copy(0, room.slot, frames.to(torch.uint8))
    return torch.where(fresh, whole[slot, None], state.empty[slot])


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
    for name in ("field", "wander", "seen_s", "empty"):
        getattr(state, name)[slot] = getattr(update, name)
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


class _Active(NamedTuple):
    slot: Tensor  # [A] int64, slots that a frame may change, the spare one where padded
    local: Tensor  # [S + 1] int64, place in `slot` of each slot, A for none
    wanted: Tensor  # [] int64


def _active(lattice: Lattice, state: MapState, block: Tensor, slot: Tensor, shot: Shot, capacity: int) -> _Active:
    """The blocks that tokens touch or that rays pass."""
    spare = len(block) - 1
    touched = torch.zeros(spare + 1, dtype=torch.bool, device=slot.device).index_fill(0, slot.view(-1), True)
    small = shot.intrinsics / 16
    height, width = (-(-side // 16) for side in shot.depth.shape)
    centre = transform(inverse_rigid(shot.world_from_camera), (block + 0.5) * lattice.block_size_m)
    seen = pixels(*centre.unbind(-1), small, height, width, margin=2)
    radius_m = lattice.block_size_m * 3**0.5 / 2
    touched = touched | (state.live & visible_blocks(seen, radius_m, shot.depth) & shot.trusted)
    touched[spare] = False
    rows = torch.nonzero_static(touched, size=capacity, fill_value=spare)[:, 0]
    local = torch.full((spare + 1,), capacity, device=slot.device).scatter(
        0, rows, torch.arange(capacity, device=slot.device)
    )
    local[spare] = capacity
    return _Active(rows, local, touched.sum())


def _evidence(
    how: Write, old: Present, tokens: MapTokens, keys: Keys, at: Tensor, usable: Tensor
) -> tuple[Evidence, Tensor]:
    """Errors of the map's predictions at the tokens, handed to the vertices by the keys; and the gate [R].

        prediction = sum_c key_c m_c;  e = prediction - value;  confidence = gate(e) min(1, huber scale / |e|) / sigma^2
        error_c += key_c confidence e;  weight_c += key_c confidence

    Where a corner is not known the others predict nothing: each vertex answers for itself, e_c = m_c - value.
    """
    capacity, J = len(old.value), how.sampling.samples
    pad = torch.complex(F.pad(old.value.reshape(-1), (0, BLOCK)), F.pad(old.precision.reshape(-1), (0, BLOCK)))
    pair = pad[at]  # [8, P]: one gather for value and precision
    value, precision = pair.real, pair.imag
    known = (precision > how.known_precision).all(0) & usable
    error = torch.where(known, (keys.weight * value).sum(0) - tokens.value, 0)
    doubt = 1 / (keys.weight * precision).sum(0).clamp(min=1e3)
    noise = how.retention
    scale = (tokens.sigma_m.square() + noise.frame_noise_m**2 + noise.wander_m**2 + doubt).sqrt()
    surprise = error / scale
    gate = confidence(how.gate, surprise.view(J, -1), known.view(J, -1))
    weight = (
        gate.expand(J, -1).reshape(-1) * (how.huber / surprise.abs().clamp(min=how.huber)) / tokens.sigma_m.square()
    )
    weight = keys.weight * (weight * usable)
    error = torch.where(known, error, value - tokens.value)
    sums = torch.zeros((capacity + 1) * BLOCK, dtype=torch.complex64, device=at.device)
    sums = sums.scatter_add(0, at.view(-1), torch.complex(weight * error, weight).view(-1))
    error, weight = torch.view_as_real(sums.view(capacity + 1, BLOCK)[:capacity]).unbind(-1)
    return Evidence(error, weight), gate


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


def _colour(
    how: Write, state: MapState, room: Allocation, active: _Active, rays: Rays, keys: Keys, slot: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Colours [R, 4] of the samples nearest the surface, averaged with the last few frames', and their vertices [R].

    Each goes to its sample's nearest vertex; rays that share one bring the same colour, that of them all.

    Shapes: slot [8, P], of the corners' blocks; weight [R].
    """
    R, spare = len(weight), len(state.live) - 1
    middle = slice((how.sampling.samples // 2 - 1) * R, how.sampling.samples // 2 * R)
    corner = keys.weight[:, middle].argmax(0, keepdim=True)
    slot, vertex = (part[:, middle].gather(0, corner)[0] for part in (slot, keys.vertex))
    at = active.local[slot] * BLOCK + vertex
    red, green, blue = (weight * channel for channel in rays.colour.unbind(-1))

    def summed(a: Tensor, b: Tensor) -> list[Tensor]:
        sums = torch.zeros((len(active.slot) + 1) * BLOCK, dtype=torch.complex64, device=at.device)
        return [*torch.view_as_real(sums.scatter_add(0, at, torch.complex(a, b))[at]).unbind(-1)]

    new = torch.stack(summed(red, green) + summed(blue, weight), -1)
    fresh = torch.zeros(spare + 1, dtype=torch.bool, device=at.device).index_fill(0, room.slot, True)[slot]
    slot = torch.where(at < len(active.slot) * BLOCK, slot, spare)
    place = slot * BLOCK + vertex
    old = torch.where(fresh[:, None], 0, state.colour.view(-1, 4)[place])
    kept = old[:, 3] * COLOUR_KEPT
    total = kept + new[:, 3]
    mixed = (old * kept[:, None] + new) / total.clamp(min=1e-9)[:, None]
    mixed[:, 3] = total
    return torch.where(new[:, 3] > 0, place, spare * BLOCK), mixed


COLOUR_KEPT = 0.9  # share of the colours' evidence that survives a frame that looks there
