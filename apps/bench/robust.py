"""What moves, leaves or stays: a box through the recording, an object that is taken away, a scene that keeps still."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from streammem.sources.room import REMOVABLE
from streammem.sources.synthetic import Synthetic

from . import protocols, quality
from .boxes import inside, passage, with_box
from .case import Case, Setup
from .figure import Measured, at_least, at_most
from .ours import Ours, as_shot
from .peers import Open3D
from .protocols import Shot, hindsight

DISTANCE_M, REACH_M = 1.3, 0.6  # of the box's path before the camera, and to its sides
SHOWS = 0.002  # share of the pixels that must change with an object for a view to look at it
BEFORE_LOOKS = 60  # views of the object before it is taken away
LOOP = range(0, 400, 8)  # frames of the synthetic walk, once round the room
VEIL_M = 0.1  # a surface so far before the sensor's is a ghost
STARE = 20  # neighbouring frames that the camera then stays at


def boxed(frames: Sequence[Shot], size_m: float) -> tuple[list[Shot], np.ndarray]:
    """The frames with a box through the middle third of them, and where it was: [T, 3]."""
    first, last = len(frames) // 3, 2 * len(frames) // 3
    centres = passage(list(frames[first:last]), DISTANCE_M, REACH_M)
    middle = [with_box(shot, centre, size_m) for shot, centre in zip(frames[first:last], centres)]
    return [*frames[:first], *middle, *frames[last:]], centres


def ghost(before: Ours | Open3D, after: Ours | Open3D, points: np.ndarray) -> float:
    """Share of the points that are occupied in `after` and were not in the map that never saw the box."""
    return float((after.occupied(points) & ~before.occupied(points)).mean())


def veiled(method: protocols.Method, clean: Sequence[Shot]) -> float:
    """Share of the held-out pixels that are rendered more than `VEIL_M` before what the sensor saw there."""
    shares = []
    for index in protocols.held_out(len(clean)):
        shot = clean[index]
        measured, seen = (shot.depth > protocols.NEAR_M) & (shot.depth < protocols.FAR_M), method.render(shot)
        shares.append(((seen > 0) & (seen < shot.depth - VEIL_M))[measured].mean())
    return float(np.mean(shares))


def moving_box(setup: Setup) -> Iterator[Measured]:
    """How much the error on clean frames rises by a box that passed, and how much of it stays."""
    work, clean = setup.workload, quality.frames(setup)
    dirty, centres = boxed(clean, work.robust.box_m)
    points = inside(centres, work.robust.box_m)
    rise, ghosts, veils = {}, {}, {}
    for name in ("ours", "Open3D"):
        maps = [Ours(work.quality) if name == "ours" else Open3D(work.quality.voxel_size_m) for _ in range(2)]
        scores = [hindsight(maps[0], clean), hindsight(maps[1], dirty, clean)]
        rise[name] = scores[1].mean_mm - scores[0].mean_mm
        ghosts[name] = ghost(*maps, points)
        veils[name] = veiled(maps[1], clean) - veiled(maps[0], clean)
    target = at_most(0.25 * rise["Open3D"], "<= 0.25 x Open3D's rise")
    yield Measured("box_rise", "mm", rise["ours"], rise["Open3D"], "Open3D", target)
    yield Measured("box_ghost", "", ghosts["ours"], ghosts["Open3D"], "Open3D", at_most(0.05, "<= 5 %"))
    yield Measured("box_veil", "", veils["ours"], veils["Open3D"], "Open3D")


def looks(source: Synthetic, index: int) -> bool:
    """Whether frame `index` looks at the removable object's place, with nothing before it."""
    camera = source.camera_at(index).scaled(0.25)
    changed = (source.scene.render(camera).depth - source.room.render(camera).depth).abs() > 0.01
    return float(changed.float().mean()) > SHOWS


def removed_object(setup: Setup) -> Iterator[Measured]:
    """How much of an object is left after so many views of its place since it was taken away."""
    work = setup.workload
    source = Synthetic(4000, *work.robust.view)
    looking = [i for i in range(0, len(source), 4) if looks(source, i)][: BEFORE_LOOKS + work.robust.look_frames]
    source.removed_at = looking[BEFORE_LOOKS]
    maps = {"ours": Ours(work.quality), "Open3D": Open3D(work.quality.voxel_size_m)}
    points = inside(np.array([REMOVABLE.centre]), 2 * max(REMOVABLE.half), work.quality.voxel_size_m / 2)
    place = torch.from_numpy(points).float()
    away = source.room.distance(place) > 1.5 * work.quality.voxel_size_m  # the table it stood on stays
    points = points[((REMOVABLE.distance(REMOVABLE.local(place)) < 0) & away).numpy()]
    was = {}
    for count, index in enumerate(looking):
        if count == BEFORE_LOOKS:
            was = {name: float(x.occupied(points).mean()) for name, x in maps.items()}
        for x in maps.values():
            x.write(as_shot(source[index]))
    left = {name: float(x.occupied(points).mean()) / max(was[name], 1e-9) for name, x in maps.items()}
    yield Measured("object_seen", "", was["ours"], was["Open3D"], "Open3D", at_least(0.2, ">= 20 % before it left"))
    yield Measured("object_left", "", left["ours"], left["Open3D"], "Open3D", at_most(0.05, "<= 5 %"))


def static_scene(setup: Setup) -> Iterator[Measured]:
    """Once round the room, then a long stare at one place: neither that nor the rest of the room may fade."""
    work = setup.workload
    source, ours = Synthetic(LOOP.stop, *work.robust.view), Ours(work.quality)
    views = [exact(source, i) for i in LOOP[::5]]

    def seen() -> protocols.Score:
        return protocols.average(protocols.score(ours.render(x), x.depth) for x in views)

    write(ours, (source[i] for i in LOOP))
    before, clock = seen(), LOOP.stop / 30
    stare = [as_shot(source[i]) for i in range(STARE)]
    for i in range(work.robust.static_frames):
        ours.write(stare[i % STARE]._replace(time_s=clock + i / 30))
    after, name = seen(), f"before {work.robust.static_frames} frames"
    target = at_least(before.coverage - 0.01, "no more than 1 point less")
    yield Measured("static_coverage", "", after.coverage, before.coverage, name, target)
    target = at_most(1.1 * before.median_mm, "<= 1.1 x before")
    yield Measured("static_median", "mm", after.median_mm, before.median_mm, name, target)
    yield Measured("static_mean", "mm", after.mean_mm, before.mean_mm, name)  # rises with the coverage too


def write(method: protocols.Method, frames: Iterable) -> None:
    """Writes library frames to a method."""
    for frame in frames:
        method.write(as_shot(frame))


def exact(source: Synthetic, index: int) -> Shot:
    """Frame `index` of the room without noise."""
    shot, view = as_shot(source[index]), source.render(source.camera_at(index))
    return shot._replace(depth=view.depth.numpy())


def measure(setup: Setup) -> Iterator[Measured]:
    """The synthetic parts, then the recording's where it is there."""
    yield from removed_object(setup)
    yield from static_scene(setup)
    setup.recording()
    yield from moving_box(setup)


ROBUST = Case(quality.parity, measure)
