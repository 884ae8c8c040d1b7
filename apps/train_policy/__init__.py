"""Trains a policy with a memory, or a baseline, to repeat after thousands of steps what it was shown once.

exit status:
  0           trained to the last step
  2           the settings or the checkpoint cannot be used
  130, 143    ended early by Ctrl-C or SIGTERM, with everything written; --resume goes on; a second one ends at once
"""

import argparse
import time
from pathlib import Path

from streammem import config
from streammem.policy.tasks import trained

from ..arguments import RUN
from ..bench.figure import commit, machine, versions
from ..stop import Stop
from ..train.curve import write_curve
from ..training import CHECKPOINT, CURVE, chosen, run
from .settings import PolicyTrainSettings
from .trainer import PolicyTrainer

WEIGHTS = "policy.safetensors"


def main(argv: list[str]) -> int:
    """Trains; returns the exit status that the module's first lines state."""
    said = _parser().parse_intermixed_args(argv)
    settings, out = chosen(PolicyTrainSettings, "policy", said), said.out
    with Stop() as stop:
        trainer = PolicyTrainer(settings)
        if said.resume:
            trainer.load(out / CHECKPOINT)
        out.mkdir(parents=True, exist_ok=True)
        count = sum(p.numel() for p in trainer.model.parameters())
        print(f"{count:,} parameters, from step {trainer.step} of {settings.steps} on, into {out}", flush=True)
        train(trainer, out, stop)
    if stop.signal:
        print(f"{stop.signal.name} at step {trainer.step}: everything is written; --resume goes on")
        return 128 + stop.signal
    return 0


def train(trainer: PolicyTrainer, out: Path, stop: Stop) -> None:
    """To the end or until somebody ends it; the checkpoint is written at every evaluation and there."""
    started, cpu = time.time(), time.process_time()
    run(trainer, stop, lambda: write(trainer, out, time.time() - started, time.process_time() - cpu))


def write(trainer: PolicyTrainer, out: Path, wall_s: float, cpu_s: float) -> None:
    """The checkpoint, the weights alone, the curve, and what the run says about itself."""
    trainer.save(out / CHECKPOINT)
    if trainer.settings.policy.kind == "memory":
        source = f"streammem train-policy, seed {trainer.settings.seed}, step {trainer.step}, commit {commit()}"
        trained.save(out / WEIGHTS, trainer.model.policy, trainer.settings.policy.recipe, source)
    write_curve(out / CURVE, trainer.losses, trainer.scores)
    told = {"commit": commit(), "machine": machine(), "versions": versions(), "step": trainer.step}
    told["skipped"] = trainer.skipped
    told |= {"seconds": round(wall_s, 1), "cpu_seconds": round(cpu_s, 1)}
    told |= {"losses": [list(x) for x in trainer.losses], "scores": [[step, x] for step, x in trainer.scores]}
    (out / RUN).write_text(config.dump({"settings": trainer.settings, "run": told}))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem train-policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", metavar="CONFIG", help="a YAML file, or key.sub=value (default: policy)")
    add("--out", type=Path, metavar="DIR", default=Path("out/train-policy"), help="where to write")
    add("--resume", action="store_true", help="go on with the run in DIR, bit for bit")
    return parser
