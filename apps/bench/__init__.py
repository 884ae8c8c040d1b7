"""The benchmark program: parity first, then figures beside a baseline of the same run; exit status 1 on a miss."""

import argparse
import importlib
from pathlib import Path

from streammem import config
from streammem.errors import StreamMemError

from .. import CONFIGS
from .case import Case, Setup, Skip, run
from .figure import Figure, commit, machine, table, write_json
from .workload import Workload

CASES = {  # name: (module, case in it, what it shows); a module is imported when its case is asked for
    "map": ("quality", "MAP", "held-out frames of the kitchen from the final map, beside Open3D's"),
    "stream": ("quality", "STREAM", "each frame of the kitchen from the map before it is written, beside Open3D's"),
    "retention": ("quality", "RETENTION", "both protocols as the retention changes, with a picture"),
    "robust": ("robust", "ROBUST", "a box that passes, an object taken away, a scene that keeps still"),
    "track": ("tracking", "TRACK", "trajectories without given poses, beside odometry and dense SLAM"),
    "endurance": ("endurance", "ENDURANCE", "a long stream at constant memory and constant step time"),
    "kill": ("kill", "KILL", "a run killed at random moments and resumed ends like one that was left alone"),
    "badinput": ("badinput", "BADINPUT", "faulty frames are refused in words or counted, and leave no trace"),
    "speed": ("speed", "SPEED", "write and ray cast of one map, in turn with Open3D's"),
    "rules": ("rules", "STEPS", "one step of each memory rule, in turn with a minimal one by hand"),
    "sequences": ("chunks", "SEQUENCES", "whole sequences of a rule in chunks, beside its steps"),
    "targets": ("targets", "TARGETS", "the rules' published and derived figures, and one setting for seven streams"),
    "mqar": ("mqar", "MQAR", "small models trained to recall 16 to 64 pairs, one for each rule"),
    "gating": ("gating", "GATING", "update rules of the colour-only network on streams longer than in training"),
    "policy": ("policy", "POLICY", "policies with and without a memory after up to 8,000 steps of history"),
}


class UnknownCase(StreamMemError, ValueError):
    """A case that the program has not."""


def main(argv: list[str]) -> int:
    """Runs the cases that are named; 0 when every target is met, 1 when one is missed, 3 when nothing could run."""
    said = _parser().parse_intermixed_args(argv)
    names = [x for x in said.case if "=" not in x]
    setup = _setup(said, [x for x in said.case if "=" in x])
    print(f"streammem {commit()} on {machine()}")
    figures: list[Figure] = []
    if said.targets:
        names = ["targets" if name == "rules" else name for name in names]
    for name in _chosen(names):
        figures += _report(name, setup, said.markdown)
        if said.json is not None:
            write_json(said.json, figures)
    missed = [f"{x.case} {x.metric}" for x in figures if x.ok is False]
    print(f"\n{len(figures)} figures, {len(missed)} missed{': ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0 if figures else 3


def _report(name: str, setup: Setup, markdown: bool) -> list[Figure]:
    module, attribute, what = CASES[name]
    print(f"\n{name}: {what}", flush=True)
    figures: list[Figure] = []
    try:
        case: Case = getattr(importlib.import_module(f".{module}", __name__), attribute)
        for figure in run(name, case, setup):
            figures.append(figure)  # one by one: what was measured before a skip is kept
    except Skip as reason:
        print(f"skipped: {reason}")
    if figures:
        print(table(figures, markdown), flush=True)
    return figures


def _chosen(names: list[str]) -> list[str]:
    if names == ["all"]:
        return list(CASES)
    unknown = [x for x in names if x not in CASES]
    if unknown or not names:
        said = f"no case {unknown[0]!r}" if unknown else "a case is wanted"
        raise UnknownCase(f"{said}; known: all, {', '.join(CASES)}")
    return names


def _setup(said: argparse.Namespace, overrides: list[str]) -> Setup:
    path = CONFIGS / "bench" / "quick.yaml" if said.quick else None
    return Setup(config.load(Workload, path, overrides), said.data, said.out)


def _parser() -> argparse.ArgumentParser:
    cases = "\n".join(f"  {name:<10} {what}" for name, (_, _, what) in CASES.items())
    parser = argparse.ArgumentParser(
        prog="streammem bench",
        description=f"{__doc__}\n\ncases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("case", nargs="+", help="a case, `all`, or group.key=value of the workload")
    parser.add_argument("--targets", action="store_true", help="`rules --targets` is the case `targets`")
    parser.add_argument("--quick", action="store_true", help="the minute's version")
    parser.add_argument("--data", type=Path, help="folder of recordings (default: ../shared/data beside the checkout)")
    parser.add_argument(
        "--out", type=Path, default=Path("out/bench"), help="folder for pictures (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object a figure")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    return parser
