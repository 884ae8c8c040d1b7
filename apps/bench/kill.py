"""A run with autosave, killed at random moments: the last file loads, and the resumed run ends like the one let be."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from .case import Case, Setup
from .figure import Measured, at_least
from .workload import Kill

STATE = "state.safetensors"
APPS = __package__.rpartition(".")[0]
ROOT = Path(__file__).resolve().parents[len(__package__.split("."))]  # the folder that the packages are found in
MOMENTS = (0.3, 1.0)  # of an uninterrupted run's length: earlier it is still importing


def command(out: Path, work: Kill, resume: Path | None) -> list[str]:
    """The reconstruction of a synthetic stream that saves its state after every frame."""
    size = [f"source.height={work.view[0]}", f"source.width={work.view[1]}"]
    settings = [f"source.frames={work.frames}", *size, "autosave_frames=1"]
    resuming = [] if resume is None else ["--resume", str(resume)]
    return [sys.executable, "-m", f"{APPS}.cli", "reconstruct", "--out", str(out), *resuming, *settings]


def finish(out: Path, work: Kill, resume: Path | None = None) -> tuple[float, str | None]:
    """Runs to the end: seconds, and what went wrong in its own words, or None."""
    start = perf_counter()
    done = subprocess.run(command(out, work, resume), cwd=ROOT, capture_output=True, text=True)
    return perf_counter() - start, None if done.returncode == 0 else done.stderr.strip()[-300:]


def killed(out: Path, work: Kill, after_s: float) -> bool:
    """Starts a run and kills it after so many seconds; whether it was still running."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command(out, work, None), cwd=ROOT, stdout=quiet, stderr=quiet)
    sleep(after_s)
    running = process.poll() is None
    process.kill()
    process.wait()
    return running


def tensors(path: Path) -> tuple[dict, bytes]:
    """Names, shapes, types and bytes of the tensors of a safetensors file, without what is written about them.

    Read by hand: a judge of saving and loading should not go through what it judges.
    """
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    return header, raw[end:]


def parity(setup: Setup) -> str | None:
    """Two runs that are let be end in the same state."""
    with tempfile.TemporaryDirectory() as scratch:
        ends = [Path(scratch) / name for name in ("once", "again")]
        faults = [finish(out, setup.workload.kill)[1] for out in ends]
        if any(faults):
            return f"a run that was let be failed: {next(filter(None, faults))}"
        first, second = (tensors(out / STATE) for out in ends)
    return None if first == second else "two runs that were let be end in different states"


def measure(setup: Setup) -> Iterator[Measured]:
    """How many runs were killed with a state on disk, and how many of them ended as they should."""
    work, random = setup.workload.kill, np.random.default_rng(setup.workload.kill.seed)
    counts = dict.fromkeys(("killed_while_running", "state_on_disk", "resumed", "ended_equal"), 0)
    with tempfile.TemporaryDirectory() as scratch:
        seconds, _ = finish(Path(scratch) / "whole", work)
        wanted = tensors(Path(scratch) / "whole" / STATE)
        for turn in range(work.times):
            out = Path(scratch) / str(turn)
            counts["killed_while_running"] += killed(out, work, random.uniform(*MOMENTS) * seconds)
            saved = (out / STATE).exists()
            counts["state_on_disk"] += saved
            _, fault = finish(out, work, out / STATE if saved else None)
            counts["resumed"] += fault is None
            counts["ended_equal"] += fault is None and tensors(out / STATE) == wanted
    yield Measured("runs", "runs", work.times)
    for name, count in counts.items():
        every = at_least(work.times, "every one") if name in ("resumed", "ended_equal") else None
        yield Measured(name, "runs", count, target=every)


KILL = Case(parity, measure)
