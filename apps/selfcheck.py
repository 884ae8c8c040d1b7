"""Compares the colour-only network on this device with reference tensors, and prints each error beside its tolerance.

With --golden DIR: with what the official code gave, every run that DIR/meta.json lists and whose tensors are there.
Without: with itself in float64 on the CPU, which finds a device that computes wrongly, but no mistake of ours.

exit status: 0 every tensor is within its tolerance; 1 one is not; 2 there is nothing to compare with
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from streammem import build
from streammem.recon import golden
from streammem.recon.config import PRESETS
from streammem.recon.golden import Difference
from streammem.recon.model import ReconModel
from streammem.recon.state import View
from streammem.recon.update import Confidence

from . import cli

FRAMES, SIZE, SEED = 4, (48, 64), 20250926
TOLERANCE = 1e-4  # relative L2 of float32 against float64; float32 alone leaves about 1e-6


def main(argv: list[str]) -> int:
    """Compares; returns the exit status that the module's first lines state."""
    said = _parser().parse_args(argv)
    device = build.device(said.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if said.golden is None:
        print("no --golden DIR: float32 here against float64 on the CPU, random weights, no official tensors")
        return 0 if _printed("own", own(device)) else 1
    present = golden.runs(said.golden)
    names = [name for name in present if said.only in name]
    if not names:
        print(f"streammem selfcheck: {said.golden} holds the tensors of no such run", file=sys.stderr)
        return 2
    passed = [_printed(name, golden.run(name, said.golden, device)) for name in names]
    print(f"{sum(passed)} of {len(passed)} runs within tolerance on {device}")
    return 0 if all(passed) else 1


@torch.no_grad()
def own(device: torch.device) -> list[Difference]:
    """A small network with weights made from their names, on the device in float32 and here in float64."""
    config = dataclasses.replace(PRESETS["tiny_linear"], rope_half_rounding=False)  # its steps would be differences
    state = golden.keyed("tiny_linear", SEED).state_dict()
    made = []
    for place, dtype in ((device, torch.float32), (torch.device("cpu"), torch.float64)):
        model = ReconModel(config, Confidence())
        model.load_state_dict(state)
        made.append(_walk(model.to(place, dtype), place, dtype))
    return [
        Difference(f"{name}, relative L2", float((a.double() - b).norm() / b.norm()), TOLERANCE)
        for (name, a), b in zip(made[0].items(), made[1].values())
    ]


def _walk(model: ReconModel, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The last state and readout of a short stream of patterned images."""
    state, yes = model.init_state(1), torch.ones(1, dtype=torch.bool, device=device)
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in SIZE)
    for i in range(FRAMES):
        wave = torch.sin(0.21 * (i + 1) * rows[:, None] + 0.13 * columns + torch.arange(3)[:, None, None])
        image = wave[None].to(device, dtype)
        state, readout = model(state, View(image, None, yes, ~yes, yes, ~yes))
    named = {"tokens": state.tokens, "pose_memory": state.pose_memory, **readout._asdict()}
    return {name: x.cpu() for name, x in named.items()}


def _printed(run: str, differences: Iterable[Difference]) -> bool:
    """Prints a table; whether everything is within its tolerance."""
    print(run)
    passed = True
    for difference in differences:
        passed &= difference.ok
        verdict = "ok" if difference.ok else "MISS"
        print(f"  {verdict:<4} {difference.tensor:<42} {difference.error:.2e}  tolerance {difference.tolerance:.0e}")
    return passed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem selfcheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--golden", type=Path, metavar="DIR", help="folder with meta.json and tensors of golden runs")
    parser.add_argument("--only", default="", metavar="TEXT", help="of the runs, those whose name contains this")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (default: cpu)")
    return parser


if __name__ == "__main__":
    sys.exit(cli.main(["selfcheck", *sys.argv[1:]]))
