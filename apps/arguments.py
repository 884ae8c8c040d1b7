"""The command line of `streammem reconstruct`, as settings."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

from streammem import config
from streammem.errors import ConfigError
from streammem.settings import COLOUR_ONLY, ReconstructSettings
from streammem.sources import SPECS, parsed

from . import CONFIGS

RUN = "run.yaml"  # the settings of a run, among what it says about itself
STATE = "state.safetensors"


class Wish(NamedTuple):
    """What the user asked for."""

    settings: ReconstructSettings
    resume: Path | None
    overwrite: bool
    quiet: bool


def wish(argv: list[str], about: str) -> Wish:
    """Reads the command line; `about` describes the program.

    Raises: ConfigError for an unknown key, a value that cannot be used, or a file of settings that is not there.
    """
    said = _parser(about).parse_intermixed_args(argv)
    files = [text for text in said.settings if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"settings files are {', '.join(files)}; wanted one, and key=value for what differs")
    overrides = [*_flags(said), *(text for text in said.settings if "=" in text)]
    if not files and said.resume is None:
        files = _usual(overrides)
    resume = None if said.resume is None else _state_of(said.resume)
    data, where = _read(files, resume)
    where = f"{where} with {' '.join(overrides)}" if overrides else where
    for text in overrides:
        config.override(data, text)
    settings = config.build(ReconstructSettings, data, where)
    if settings.source.path is not None and settings.source.kind != "webcam":
        source = dataclasses.replace(settings.source, path=str(Path(settings.source.path).expanduser().resolve()))
        settings = dataclasses.replace(settings, source=source)
    if settings.recon.weights is not None:
        weights = str(Path(settings.recon.weights).expanduser().resolve())
        settings = dataclasses.replace(settings, recon=dataclasses.replace(settings.recon, weights=weights))
    if settings.out is None and resume is not None:
        settings = dataclasses.replace(settings, out=resume.parent)
    return Wish(settings, resume, said.overwrite, said.quiet)


def _state_of(resume: Path) -> Path:
    """The state file that a run goes on from: the path itself, or that of the run in this folder.

    Raises: ConfigError where a run's folder has no state yet.
    """
    path = resume / STATE if resume.is_dir() else resume
    if not path.exists() and (path.parent / RUN).is_file():
        told = f"{path.parent} holds a run that ended before its first save (every autosave_frames, and at the end)"
        raise ConfigError(f"{told}; wanted the same command once more, without --resume")
    return path


def _usual(overrides: list[str]) -> list[str]:
    """The file of ours that a run takes which names none."""
    told = {name: value.strip('"') for name, _, value in (text.partition("=") for text in overrides)}
    if told.get("source.kind") == "synthetic:rgb":
        return ["synthetic_rgb"]
    if told.get("source.kind") in COLOUR_ONLY or told.get("recon.weights") not in (None, "null"):
        return ["rgb"]
    return [] if "source.kind" in told else ["synthetic"]


def _read(files: list[str], resume: Path | None) -> tuple[dict, str]:
    """Plain settings of the file, or else of the run that is resumed, and their place for messages."""
    if files:
        path = found(files[0], "recon")
    elif resume is not None and (resume.parent / RUN).is_file():
        path = resume.parent / RUN
    else:
        return {}, "settings"
    data = config.read(path)
    return data.get("settings", data), str(path)


def settings_of(run: Path) -> ReconstructSettings:
    """The settings of a run that was written to a folder.

    Raises: ConfigError where the folder holds none.
    """
    if not (run / RUN).is_file():
        raise ConfigError(f"{run} holds no {RUN}; wanted the folder of a run of `streammem reconstruct`")
    data = config.read(run / RUN)
    return config.build(ReconstructSettings, data.get("settings", data), str(run / RUN))


def found(text: str, group: str) -> Path:
    """The file of that name, here or among ours in a group of configs.

    Raises: ConfigError where there is none.
    """
    ours = CONFIGS / group / f"{text}.yaml"
    if Path(text).is_file() or not ours.is_file():
        known = ", ".join(sorted(path.stem for path in ours.parent.glob("*.yaml")))
        if not Path(text).exists():
            raise ConfigError(f"{text}: no such file; wanted a YAML file, key=value, or one of ours: {known}")
        return Path(text)
    return ours


def _flags(said: argparse.Namespace) -> list[str]:
    """Options as overrides."""
    told = []
    if said.source is not None:
        kind, path = parsed(said.source)
        told += [f"source.kind={json.dumps(kind)}", f"source.path={json.dumps(path)}"]
    if said.weights is not None:
        told.append(f"recon.weights={json.dumps(str(said.weights))}")
    if said.update is not None:
        told.append(f"recon.update={json.dumps(said.update)}")
    if said.out is not None:
        told.append(f"out={json.dumps(str(said.out))}")
    if said.check is not None:
        told.append(f"check={'silent' if said.check == 'off' else said.check}")
    return told + ["mesh=false"] * said.no_mesh


def _parser(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem reconstruct", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", help="a YAML file, the name of one of ours, or key.sub=value; nothing: synthetic")
    add("--source", metavar="SPEC", help=SPECS)
    add("--weights", type=Path, metavar="FILE", help="of the network that sees depth in colour (streammem weights)")
    add("--update", metavar="RULE", help="by which the network's state is written (default: confidence)")
    add("--out", type=Path, metavar="DIR", help="where to write (default: out/SOURCE-DATE)")
    add(
        "--resume",
        type=Path,
        metavar="STATE",
        help="go on with this state.safetensors, or this run's folder",
    )
    add("--check", choices=("strict", "warn", "off"), help="of the first frames (default: strict)")
    add("--overwrite", action="store_true", help="DIR may hold another run, which is lost")
    add("--no-mesh", action="store_true", help="write no mesh.ply")
    add("--quiet", action="store_true", help="say nothing but errors")
    return parser
