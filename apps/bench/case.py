"""What a case of the benchmark is, and how one is run: parity first, and no number if it fails."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import figure
from .figure import Figure, Measured, at_most
from .protocols import KITCHEN, recordings
from .workload import Workload


class Skip(Exception):
    """A case cannot run here, and why."""


@dataclass(frozen=True)
class Setup:
    """Where a case finds its data, where it may write, and how much it is to do."""

    workload: Workload
    data: Path | None  # folder of recordings
    out: Path  # pictures and scratch files

    def recording(self, name: str = KITCHEN) -> Path:
        """Folder of one recording.

        Raises: Skip where it is not there.
        """
        folder = (self.data or recordings()) / name
        if not folder.is_dir():
            raise Skip(f"needs the recording {name!r}; {folder} does not exist (--data DIR, see data/README.md)")
        return folder


@dataclass(frozen=True)
class Case:
    """A parity check, which says what is wrong or None, and the measurement that it guards."""

    parity: Callable[[Setup], str | None]
    measure: Callable[[Setup], Iterable[Measured]]


def run(name: str, case: Case, setup: Setup) -> Iterator[Figure]:
    """Figures of one case; a failed parity is one missed figure and nothing is measured."""
    fault = case.parity(setup)
    yield Measured("parity", "", 0.0 if fault is None else 1.0, target=at_most(0, fault or "agrees")).figure(name)
    if fault is not None:
        return
    figure.forget_peak()
    for measured in case.measure(setup):
        yield measured.figure(name)
    yield Measured("peak_memory", "MiB", figure.resident_bytes(high=True) / 2**20).figure(name)
