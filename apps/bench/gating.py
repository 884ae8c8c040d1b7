"""Does gating help? The tiny network on streams longer than it was trained on, under every update rule."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import build
from streammem.errors import CheckpointError
from streammem.geometry import inverse_rigid, motion_from_quaternion, rotation_angle, transform
from streammem.metrics import trajectory_error
from streammem.recon import weights
from streammem.recon.model import ReconModel
from streammem.recon.reconstructor import Reconstructor
from streammem.recon.state import ReconReadout, View
from streammem.recon.update import Updated, UpdateRule
from streammem.recon.updates import UPDATES
from streammem.types import Frame

from ..train_recon.data import UNSEEN, Clips, rendered, seeds
from .case import Case, Setup, Skip
from .figure import Measured
from .gating_chart import chart
from .gating_report import write_report
from .workload import Gating

FIRST = UNSEEN + 10_000  # rooms that neither training nor its evaluation has seen
ANEW = ("replace", "constant")  # rules that are also run with resets
LATE = 16  # frames at the end of a length whose own errors are scored


@dataclass(frozen=True)
class Frozen(UpdateRule):
    """The state of the first view for ever: what gating must beat.

    S_t = C_1
    """

    def update(self, own, old, candidate, evidence):
        first = evidence.first[:, None, None]
        gate = evidence.first[:, None].to(old.dtype).expand_as(old[..., 0])
        return Updated(own, torch.where(first, candidate, old), gate)


class Walked(NamedTuple):
    """What a rule said of sequences side by side."""

    pose: Tensor  # [B, T, 4, 4] first_from_camera
    depth: Tensor  # [B, T] mean relative error of depth
    gate: Tensor  # [B, T] mean over tokens


class Scores(NamedTuple):
    """Errors of one rule at one length, one a sequence."""

    ate: Tensor  # [B] metres, rmse after a similarity over all frames
    late: Tensor  # [B] metres, mean of the last frames, no alignment
    turn: Tensor  # [B] radians, mean of the last frames
    depth: Tensor  # [B] mean relative error over all frames


def clips(told: Gating, walk: str) -> Clips:
    """Sequences of walks that nobody is trained on, side by side."""
    longest = max(told.lengths)
    found = islice(seeds(FIRST, walk, longest, told.ahead_rad), told.sequences)
    made = [rendered(seed, longest, 48, 64, kind, told.known) for seed, kind in found]
    return Clips(*(torch.cat(part) for part in list(zip(*made))[:3]), made[0].intrinsics)


def views(images: Tensor) -> Iterator[View]:
    """Images [B, T, 3, h, w], one instant after the other."""
    yes = torch.ones(len(images), dtype=torch.bool)
    for t in range(images.shape[1]):
        yield View(images[:, t], None, yes, ~yes, yes, ~yes)


@torch.no_grad()
def walked(model: ReconModel, rule: UpdateRule, seen: Clips) -> Walked:
    """Steps through the sequences under a rule."""
    model.update = rule
    state, found = model.init_state(len(seen.image)), []
    for t, view in enumerate(views(seen.image)):
        state, readout = model(state, view)
        found.append((posed(readout), relative(readout, seen.depth[:, t]), readout.gate.mean(-1)))
    return Walked(*(torch.stack(part, 1) for part in zip(*found)))


@torch.no_grad()
def walked_anew(model: ReconModel, rule: UpdateRule, seen: Clips, every: int) -> Walked:
    """`walked`, starting over every so many frames, the new world laid on the old one's."""
    model.update = rule
    eye, found = Reconstructor(model, len(seen.image), reset_every=every), []
    for t, view in enumerate(views(seen.image)):
        time_s = torch.full((len(seen.image),), float(t), dtype=torch.float64)
        said = eye.step(Frame(view.image, None, None, None, time_s, view.valid, view.reset))
        pose = said.frame.world_from_camera.float()
        depth = transform(inverse_rigid(pose), said.points.float())[..., 2]
        apart = ((depth - seen.depth[:, t]).abs() / seen.depth[:, t]).mean((1, 2))
        found.append((pose, apart, said.gate.mean(-1)))
    return Walked(*(torch.stack(part, 1) for part in zip(*found)))


