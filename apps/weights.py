"""Weights of the colour-only network: look into a file without running it, or make safetensors of an official one.

  streammem weights inspect FILE                what is in it, what is missing, what it would have run
  streammem weights convert FILE.pth OUT        a safetensors file, once the file is whole

exit status: 0 the file is whole; 1 it can be read, but no network can be made of it; 2 it cannot be read or converted
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from streammem.recon import weights
from streammem.recon.config import PRESETS, ReconConfig
from streammem.recon.weights import Weights, listed

from . import cli


def main(argv: list[str]) -> int:
    """Inspects or converts; returns the exit status that the module's first lines state."""
    said = _parser().parse_args(argv)
    config = None if said.config is None else PRESETS[said.config]
    if said.what == "inspect":
        found = weights.read(said.file, config)
        print("\n".join(lines(found)))
        return 0 if found.whole else 1
    made = weights.convert(said.file, said.out, config)
    left = [f"left out    {len(made.unexpected)}: {listed(made.unexpected)}"] if made.unexpected else []
    for line in (*left, *_ran(made)):
        print(line, file=sys.stderr)
    print(f"{said.out}: {len(made.tensors)} tensors, {_count(made)} weights, {name_of(made.config)}")
    print(f"licence: {made.licence}")
    return 0


def lines(found: Weights) -> list[str]:
    """What there is to say about a file."""
    said = [f"file        {found.path} ({found.kind}, {found.path.stat().st_size} bytes)"]
    said.append(f"tensors     {len(found.tensors)} ({_count(found)} weights)")
    if found.config is None:
        said.append(f"network     unknown: its shapes are those of none of {', '.join(PRESETS)}; say --config")
    else:
        source = "the file says so" if found.said else "told by its shapes; counts of heads assumed"
        said.append(f"network     {name_of(found.config)} ({source})")
        said += [f"            {name} {value}" for name, value in dataclasses.asdict(found.config).items()]
    for words, names in (("missing", found.missing), ("unexpected", found.unexpected), ("wrong shape", found.wrong)):
        said.append(f"{words:<11} {len(names)}{': ' + listed(names) if names else ''}")
    said += _ran(found)
    said.append(f"licence     {found.licence}")
    return said


def name_of(config: ReconConfig) -> str:
    """Which of ours it is."""
    return next((name for name, known in PRESETS.items() if known == config), "a network of other sizes than ours")


def _ran(found: Weights) -> list[str]:
    """What a pickle names beside tensors; nothing of it was imported or called."""
    said = []
    if found.calls:
        said.append(f"not run     {listed(found.calls)}: torch's own unpickler would have called this")
    named = [name for name in found.foreign if name not in found.calls]
    if named:
        said.append(f"not loaded  {listed(named)}")
    return said


def _count(found: Weights) -> int:
    """Weights, tied ones once."""
    return sum(x.numel() for x in {x.data_ptr(): x for x in found.tensors.values()}.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem weights", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="inspect|convert")
    inspect = what.add_parser("inspect", help="say what is in a file")
    convert = what.add_parser("convert", help="write an official file as safetensors")
    for sub in (inspect, convert):
        sub.add_argument("file", type=Path, help=".pth or .safetensors")
        sub.add_argument("--config", choices=PRESETS, help="the network, where the file does not say or says wrong")
    convert.add_argument("out", type=Path, help="the safetensors file to write")
    return parser


if __name__ == "__main__":
    sys.exit(cli.main(["weights", *sys.argv[1:]]))
