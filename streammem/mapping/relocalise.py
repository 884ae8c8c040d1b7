"""Keyframes: a ring of spread views with their poses, to be compared with and to be found again from."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.geometry import inverse_rigid, scale_intrinsics
from streammem.mapping.odometry import Views, Weighing, align, compare
from streammem.mapping.pyramid import Cloud, Layer, cloud, contrast, contrasted, halve, reference
from streammem.mapping.twist import exponential

REACH_M = 0.5  # a view this far away counts as different as ...
REACH_RAD = 0.5  # ... a view turned by this much
WIDEST_RAD = 0.5  # no turn larger than this is tried
WINDOW = 0.6  # share of the picture that is slid over a keyframe's

TEMPORAL = 3  # candidates that come from the last frame
COARSE = Weighing(spread_m=0.05, intensity=0.05, photometric=0.1, alike=0.3)
CHOICE = Weighing(spread_m=0.02, intensity=0.05, photometric=1.0, alike=0.3)
STEPS, POLISH = 5, 6
UNMET = 12.0  # cost of a point that meets no surface: about the most that one on a surface can cost
HANDICAP = 1.5


class Keyframes(NamedTuple):
    """M views; slots that hold none have `order` -1."""

    depth: Tensor  # [M, h, w] metres
    intensity: Tensor  # [M, h, w]
    intrinsics: Tensor  # [M, 3, 3]
    world_from_camera: Tensor  # [M, 4, 4] float64
    variance: Tensor  # [M] float64, of the position since the start, m^2
    order: Tensor  # [M] int64, when it was taken


class Memory(NamedTuple):
    """What a frame can be compared with."""

    keys: Keyframes
    last: Layer  # one picture
    world_from_last: Tensor  # [4, 4] float64
    colour: Tensor  # [2], see `colour.ColourCamera`


def empty(count: int, height: int, width: int, dtype=torch.float32, device=None) -> Keyframes:
    """A ring without a view."""
    eye = torch.eye(4, dtype=torch.float64, device=device)
    picture = torch.zeros(count, height, width, dtype=dtype, device=device)
    return Keyframes(
        depth=picture,
        intensity=picture.clone(),
        intrinsics=torch.eye(3, dtype=dtype, device=device).repeat(count, 1, 1),
        world_from_camera=eye.repeat(count, 1, 1),
        variance=torch.zeros(count, dtype=torch.float64, device=device),
        order=torch.full((count,), -1, device=device),
    )


def separation(a: Tensor, b: Tensor) -> Tensor:
    """How different two views are: metres / REACH_M + radians / REACH_RAD. Shapes: [..., 4, 4] -> [...]."""
    metres = (a[..., :3, 3] - b[..., :3, 3]).norm(dim=-1)
    radians = (a[..., :3, :3] - b[..., :3, :3]).flatten(-2).norm(dim=-1) * 0.5**0.5
    return metres / REACH_M + radians / REACH_RAD


def nearest(keys: Keyframes, world_from_camera: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` slots whose views are most like a pose's [4, 4], and how different each is (inf: no view)."""
    apart = torch.where(keys.order >= 0, separation(keys.world_from_camera, world_from_camera), float("inf"))
    apart, slot = apart.topk(count, largest=False)
    return slot, apart


def insert(keys: Keyframes, layer: Layer, world_from_camera: Tensor, variance: Tensor, wanted: Tensor) -> Keyframes:
    """Puts a view, if `wanted` [] bool, into an empty slot or in place of the one that another view repeats most.

    The newest view stays. Shapes: layer of one picture; world_from_camera [4, 4].
    """
    used = keys.order >= 0
    pairs = separation(keys.world_from_camera[:, None], keys.world_from_camera)  # [M, M]
    pairs = torch.where(torch.eye(len(used), dtype=torch.bool, device=used.device), float("inf"), pairs)
    spare = torch.where(keys.order == keys.order.max(), float("inf"), pairs.amin(1))
    slot = torch.where(used, spare, -1.0).argmin().view(1)

    def put(old: Tensor, new: Tensor) -> Tensor:
        return old.index_copy(0, slot, torch.where(wanted, new, old.index_select(0, slot)))

    return Keyframes(
        put(keys.depth, layer.depth),
        put(keys.intensity, layer.intensity),
        put(keys.intrinsics, layer.intrinsics),
        put(keys.world_from_camera, world_from_camera[None]),
        put(keys.variance, variance.view(1)),
        put(keys.order, (keys.order.max() + 1).view(1)),
    )


