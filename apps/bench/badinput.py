"""Every kind of bad input that the tests know: a clear error or a counted skip, and not a bit of the state changes."""

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import torch

from streammem import tree
from streammem.errors import StreamMemError
from streammem.mapping import Mapper
from streammem.sources import Synthetic, frame_from

from . import quality
from .case import Case, Setup, Skip
from .figure import Measured, at_least, at_most
from .ours import mapper

KINDS = Path(__file__).resolve().parents[2] / "tests" / "bad_inputs.py"
KNOWN_FRAMES = 5  # written before the bad ones, so that there is a state to spoil


def kinds() -> ModuleType:
    """The tests' list of bad inputs.

    Raises: Skip where the tests are not there, as after a plain install.
    """
    if not KINDS.is_file():
        raise Skip("needs the tests of a checkout, which list the kinds of bad input")
    spec = importlib.util.spec_from_file_location("bad_inputs", KINDS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hand_in(ours: Mapper, arguments: dict, expected: type[Exception] | str) -> str | None:
    """What was wrong with the answer to one bad input, or None."""
    counters = Counter()
    try:
        frame = frame_from(**arguments, counters=counters)
    except StreamMemError as error:
        fits = not isinstance(expected, str) and isinstance(error, expected)
        return None if fits else f"{type(error).__name__}: {error}"
    if not isinstance(expected, str):
        return f"no {expected.__name__}"
    status = ours.step(frame).status
    counted = counters[f"invalid: {expected}"] == 1
    return None if counted and status == "skipped" else f"status {status}, counted {dict(counters)}"


def same(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of tensors are equal to the bit, NaN included."""
    pairs = list(zip(before, after, strict=True))
    return all(a.dtype == b.dtype and torch.equal(_bits(a), _bits(b)) for a, b in pairs)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def measure(setup: Setup) -> Iterator[Measured]:
    """How many kinds were answered as they should be, and how many of them changed the state."""
    ours, bad = mapper(setup.workload.quality), kinds()
    for frame in Synthetic(KNOWN_FRAMES, *setup.workload.robust.view):
        ours.step(frame)
    wrong, changed = [], 0
    for kind in bad.BAD_INPUTS:
        before = [x.clone() for x in tree.leaves(ours.snapshot().map)]
        fault = hand_in(ours, kind.change(bad.good_inputs()), kind.expected)
        changed += not same(before, list(tree.leaves(ours.snapshot().map)))
        wrong += [f"{kind.name} ({fault})"] if fault else []
    count = len(bad.BAD_INPUTS)
    yield Measured("kinds", "", count, target=at_least(20, ">= 20"))
    yield Measured("answered_wrongly", "kinds", len(wrong), target=at_most(0, "; ".join(wrong) or "none"))
    yield Measured("changed_state", "kinds", changed, target=at_most(0, "none"))


BADINPUT = Case(quality.parity, measure)