def posed(readout: ReconReadout) -> Tensor:
    """The predicted camera, [B, 4, 4]."""
    return motion_from_quaternion(readout.pose[:, :3], readout.pose[:, 3:].roll(-1, -1))


def relative(readout: ReconReadout, depth: Tensor) -> Tensor:
    """Mean of |z - z*| / z*, [B], without any alignment."""
    return ((readout.points_camera[..., 2] - depth).abs() / depth).mean((1, 2))


def truth(seen: Clips) -> Tensor:
    """The cameras in the axes of the first, [B, T, 4, 4]."""
    return inverse_rigid(seen.world_from_camera[:, :1]) @ seen.world_from_camera


def scores(said: Walked, cameras: Tensor, length: int) -> Scores:
    """Errors over the first `length` frames."""
    late = slice(max(0, length - LATE), length)
    pairs = zip(said.pose[:, :length].double(), cameras[:, :length].double())
    apart = inverse_rigid(cameras[:, late]) @ said.pose[:, late]
    moved = (said.pose[:, late, :3, 3] - cameras[:, late, :3, 3]).norm(dim=-1).mean(1)
    return Scores(
        torch.tensor([trajectory_error(a, b, "similarity").rmse_m for a, b in pairs]),
        moved,
        rotation_angle(apart).mean(1),
        said.depth[:, :length].mean(1),
    )


def network(told: Gating) -> ReconModel:
    """The weights that are asked for, or those that come with the package.

    Raises: Skip where there are none.
    """
    path = build.TINY if told.weights is None else Path(told.weights)
    try:
        return weights.load(path)[0]
    except CheckpointError as error:
        raise Skip(str(error)) from error


def parity(setup: Setup) -> str | None:
    """Two streams in one batch say what each says alone."""
    told = setup.workload.gating
    model, seen = network(told), clips(Gating(lengths=(4,), sequences=2), "wander")
    for rule in (make() for make in UPDATES.values()):
        both = walked(model, rule, seen)
        alone = walked(model, rule, Clips(*(x[1:] for x in seen[:3]), seen.intrinsics))
        if not torch.allclose(both.pose[1:], alone.pose, rtol=1e-3, atol=1e-4):
            return f"{rule} mixes streams"
    return None


def measure(setup: Setup) -> Iterator[Measured]:
    """Errors by length under every rule, beside those of `replace`, with a picture a walk and a report."""
    told = setup.workload.gating
    model = network(told)
    rules = {**{name: make() for name, make in UPDATES.items()}, "frozen": Frozen()}
    charts, tables = {}, {}
    for walk in told.walks:
        seen = clips(told, walk)
        cameras = truth(seen)
        still = Walked(torch.eye(4).expand_as(cameras), torch.full(cameras.shape[:2], torch.nan), cameras[..., 0, 0])
        found = {name: walked(model, rule, seen) for name, rule in rules.items()}
        found |= {
            f"{name}_reset{every}": walked_anew(model, rules[name], seen, every)
            for every in told.resets
            for name in ANEW
        }
        table = {
            name: {length: scores(said, cameras, length) for length in told.lengths}
            for name, said in {**found, "still": still}.items()
        }
        charts[walk], tables[walk] = setup.out / f"gating-{walk}.svg", table
        chart(charts[walk], walk, {k: v for k, v in table.items() if k != "still"})
        write_report(setup.out / "report.html", charts, tables)
        yield from figures(walk, table, found)


def figures(walk: str, table: dict, found: dict[str, Walked]) -> Iterator[Measured]:
    """Mean and spread over sequences of every error, and each rule's mean gate after the first frame."""
    units = {"ate": "m", "late": "m", "turn": "rad", "depth": ""}
    for name, by_length in table.items():
        for length, score in by_length.items():
            for error, unit in units.items():
                ours, base = getattr(score, error), getattr(table["replace"][length], error)
                if ours.isnan().any():
                    continue
                metric = f"{walk}_{error}_{name}@{length}"
                yield Measured(metric, unit, ours.mean().item(), base.mean().item(), "replace")
                yield Measured(f"{metric}_spread", unit, ours.std().item(), base.std().item(), "replace")
    for name, said in found.items():
        yield Measured(f"{walk}_gate_{name}", "", said.gate[:, 1:].mean().item())


GATING = Case(parity, measure)
