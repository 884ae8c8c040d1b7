"""The camera's pose when nobody tells it: alignment with recent views, then with the map, and an honest status.

search   candidates (as predicted, at rest, turned as the pictures say, at keyframes), aligned coarsely, the best kept
refine   aligned with the nearest keyframes and the last frame together, then with the map too
judge    tracked | weak | lost | skipped, with a reason
remember the last frame, a keyframe when the view is new, the velocity, the colour camera
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.geometry import inverse_rigid
from streammem.mapping import colour, relocalise, verdict
from streammem.mapping.colour import ColourCamera
from streammem.mapping.odometry import Views, Weighing, align, compare, field_equations
from streammem.mapping.pyramid import Cloud, Layer, cloud, contrasted, halve, reference
from streammem.mapping.relocalise import Keyframes, Memory
from streammem.mapping.tokens import DepthNoise
from streammem.mapping.twist import exponential, offset
from streammem.mapping.verdict import Evidence, Limits
from streammem.types import Frame

LUMA = (0.299, 0.587, 0.114)
MIDDLE = Weighing(spread_m=0.015, intensity=0.05, photometric=0.3)  # geometry leads, for its basin is wider
FINE = Weighing(spread_m=0.005, intensity=0.05, photometric=3.0)
FIT = Weighing(spread_m=0.01, intensity=0.05, photometric=1.0)
STEPS, MAP_STEPS = 3, 2
INDEPENDENT = 12  # points of a picture that err on their own: neighbours err together, and so do whole surfaces
LOOSE = 0.2  # metres and radians: how far the prediction is trusted in directions that nothing else holds
FASTEST = 0.5  # metres and radians: a prediction never goes farther from one frame to the next
SAME = 1.0  # separation up to which two views show the same things
DOUBT = 3  # frames after which a pose that was found again is believed


class TrackState(NamedTuple):
    """What the tracker remembers: fixed shapes."""

    world_from_camera: Tensor  # [4, 4] float64, of the last frame that was not lost
    velocity: Tensor  # [6] float64, twist of the camera a second, in its own axes
    time_s: Tensor  # [] float64
    variance: Tensor  # [] float64, of the position since the start, m^2
    last: Layer  # one picture
    keys: Keyframes
    colour: ColourCamera
    frames: Tensor  # [] int64, frames that were not skipped
    lost: Tensor  # [] int64, frames since the pose was last known
    doubt: Tensor  # [] int64, frames for which a pose found again still counts as weak


class Tracked(NamedTuple):
    """What a step says, all on the device; `verdict.words` puts status and reason in words."""

    status: Tensor  # [] int64: index into `verdict.STATUS`
    reason: Tensor  # [] int64: index into `verdict.REASON`
    world_from_camera: Tensor  # [4, 4] float64; the last known pose when lost
    evidence: Evidence
    keyframe: Tensor  # [] bool, the view was kept
    candidate: Tensor  # [] int64, which start won; from `relocalise.TEMPORAL` on a keyframe's


class Refined(NamedTuple):
    """A pose and what it was compared with."""

    world_from_camera: Tensor  # [4, 4] float64
    system: Tensor  # [6, 6] float64, of the last step
    views: Views
    apart: Tensor  # [] separation from the nearest keyframe
    variance: Tensor  # [R] float64 of the views' positions since the start, m^2; inf where not used


@dataclass(frozen=True)
class Tracker:
    """Tracks one depth camera; `tracker(state, frame, read)` is a pure step.

    Units: metres.
    """

    near_m: float = 0.3
    far_m: float = 3.5
    width_px: int = 160  # about the columns of the pictures that are compared
    keyframes: int = 16
    compared: int = 2  # keyframes that refine a pose, besides the last frame
    revisited: int = 3  # keyframes that are tried as candidates
    new_view: float = 0.3  # separation from every keyframe that makes a new one
    limits: Limits = Limits()
    noise: DepthNoise = field(default_factory=DepthNoise)

    def init(self, height: int, width: int, dtype=torch.float32, device=None) -> TrackState:
        """The state before the first frame of that size."""
        h, w = self.size(height, width)
        zero = torch.zeros((), dtype=torch.float64, device=device)
        none = torch.zeros((), dtype=torch.int64, device=device)
        keys = relocalise.empty(self.keyframes, h, w, dtype, device)
        return TrackState(
            world_from_camera=torch.eye(4, dtype=torch.float64, device=device),
            velocity=torch.zeros(6, dtype=torch.float64, device=device),
            time_s=zero,
            variance=zero.clone(),
            last=Layer(*(x[:1].clone() for x in keys[:3])),
            keys=keys,
            colour=colour.registered(dtype, device),
            frames=none,
            lost=none.clone(),
            doubt=none.clone(),
        )

    def halvings(self, width: int) -> int:
        """How often a picture is halved before it is compared."""
        times = 0
        while width / 2 ** (times + 1) >= 0.75 * self.width_px:
            times += 1
        return times

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the pictures that are compared, each a multiple of 4."""
        times = self.halvings(width)
        return height // 2**times // 4 * 4, width // 2**times // 4 * 4

    def picture(self, frame: Frame) -> Layer:
        """The frame, halved; its depth 0 wherever it is of no use."""
        depth, image = frame.depth[:1], frame.image[:1]
        depth = torch.where((depth >= self.near_m) & (depth <= self.far_m) & frame.valid[:1, None, None], depth, 0)
        times = self.halvings(image.shape[-1])
        h, w = (n * 2**times for n in self.size(*image.shape[-2:]))
        grey = (sum(share * image[:, c] for c, share in enumerate(LUMA)) * 0.5 + 0.5).nan_to_num()
        layer = Layer(depth[..., :h, :w], grey[..., :h, :w].to(depth), frame.intrinsics[:1].to(depth))
        for _ in range(times):
            layer = halve(layer)
        return layer

    def __call__(self, state: TrackState, frame: Frame, read: Callable | None = None) -> tuple[TrackState, Tracked]:
        """One frame: (state, frame) -> (state, Tracked). Looks at nothing from the host.

        read: points [P, 3] in the world -> `odometry.Reading`, the map's; None without a map.
        """
        layer = self.picture(frame)
        predicted = predict(state, frame.time_s[0])
        memory = Memory(state.keys, state.last, state.world_from_camera, state.colour.value)
        start, candidate = relocalise.search(memory, layer, predicted, self.revisited, state.lost > 0, self.noise.sigma)
        seen = cloud(contrasted(layer), state.colour.value, 2, self.noise.sigma)
        refined = self.refine(memory, seen, start, predicted, read)
        evidence = self.weigh(state, seen, refined, predicted, read)
        status, reason = verdict.judge(evidence, self.limits)
        known = (status <= verdict.WEAK) & ~evidence.first
        pose = torch.where(known, refined.world_from_camera, state.world_from_camera)
        new = verdict.writes(status, reason) & (evidence.first | (refined.apart > self.new_view))
        said = Tracked(status, reason, pose, evidence, new, candidate)
        return remember(state, frame, layer, seen, refined, said), said

    def refine(self, memory: Memory, seen: Cloud, start: Tensor, predicted: Tensor, read: Callable | None) -> Refined:
        """Alignment with the nearest keyframes and the last frame together, then with the map too."""
        keys = memory.keys
        slot, apart = relocalise.nearest(keys, start, self.compared)
        tables = reference(contrasted(relocalise.stacked(keys, slot, memory.last)), memory.colour)
        poses = torch.cat([keys.world_from_camera[slot], memory.world_from_last[None]])[None]
        use = torch.cat([(apart < SAME).to(seen.point), seen.point.new_ones(1)])[None]
        views = Views(tables, torch.arange(len(slot) + 1, device=slot.device)[None], use, poses)
        # a pose found from a keyframe has nothing to do with the prediction: it is held where it was found
        held = torch.where(relocalise.separation(start, predicted) < SAME, predicted, start)
        shared = seen.point.shape[-1] / INDEPENDENT  # points that count as one
        hold = torch.eye(6, dtype=held.dtype, device=held.device) * (shared / LOOSE**2)

        def prior(T: Tensor) -> tuple[Tensor, Tensor]:
            return hold, offset(held, T) @ hold

        def prior_and_map(T: Tensor) -> tuple[Tensor, Tensor]:
            A, b, _, _ = field_equations(seen, read, T, FINE)
            return A + hold, b + offset(held, T) @ hold

        T, _ = align(seen, views, start[None], MIDDLE, STEPS, prior)
        T, A = align(seen, views, T, FINE, STEPS, prior)
        if read is not None:
            T, A = align(seen, views, T, FINE, MAP_STEPS, prior_and_map)
        variance = torch.cat([keys.variance[slot], keys.variance.new_full((1,), float("inf"))])
        variance = torch.where(use[0] > 0, variance, float("inf"))
        return Refined(T[0], A[0], views, apart[0], variance)

    def weigh(self, state: TrackState, seen: Cloud, refined: Refined, predicted: Tensor, read) -> Evidence:
        """What speaks for the refined pose and against it."""
        T, views = refined.world_from_camera[None], refined.views
        _, fit = compare(seen, views, inverse_rigid(views.world_from_ref) @ T[:, None], FIT)
        best = fit.inlier.argmax(1, keepdim=True)
        overlap, inlier, compared, intensity = (
            x.gather(1, best)[0, 0] for x in (fit.overlap, fit.inlier, fit.compared, fit.intensity_error)
        )
        count = seen.usable.sum().clamp(min=1)
        known, agreeing = count * 0, count * 0
        if read is not None:
            _, _, known, agreeing = field_equations(seen, read, T, FINE)
        covariance, info = torch.linalg.inv_ex(refined.system * (INDEPENDENT / seen.point.shape[-1]))
        edge = covariance.diagonal()[:3].sum().clamp(min=0)
        anchor = torch.minimum(refined.variance.amin(), state.variance)
        step = offset(predicted, T[0])
        return Evidence(
            usable=seen.usable.mean(),
            overlap=overlap / count,
            inlier=inlier / overlap.clamp(min=1),
            intensity=intensity,
            map_known=known / count,
            map_inlier=agreeing / known.clamp(min=1),
            edge_m=edge.sqrt(),
            drift_m=(anchor + edge).sqrt(),
            jump=torch.maximum(step[:3].norm(), step[3:].norm()),
            solved=(info == 0) & covariance.isfinite().all(),
            first=state.frames == 0,
            again=(state.lost > 0) | (state.doubt > 0),
        )


