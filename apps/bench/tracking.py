"""Trajectories without given poses, beside the best odometry and the dense SLAM that a user finds today."""

from collections.abc import Iterator, Sequence
from time import perf_counter

import numpy as np
import torch

from streammem.geometry import se3_exp
from streammem.sources.synthetic import Synthetic

from . import protocols, quality, trackers
from .case import Case, Setup, Skip
from .figure import Measured, at_most
from .ours import as_shot
from .protocols import Shot
from .trackers import Track

PEERS = {"OpenCV Odometry": trackers.opencv, "Open3D dense SLAM": trackers.open3d}
MUST_WIN = ("redkitchen",)  # the recordings that a target is set for; the others are reported


def parity(setup: Setup) -> str | None:
    """The error of a trajectory that was only moved is nothing, and the map is sound."""
    steps = se3_exp(0.1 * torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    moved = se3_exp(torch.tensor([1.0, 2, 3, 0.3, 0.2, 0.1], dtype=torch.float64)) @ steps
    error = trackers.ate(moved.numpy(), steps.numpy())
    if error > 1e-9:
        return f"a moved trajectory has an aligned error of {error} m"
    return quality.parity(setup)


def compare(name: str, shots: Sequence[Shot], setup: Setup) -> Iterator[Measured]:
    """Aligned error, lost frames and silent losses of every tracker on one stream."""
    exact, work = trackers.truth(shots), setup.workload
    start = perf_counter()
    ours = trackers.ours(shots, work.quality)
    seconds = perf_counter() - start
    error = trackers.ate(ours.poses, exact)
    for peer, run in PEERS.items():
        try:
            start = perf_counter()
            track = run(shots, work.quality)
            theirs, took = trackers.ate(track.poses, exact), perf_counter() - start
        except Skip:
            continue
        target = at_most(theirs, f"<= {peer}") if name in MUST_WIN else None
        yield Measured(f"{name}_ate", "m", error, theirs, peer, target)
        yield Measured(f"{name}_rate", "1/s", len(shots) / seconds, len(shots) / took, peer)
        yield Measured(f"{name}_silent_by_peer", "frames", None, silently(track, exact, setup), peer)
    yield Measured(f"{name}_silent", "frames", silently(ours, exact, setup), target=at_most(0, "never"))
    for status in ("tracked", "weak", "lost", "skipped"):
        yield Measured(f"{name}_{status}", "frames", ours.statuses.count(status))


def silently(track: Track, exact: np.ndarray, setup: Setup) -> int:
    """Frames of a track that are lost and not called so."""
    return trackers.silent(track, exact, setup.workload.track.lost_m)


def measure(setup: Setup) -> Iterator[Measured]:
    """The synthetic walk, and the recordings that are there."""
    work = setup.workload.track
    walk = Synthetic(work.synthetic_frames, 240, 320)
    yield from compare("synthetic", [as_shot(x) for x in walk], setup)
    kitchen = protocols.load_kitchen(setup.recording().parent, work.frames)
    yield from compare("redkitchen", kitchen, setup)
    cabinet = protocols.load_cabinet(setup.recording(protocols.CABINET).parent, work.frames)
    yield from compare("tum_fr3_cabinet", cabinet, setup)


TRACK = Case(parity, measure)
