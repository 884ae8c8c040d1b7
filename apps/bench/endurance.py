"""A long synthetic stream: memory and step time must stay where they were once the room is known."""

from collections.abc import Iterator
from time import perf_counter

import numpy as np

from streammem.sources.synthetic import Synthetic

from . import quality
from .case import Case, Setup
from .figure import Measured, at_most, resident_bytes, timings
from .ours import mapper

EVERY = 50  # frames between two looks at the memory
SLACK_BYTES = 16 << 20  # of the resident set: what the allocator may keep


def measure(setup: Setup) -> Iterator[Measured]:
    """Growth of the resident set and the state after the settling, and late steps beside early ones."""
    work = setup.workload.endurance
    source, ours = Synthetic(work.frames, *work.view), mapper(setup.workload.quality)
    seconds, resident, state = np.zeros(work.frames), [], []
    for index, frame in enumerate(source):
        start = perf_counter()
        ours.step(frame)
        seconds[index] = perf_counter() - start
        if index >= work.settle and index % EVERY == 0:
            resident.append(resident_bytes())
            state.append(ours.nbytes)
    target = at_most((resident[0] + SLACK_BYTES) / 2**20, f"<= {SLACK_BYTES >> 20} MiB more")
    settled = f"frame {work.settle}"
    yield Measured("resident_peak", "MiB", max(resident) / 2**20, resident[0] / 2**20, settled, target)
    target = at_most(1.02 * state[0], "<= 1.02 x settled")
    yield Measured("state_peak", "bytes", max(state), state[0], settled, target)
    late, early = _ends(seconds[work.settle :])
    median, *rest = timings("step", late, early, "early")
    yield median._replace(target=at_most(1.2 * median.baseline, "<= 1.2 x early"))
    yield from rest


def _ends(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last and the first quarter."""
    quarter = max(1, len(seconds) // 4)
    return seconds[-quarter:], seconds[:quarter]


ENDURANCE = Case(quality.parity, measure)
