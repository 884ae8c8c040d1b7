"""Trains a small reconstruction network on synthetic rooms. An example to start from.

exit status:
  0           trained to the last step
  2           the settings or the checkpoint cannot be used
  130, 143    ended early by Ctrl-C or SIGTERM, with everything written; --resume goes on; a second one ends at once
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from streammem import config
from streammem.recon import weights

from ..arguments import RUN
from ..bench.figure import commit, machine, versions
from ..stop import Stop
from ..train.curve import write_curve
from ..training import CHECKPOINT, CURVE, chosen, run
from .data import Rooms
from .settings import ReconTrainSettings
from .trainer import ReconTrainer

WEIGHTS = "weights.safetensors"


def main(argv: list[str]) -> int:
    """Trains; returns the exit status that the module's first lines state."""
    said = _parser().parse_intermixed_args(argv)
    settings, out = chosen(ReconTrainSettings, "tiny_recon", said), said.out
    out.mkdir(parents=True, exist_ok=True)
    with Stop() as stop:
        trainer = ReconTrainer(settings, Rooms(settings.data, said.rooms))
        if said.resume:
            trainer.load(out / CHECKPOINT)
        count = sum(p.numel() for p in trainer.model.parameters())
        print(f"{count:,} parameters, from step {trainer.step} of {settings.steps} on, into {out}", flush=True)
        train(trainer, out, stop)
    if stop.signal:
        print(f"{stop.signal.name} at step {trainer.step}: everything is written; --resume goes on")
        return 128 + stop.signal
    return 0


def train(trainer: ReconTrainer, out: Path, stop: Stop) -> None:
    """To the end or until somebody ends it; the checkpoint is written at every evaluation and there."""
    started, cpu = time.time(), time.process_time()
    run(trainer, stop, lambda: write(trainer, out, time.time() - started, time.process_time() - cpu))


def write(trainer: ReconTrainer, out: Path, wall_s: float, cpu_s: float) -> None:
    """The checkpoint, the weights alone in float16, the curve, and what the run says about itself."""
    trainer.save(out / CHECKPOINT)
    weights.write(out / WEIGHTS, {name: x.half() for name, x in trainer.model.state_dict().items()}, about(trainer))
    write_curve(out / CURVE, trainer.losses, trainer.scores)
    told = {"commit": commit(), "machine": machine(), "versions": versions(), "step": trainer.step}
    told |= {"seconds": round(wall_s, 1), "cpu_seconds": round(cpu_s, 1)}
    told |= {"losses": [list(x) for x in trainer.losses], "scores": [[step, x] for step, x in trainer.scores]}
    (out / RUN).write_text(config.dump({"settings": trainer.settings, "run": told}))


def about(trainer: ReconTrainer) -> dict[str, str]:
    """What the file of weights says of itself."""
    return {
        "format": weights.FORMAT,
        "config": json.dumps(asdict(trainer.settings.model)),
        "licence": "Apache-2.0, as this library; trained by it on its own synthetic rooms, and knows nothing else",
        "source": f"streammem train-recon, seed {trainer.settings.seed}, step {trainer.step}",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem train-recon", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", metavar="CONFIG", help="a YAML file, or key.sub=value (default: tiny_recon)")
    add("--out", type=Path, metavar="DIR", default=Path("out/train-recon"), help="where to write")
    add("--rooms", type=Path, metavar="DIR", default=Path("out/rooms"), help="where rendered rooms are kept")
    add("--resume", action="store_true", help="go on with the run in DIR")
    return parser
