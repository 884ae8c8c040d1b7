"""What a frame says to the map: which blocks it speaks of, the errors of what was predicted there, and the colours."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.geometry import inverse_rigid, transform
from streammem.mapping.frames import Shot, pixels
from streammem.mapping.free_space import visible_blocks
from streammem.mapping.gate import confidence
from streammem.mapping.keys import BLOCK, SIDE, STEPS, WIDE, Keys, Lattice
from streammem.mapping.residency import Allocation, Reached
from streammem.mapping.retention import Evidence, Present
from streammem.mapping.state import MapState
from streammem.mapping.table import folded, widened
from streammem.mapping.tokens import MapTokens, Rays
from streammem.mapping.write import Write

COLOUR_KEPT = 0.9  # share of the colours' evidence that survives a frame that looks there


class Active(NamedTuple):
    slot: Tensor  # [A] int64, slots that a frame may change, the spare one where padded
    beside: Tensor  # [L + 1, 8] int64, place in `slot` of the slots of `Reached`, A for none
    wanted: Tensor  # [] int64


def reach(lattice: Lattice, state: MapState, block: Tensor, reached: Reached, shot: Shot, capacity: int) -> Active:
    """The blocks that tokens touch or that rays pass."""
    spare = len(block) - 1
    touched = torch.zeros(spare + 1, dtype=torch.bool, device=block.device)
    touched = touched.index_fill(0, torch.where(reached.used, reached.slot, spare).view(-1), True)
    small = shot.intrinsics / 16
    height, width = (-(-side // 16) for side in shot.depth.shape)
    centre = transform(inverse_rigid(shot.world_from_camera), (block + 0.5) * lattice.block_size_m)
    seen = pixels(*centre.unbind(-1), small, height, width, margin=2)
    radius_m = lattice.block_size_m * 3**0.5 / 2
    touched = touched | (state.live & visible_blocks(seen, radius_m, shot.depth) & shot.trusted)
    touched[spare] = False
    rows = torch.nonzero_static(touched, size=capacity, fill_value=spare)[:, 0]
    place = torch.full((spare + 1,), capacity, device=block.device)
    place.scatter_(0, rows, torch.arange(capacity, device=block.device))
    place[spare] = capacity
    return Active(rows, place[reached.slot], touched.sum())


def evidence(
    how: Write, old: Present, tokens: MapTokens, keys: Keys, local: Tensor, beside: Tensor
) -> tuple[Evidence, Tensor]:
    """Errors of the map's predictions at the tokens, handed to the vertices by the keys; and the gate [R].

        prediction = sum_c key_c m_c;  e = prediction - value;  confidence = gate(e) min(1, huber scale / |e|) / sigma^2
        error_c += key_c confidence e;  weight_c += key_c confidence

    Where a corner is not known the others predict nothing: each vertex answers for itself, e_c = m_c - value. Corners
    are read from wide rows and summed into wide rows, one for each block that tokens start in.

    Shapes: local [P], beside [L + 1, 8], as of `Reached` and `Active`.
    """
    J, R, noise = how.sampling.samples, len(local) // how.sampling.samples, how.retention
    parts = [slice(j * R, (j + 1) * R) for j in range(J)]  # one sample of all rays at a time: pieces that caches hold
    steps = torch.tensor(STEPS, device=local.device)
    start = (local * WIDE**3 + keys.start).long()
    wide = [widened(F.pad(part, (0, 0, 0, 1)), beside) for part in (old.value, old.precision)]
    ats, shares, values, errors, surprises, knowns = [], [], [], [], [], []
    for part in parts:
        at, key, told = (start[part] + steps[:, None]).view(-1), keys.weight(part), tokens.value[part]
        value, precision = (of.index_select(0, at).view(8, R) for of in wide)
        known = (precision.amin(0) > how.known_precision) & (local[part] < len(beside) - 1)
        error = ((key * value).sum(0) - told) * known
        doubt = 1 / (key * precision).sum(0).clamp(min=1e3)
        scale = (tokens.sigma_m[part].square() + noise.frame_noise_m**2 + noise.wander_m**2 + doubt).sqrt()
        alone = (~known).float()
        ats.append(at)
        shares.append(key)
        values.append(value * alone)
        errors.append(error - told * alone)
        surprises.append(error / scale)
        knowns.append(known)
    gate = confidence(how.gate, torch.stack(surprises), torch.stack(knowns))
    sums = [torch.zeros(len(beside) * WIDE**3, device=local.device) for _ in range(2)]
    for part, at, key, value, error, surprise in zip(parts, ats, shares, values, errors, surprises):
        weight = gate * (how.huber / surprise.abs().clamp(min=how.huber)) / tokens.sigma_m[part].square()
        weight = key * weight
        sums[0].scatter_add_(0, at, ((value + error) * weight).view(-1))
        sums[1].scatter_add_(0, at, weight.view(-1))
    return Evidence(*(folded(sum_, beside, len(old.value) + 1)[:-1] for sum_ in sums)), gate


def painted(
    how: Write,
    state: MapState,
    room: Allocation,
    active: Active,
    rays: Rays,
    keys: Keys,
    reached: Reached,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """Colours [R, 4] of the samples nearest the surface, averaged with the last few frames', and their vertices [R].

    Each goes to its sample's nearest vertex; rays that share one bring the same colour, that of them all.

    Shapes: weight [R].
    """
    R, spare = len(weight), len(state.live) - 1
    middle = slice((how.sampling.samples // 2 - 1) * R, how.sampling.samples // 2 * R)
    far = (keys.place[:, middle] > 0.5).long()
    start, local = keys.start[middle].long(), reached.local[middle].long()
    inner = torch.stack([start // WIDE**2, start // WIDE % WIDE, start % WIDE]) + far
    x, y, z = inner & (SIDE - 1)
    vertex = (x * SIDE + y) * SIDE + z
    beside = local * 8 + ((inner[0] >> 3) * 2 + (inner[1] >> 3)) * 2 + (inner[2] >> 3)
    slot, row = reached.slot.view(-1)[beside], active.beside.view(-1)[beside]
    at = row * BLOCK + vertex

    def summed(a: Tensor) -> Tensor:
        sums = torch.zeros((len(active.slot) + 1) * BLOCK, device=at.device)
        return sums.scatter_add_(0, at, a)[at]

    new = torch.stack([summed(weight * channel) for channel in rays.colour.unbind(-1)] + [summed(weight)], -1)
    fresh = torch.zeros(spare + 1, dtype=torch.bool, device=at.device).index_fill(0, room.slot, True)[slot]
    slot = torch.where(row < len(active.slot), slot, spare)
    place = slot * BLOCK + vertex
    old = torch.where(fresh[:, None], 0, state.colour.view(-1, 4)[place])
    kept = old[:, 3] * COLOUR_KEPT
    total = kept + new[:, 3]
    mixed = (old * kept[:, None] + new) / total.clamp(min=1e-9)[:, None]
    mixed[:, 3] = total
    return torch.where(new[:, 3] > 0, place, spare * BLOCK), mixed
