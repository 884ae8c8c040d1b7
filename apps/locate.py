"""Says where pictures were taken, in a scene that a run has learnt; nothing of the run is changed.

  streammem locate RUN --source video:FOLDER     a line a frame, in TUM's format, and how far it agrees with the map

RUN is the folder that `streammem reconstruct` wrote. Where a network saw the run, it sees these frames too, with the
state that it had; else depth frames are tracked against the map. "agrees" is the share of the pixels whose depth is
within a tenth of what the map shows from there.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from torch import Tensor

from streammem import build, config
from streammem.errors import CheckpointError
from streammem.geometry import Camera
from streammem.mapping import Mapper
from streammem.settings import ReconstructSettings, SourceSettings
from streammem.sources import SPECS, parsed
from streammem.types import Frame

from . import cli
from .arguments import RUN, settings_of
from .journal import tum_line
from .run import STATE, look_again

NEAR = 0.1  # of the depth


def main(argv: list[str]) -> int:
    """Prints the poses; returns 0, or 1 where no frame could be placed."""
    said = _parser().parse_args(argv)
    settings = _settings(said)
    mapper, notes = Mapper.load(said.run / STATE, settings.map, device=build.device(settings.device))
    source = build.source(settings)
    eye = None
    if settings.colour_only:
        eye, found = build.reconstructor(settings, source)
        look_again(said.run / STATE, eye, found, notes, settings)
    print("# time tx ty tz qx qy qz qw agrees: world_from_camera of the run")
    placed = 0
    for frame in source:
        frame = frame._replace(world_from_camera=None) if eye is None else eye.peek(frame).frame
        readout = mapper.peek(frame)
        pose = readout.world_from_camera[0].cpu()
        if readout.status not in ("tracked", "weak"):
            print(f"# {float(frame.time_s[0]):.6f} {readout.status}: {readout.reason}")
            continue
        placed += 1
        print(f"{tum_line(float(frame.time_s[0]), pose).strip()} {agreement(mapper, frame, pose):.3f}")
    return 0 if placed else 1


def agreement(mapper: Mapper, frame: Frame, pose: Tensor) -> float:
    """Share of a frame's pixels with depth where the map shows about the same depth; NaN of none."""
    depth = frame.depth[0].cpu()
    view = mapper.raycast(Camera(frame.intrinsics[0], pose, *depth.shape)).depth.cpu()
    known = (depth > mapper.settings.near_m) & (depth < mapper.settings.max_depth_m)
    near = (view - depth).abs() < NEAR * depth
    return float((near & known).sum() / known.sum()) if bool(known.any()) else float("nan")


def _settings(said: argparse.Namespace) -> ReconstructSettings:
    settings = settings_of(said.run)
    kind, path = parsed(said.source)
    plain = {"kind": kind, "path": path, "frames": said.frames, "every": said.every}
    if kind == settings.source.kind:  # the same camera: its conventions too
        plain = config.plain(settings.source) | {name: x for name, x in plain.items() if x is not None}
    source = config.build(SourceSettings, plain, "--source")
    changed = dataclasses.replace(settings, source=source)
    if settings.colour_only and not changed.colour_only:
        raise CheckpointError(f"{said.run} was learnt from colour; wanted weights in its {RUN}, to see other sources")
    return changed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem locate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--source", required=True, metavar="SPEC", help=SPECS)
    parser.add_argument("--frames", type=int, help="at most so many")
    parser.add_argument("--every", type=int, help="take every n-th; of recordings")
    return parser


if __name__ == "__main__":
    sys.exit(cli.main(["locate", *sys.argv[1:]]))
