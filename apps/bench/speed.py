"""Write and ray cast of a map of the same frames, in turn with Open3D's and with plain numpy."""

import itertools
import os
from collections.abc import Iterator
from time import perf_counter

import torch

from streammem.sources.synthetic import Synthetic

from . import protocols, quality
from .case import Case, Setup, Skip
from .figure import Measured, at_most, interleaved, timings
from .naive import Naive
from .ours import Ours, as_camera, as_frame, as_shot
from .peers import Open3D
from .protocols import Shot


def shots(setup: Setup) -> list[Shot]:
    """The kitchen at 640x480, or the synthetic room where there is no recording."""
    count = setup.workload.speed.build_frames
    try:
        return list(protocols.load_kitchen(setup.recording().parent, count))
    except Skip:
        return [as_shot(x) for x in Synthetic(count)]


def measure(setup: Setup) -> Iterator[Measured]:
    """Medians and 99th percentiles of a write and of a view, and what the first write costs."""
    work, seen = setup.workload, shots(setup)
    ours, theirs, naive = Ours(work.quality), Open3D(work.quality.voxel_size_m), Naive(seen[0].pose)
    frames, prepared = [as_frame(x) for x in seen], [theirs.prepare(x) for x in seen]
    start = perf_counter()
    ours.mapper.step(frames[0])
    yield Measured("first_write", "ms", 1e3 * (perf_counter() - start))
    for frame, ready in zip(frames[1:], prepared[1:]):
        ours.mapper.step(frame)
        theirs.integrate(ready)
    turns = [itertools.cycle(x) for x in (frames, prepared, seen)]
    write = interleaved(
        {
            "ours": lambda: ours.mapper.step(next(turns[0])),
            "Open3D": lambda: theirs.integrate(next(turns[1])),
            "numpy": lambda: naive.write(next(turns[2])),
        },
        work.speed.repeats,
    )
    cameras, views = itertools.cycle([as_camera(x) for x in seen[::5]]), itertools.cycle(prepared[::5])
    cast = interleaved(
        {
            "ours": lambda: ours.mapper.raycast(next(cameras)),
            "Open3D": lambda: theirs.raycast(next(views), seen[0].size),
        },
        work.speed.repeats,
    )
    yield Measured("threads", "", torch.get_num_threads(), int(os.environ.get("OMP_NUM_THREADS", 0)), "OMP_NUM_THREADS")
    yield from _judged("write", write, 2.0)
    yield from timings("write_beside_numpy", write["ours"], write["numpy"], "numpy")
    yield from _judged("raycast", cast, 1.0)
    yield Measured("state", "MiB", ours.mapper.nbytes / 2**20)


def _judged(metric: str, times: dict[str, list[float]], most: float) -> Iterator[Measured]:
    """Timings beside Open3D's, of which the median must be at most so many times its own."""
    median, *rest = timings(metric, times["ours"], times["Open3D"], "Open3D")
    yield median._replace(target=at_most(most * median.baseline, f"<= {most:g} x Open3D"))
    yield from rest


SPEED = Case(quality.parity, measure)