def predict(state: TrackState, time_s: Tensor) -> Tensor:
    """Constant velocity from the last known pose, [4, 4]."""
    passed_s = (time_s - state.time_s).nan_to_num().clamp(0, 1)
    return state.world_from_camera @ exponential((state.velocity * passed_s).clamp(-FASTEST, FASTEST))


def remember(state: TrackState, frame: Frame, layer: Layer, seen: Cloud, refined: Refined, said: Tracked) -> TrackState:
    """The state after a frame; a lost frame leaves only the count of lost frames, a skipped one nothing at all."""
    known, skipped, first = said.status <= verdict.WEAK, said.status == verdict.SKIPPED, said.evidence.first
    lost = said.status == verdict.LOST

    def kept(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(known, new, old)

    passed_s = (frame.time_s[0] - state.time_s).nan_to_num()
    twist = offset(state.world_from_camera, said.world_from_camera) / passed_s.clamp(min=1e-3)
    steady = known & ~first & (state.lost == 0) & (passed_s > 0)
    velocity = torch.where(steady, twist, 0)
    variance = torch.where(first, 0, said.evidence.drift_m.square())
    trust = (said.status == verdict.TRACKED) & ~first
    doubt = torch.where(said.evidence.first, 0, torch.where(state.lost > 0, DOUBT, (state.doubt - 1).clamp(min=0)))
    return TrackState(
        world_from_camera=kept(said.world_from_camera, state.world_from_camera),
        velocity=torch.where(skipped, state.velocity, velocity),
        time_s=torch.where(skipped, state.time_s, frame.time_s[0]),
        variance=kept(variance, state.variance),
        last=Layer(*map(kept, layer, state.last)),
        keys=relocalise.insert(state.keys, layer, said.world_from_camera, variance, said.keyframe),
        colour=colour.learn(state.colour, seen, refined.views, refined.world_from_camera[None], FINE, trust),
        frames=state.frames + known,
        lost=torch.where(known, 0, state.lost + lost),
        doubt=kept(doubt, state.doubt),
    )
