"""Trains a small model around a memory rule on a generated sequence task. An example to start from.

exit status:
  0           trained to the last step, or to the score that is enough
  2           the settings or the checkpoint cannot be used
  130, 143    ended early by Ctrl-C or SIGTERM, with everything written; --resume goes on; a second one ends at once
"""

import argparse
import signal
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from streammem import config
from streammem.errors import CheckpointError, ConfigError, StreamMemError

from ..arguments import RUN, found
from ..bench.figure import commit, machine, versions
from ..stop import Stop
from ..training import CHECKPOINT, CURVE, run
from .curve import write_curve
from .model import parameters
from .settings import TrainSettings
from .trainer import Trainer


def main(argv: list[str]) -> int:
    """Trains; returns the exit status that the module's first lines state."""
    said = _parser().parse_intermixed_args(argv)
    settings, out = _settings(said)
    say = _silent if said.quiet else _aloud
    stop = Stop()
    try:
        with stop:
            trainer = Trainer(settings)
            _open(trainer, out, said)
            told = f"{settings.model.rule.name} on {settings.task}, {parameters(trainer.model):,} parameters"
            say(f"{told}, from step {trainer.step} on, into {out}")
            train(trainer, out, stop, said.quiet)
    except (BrokenPipeError, StreamMemError):
        raise
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}; the last checkpoint is whole") from error
    except KeyboardInterrupt:
        print("streammem train: ended at once; the last checkpoint is whole", file=sys.stderr)
        return 128 + signal.SIGINT
    if stop.signal:
        say(f"{stop.signal.name} at step {trainer.step}: everything is written; --resume goes on")
        return 128 + stop.signal
    for name, value in trainer.scores[-1][1].items():
        say(f"  {name:<12} {value:.4f}")
    return 0


def train(trainer: Trainer, out: Path, stop: Stop, quiet: bool) -> None:
    """To the end or until somebody ends it; the checkpoint is written at every evaluation and there."""
    started = time.time()
    run(trainer, stop, lambda: write(trainer, out, started), quiet)


def write(trainer: Trainer, out: Path, started: float) -> None:
    """The checkpoint, the curve, and what the run says about itself."""
    trainer.save(out / CHECKPOINT)
    write_curve(out / CURVE, trainer.losses, trainer.scores)
    about = {"commit": commit(), "machine": machine(), "threads": torch.get_num_threads(), "versions": versions()}
    about |= {"step": trainer.step, "seconds": round(time.time() - started, 1)}
    about |= {"scores": trainer.scores[-1][1] if trainer.scores else {}}
    (out / RUN).write_text(config.dump({"settings": trainer.settings, "run": about}))


def _open(trainer: Trainer, out: Path, said: argparse.Namespace) -> None:
    """Reads the checkpoint, or makes the folder.

    Raises: ConfigError where it holds a run that nobody wants to lose, CheckpointError where there is none to go on.
    """
    checkpoint = out / CHECKPOINT
    if said.resume:
        trainer.load(checkpoint)
    elif checkpoint.exists() and not said.overwrite:
        raise ConfigError(f"{out} holds a run; wanted another --out, --resume to go on with it, or --overwrite")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RUN).touch()
    except OSError as error:
        raise ConfigError(f"out is {out}: {error.strerror}; wanted a folder that can be written to") from error


def _settings(said: argparse.Namespace) -> tuple[TrainSettings, Path]:
    """The settings and the folder.

    Raises: ConfigError for settings that cannot be used.
    """
    files = [text for text in said.settings if "=" not in text]
    if len(files) > 1 or (not files and not said.resume):
        raise ConfigError(f"settings files are {files}; wanted one: a YAML file or the name of one of ours")
    if said.resume and said.out is None:
        raise ConfigError("--resume without --out; wanted the folder of the run that is to go on")
    path = found(files[0], "train") if files else said.out / RUN
    data = config.read(path)
    data = data.get("settings", data)
    for text in (text for text in said.settings if "=" in text):
        config.override(data, text)
    settings = config.build(TrainSettings, data, str(path))
    default = Path("out") / f"train-{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    return settings, said.out or default


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", metavar="CONFIG", help="a YAML file, the name of one of ours, or key.sub=value")
    add("--out", type=Path, metavar="DIR", help="where to write (default: out/train-CONFIG-DATE)")
    add("--resume", action="store_true", help="go on with the run in DIR, bit for bit")
    add("--overwrite", action="store_true", help="DIR may hold another run, which is lost")
    add("--quiet", action="store_true", help="say nothing but errors")
    return parser


def _aloud(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def _silent(text: str) -> None:
    """Says nothing."""