def slide(view: Layer, of: Layer) -> tuple[Tensor, Tensor]:
    """Where the middle of a picture lies in N others, and how well it fits there.

        c = max over shifts of <a, b> / (|a| |b|);  the shift as a turn of the camera

    Shapes: `view` holds one picture, `of` N of the same size; ref_from_camera [N, 4, 4] float64 and c [N].
    """
    h, w = view.intensity.shape[-2:]
    rows, columns = round(h * (1 - WINDOW) / 2), round(w * (1 - WINDOW) / 2)
    a = view.intensity[:, None, rows : h - rows, columns : w - columns]
    a = a / a.norm().clamp(min=1e-9)
    b = of.intensity[:, None]
    energy = F.conv2d(b.square(), torch.ones_like(a)).clamp(min=1e-9)
    fit = (F.conv2d(b, a) * energy.rsqrt())[:, 0]  # [N, 2 rows + 1, 2 columns + 1]
    best, at = fit.flatten(1).max(1)
    down = ((at // fit.shape[2] - rows) / of.intrinsics[:, 1, 1]).clamp(-WIDEST_RAD, WIDEST_RAD)
    right = ((at % fit.shape[2] - columns) / of.intrinsics[:, 0, 0]).clamp(-WIDEST_RAD, WIDEST_RAD)
    zero = torch.zeros_like(down)
    return exponential(torch.stack([zero, zero, zero, -down, right, zero], -1).double()), best


def stacked(keys: Keyframes, slot: Tensor | slice, last: Layer) -> Layer:
    """The chosen keyframes and one more picture as one layer, [R + 1, h, w]."""
    return Layer(*(torch.cat([a[slot], b]) for a, b in zip(keys[:3], last)))


def search(memory: Memory, layer: Layer, predicted: Tensor, tries: int, lost: Tensor, sigma: Callable):
    """The best coarse pose [4, 4], and which candidate it came from.

    Candidates: as predicted, at rest, turned as the pictures say; and at the `tries` keyframes that look most alike.
    A keyframe must explain the frame better than the last frame does by a HANDICAP, unless the camera is lost.

    Shapes: layer of one picture; predicted [4, 4]; lost [] bool; sigma: depth -> noise, metres.
    """
    keys, at = memory.keys, memory.world_from_last
    turn, alike = slide(_tiny(layer), _tiny(stacked(keys, slice(None), memory.last)))
    used = keys.order >= 0
    _, top = torch.where(used, alike[:-1], -2).topk(tries)
    starts = torch.cat([torch.stack([predicted, at, at @ turn[-1]]), keys.world_from_camera[top] @ turn[top]])
    order = torch.arange(tries, device=top.device)
    row = torch.cat([order.new_full((TEMPORAL,), tries), order])[:, None]  # [H, 1]
    use = torch.cat([used.new_ones(TEMPORAL), used[top]])[:, None].to(alike)
    world_from_ref = torch.cat([at.expand(TEMPORAL, 4, 4), keys.world_from_camera[top]])[:, None]
    tables = reference(contrasted(halve(stacked(keys, top, memory.last))), memory.colour)
    views = Views(tables, row, use, world_from_ref)
    seen = cloud(contrasted(halve(layer)), memory.colour, 1, sigma)
    few = Cloud(*(x[..., ::2].contiguous() for x in seen))
    poses, _ = align(few, views, starts, COARSE, STEPS)
    _, fit = compare(seen, views, inverse_rigid(world_from_ref) @ poses[:, None], CHOICE)
    met = fit.compared / seen.usable.sum().clamp(min=1)
    cost = ((fit.depth_error + 2 * fit.intensity_error) * met + UNMET * (1 - met))[:, 0]
    handicap = torch.where(lost, 0, HANDICAP) * (row[:, 0] < tries)
    best = (cost + handicap).argmin().view(1)
    poses, _ = align(seen, views.only(best), poses.index_select(0, best), COARSE, POLISH)
    return poses[0], best[0]


def _tiny(layer: Layer) -> Layer:
    """A quarter of the rows and columns, intensity alone."""
    intensity = F.avg_pool2d(layer.intensity[:, None], 4)[:, 0]
    return Layer(intensity, contrast(intensity), scale_intrinsics(layer.intrinsics, 0.25, 0.25))
