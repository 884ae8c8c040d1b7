"""One measured number, what it is held against, and how a list of them is shown."""

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

PACKAGES = {"torch": "torch", "open3d": "open3d", "opencv": "opencv-python-headless", "numpy": "numpy"}
COLUMNS = ("case", "metric", "ours", "baseline", "ratio", "target", "ok")


class Target(NamedTuple):
    """What a number must reach, in words and as a bound."""

    words: str
    bound: float
    most: bool  # the bound is a maximum; else a minimum

    def met(self, value: float) -> bool:
        """Whether the value is within the bound; NaN never is."""
        return value <= self.bound if self.most else value >= self.bound


def at_most(bound: float, words: str = "") -> Target:
    """A maximum; `words` say where it comes from."""
    return Target(words or f"<= {bound:.4g}", bound, most=True)


def at_least(bound: float, words: str = "") -> Target:
    """A minimum; `words` say where it comes from."""
    return Target(words or f">= {bound:.4g}", bound, most=False)


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    case: str
    metric: str
    unit: str
    ours: float | None  # None where only the baseline was measured
    baseline: float | None
    baseline_name: str
    ratio: float | None  # ours / baseline
    target: str
    ok: bool | None  # None without a target
    machine: str
    versions: dict[str, str]
    commit: str


class Measured(NamedTuple):
    """What a case yields: a number before the case, the machine and the commit are written on it."""

    metric: str
    unit: str
    ours: float | None
    baseline: float | None = None
    baseline_name: str = ""
    target: Target | None = None

    def figure(self, case: str) -> Figure:
        """The full record."""
        both = self.ours is not None and self.baseline not in (None, 0)
        return Figure(
            case,
            self.metric,
            self.unit,
            _plain(self.ours),
            _plain(self.baseline),
            self.baseline_name,
            float(self.ours / self.baseline) if both else None,
            self.target.words if self.target else "",
            None if self.target is None else self.ours is not None and bool(self.target.met(self.ours)),
            machine(),
            versions(),
            commit(),
        )


def _plain(value) -> float | None:
    return None if value is None else float(value)


def timings(metric: str, seconds: Sequence[float], baseline: Sequence[float] = (), name: str = "") -> list[Measured]:
    """Median and 99th percentile of step times, beside the baseline's where it has some."""
    rows = []
    for word, percent in (("median", 50), ("p99", 99)):
        theirs = 1e3 * np.percentile(baseline, percent) if len(baseline) else None
        rows.append(Measured(f"{metric}_{word}", "ms", 1e3 * np.percentile(seconds, percent), theirs, name))
    rate = 1 / np.median(seconds)
    rows.append(Measured(f"{metric}_rate", "1/s", rate, 1 / np.median(baseline) if len(baseline) else None, name))
    return rows


def interleaved(steps: dict[str, Callable[[], object]], repeats: int, warm: int = 2) -> dict[str, list[float]]:
    """Seconds of each step, taken in turn so that a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(warm + repeats):
        for name, step in steps.items():
            start = perf_counter()
            step()
            if turn >= warm:
                times[name].append(perf_counter() - start)
    return times


@lru_cache
def machine() -> str:
    """Processor, cores, threads, memory, accelerator, in words."""
    cpu = next((x.split(":")[1].strip() for x in _lines("/proc/cpuinfo") if x.startswith("model name")), "unknown CPU")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    threads = f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    return ", ".join([cpu, threads, f"{memory} GiB", *gpus, platform.platform()])


@lru_cache
def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@lru_cache
def commit() -> str:
    """The checkout's commit with a + if it was changed, or the installed version."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        try:
            return f"streammem {importlib.metadata.version('streammem')}"
        except importlib.metadata.PackageNotFoundError:
            return "unknown"
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    return head + ("+" if changed else "")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def resident_bytes(high: bool = False) -> int:
    """Resident set of this process now, or its highest since `forget_peak`; 0 where the system does not say."""
    key = "VmHWM:" if high else "VmRSS:"
    return next((int(x.split()[1]) << 10 for x in _lines("/proc/self/status") if x.startswith(key)), 0)


def forget_peak() -> None:
    """Starts the peak of the resident set over, where the system lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def table(figures: Iterable[Figure], markdown: bool = False) -> str:
    """The figures as aligned text or as a Markdown table."""
    rows = [COLUMNS, *(_row(x) for x in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    edge, gap = ("| ", " | ") if markdown else ("", "  ")
    lines = [edge + gap.join(x.ljust(w) for x, w in zip(row, widths)) + edge[::-1] for row in rows]
    lines.insert(1, edge + gap.join("-" * w for w in widths) + edge[::-1])
    return "\n".join(line.rstrip() for line in lines)


def _row(x: Figure) -> tuple[str, ...]:
    baseline = "" if x.baseline is None else f"{_number(x.baseline)} {x.unit} ({x.baseline_name})"
    ours = "-" if x.ours is None else f"{_number(x.ours)} {x.unit}".rstrip()
    ratio = "" if x.ratio is None else f"{x.ratio:.2f}"
    return x.case, x.metric, ours, baseline, ratio, x.target, {None: "", True: "ok", False: "MISSED"}[x.ok]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def write_json(path: Path, figures: Iterable[Figure]) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(x)) + "\n" for x in figures))
