"""A training run that can be stopped anywhere: everything that the next step depends on is in one file."""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from streammem import config, store
from streammem.errors import CheckpointError, ConfigError

from .arguments import found
from .stop import Stop

SCHEMA = 1
CHECKPOINT, CURVE = "checkpoint.safetensors", "curve.svg"


class Training:
    """A model and its optimiser, `step` steps on their way; what they are trained on is the subclass's.

    losses: (step, mean loss of the steps since the entry before); scores: (step, score by name). skipped: updates whose
    gradient was not finite; they change nothing.
    """

    def __init__(self, settings, model: nn.Module, optimiser: torch.optim.Optimizer, rule: str, **beside: nn.Module):
        """beside: what is trained with the model and is no part of it, by name."""
        self.settings, self.model, self.optimiser, self.rule = settings, model, optimiser, rule
        self._parts = {"model": model, **beside}
        self.step = self.skipped = 0
        self.losses: list[tuple[int, float]] = []
        self.scores: list[tuple[int, dict[str, float]]] = []
        self._since: list[float] = []  # losses since the last entry

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.step >= self.settings.steps

    def stepped(self, loss: float) -> float:
        """Counts a step; returns its loss.

        Raises: ConfigError where the loss is not finite.
        """
        self.step += 1
        self._since.append(loss)
        if not math.isfinite(loss):
            told = f"the loss of step {self.step} is {loss}: what is trained diverged"
            raise ConfigError(f"{told}; wanted a lower rate, or most: model.most, policy.recipe.most")
        return loss

    def entered(self, scores: dict[str, float]) -> dict[str, float]:
        """Enters scores beside the mean loss since the last time, and returns them."""
        if self._since:
            self.losses.append((self.step, sum(self._since) / len(self._since)))
            self._since = []
        self.scores.append((self.step, scores))
        return scores

    def save(self, path: Path) -> None:
        """Writes everything, or nothing."""
        parts = self._parts.items()
        tensors = {f"{part}.{name}": x for part, module in parts for name, x in module.state_dict().items()}
        for index, entry in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": x for name, x in entry.items()}
        tensors["random."] = torch.get_rng_state()
        progress = {"step": self.step, "skipped": self.skipped, "since": self._since}
        progress |= {"losses": self.losses, "scores": self.scores}
        notes = {"settings": json.dumps(config.plain(self.settings)), "progress": json.dumps(progress)}
        store.save(path, tensors, schema=SCHEMA, rule=self.rule, notes=notes)

    def load(self, path: Path) -> None:
        """Goes on where `save` was called: the steps that follow are those that would have followed.

        Raises: CheckpointError where the file is not whole, or of another run.
        """
        stored = store.load(path, schema=SCHEMA, rule=self.rule)
        told, now = json.loads(stored.notes.get("settings", "{}")), json.loads(json.dumps(config.plain(self.settings)))
        differs = [f"{name} was {told.get(name)}, is {x}" for name, x in now.items() if told.get(name) != x]
        if differs:
            raise CheckpointError(f"{path} is of another run: {'; '.join(differs)}; wanted the same settings")
        parts: dict[str, dict[str, Tensor]] = {"optimiser": {}}
        for name, x in stored.tensors.items():
            head, _, rest = name.partition(".")
            parts.setdefault(head, {})[rest] = x
        moments: dict[int, dict[str, Tensor]] = {}
        for name, x in parts["optimiser"].items():
            index, _, part = name.partition(".")
            moments.setdefault(int(index), {})[part] = x
        for name, module in self._parts.items():
            module.load_state_dict(parts[name])
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": moments})
        torch.set_rng_state(parts["random"][""])
        progress = json.loads(stored.notes["progress"])
        self.step, self.skipped, self._since = (progress[name] for name in ("step", "skipped", "since"))
        self.losses, self.scores = ([(step, x) for step, x in progress[name]] for name in ("losses", "scores"))


def run(trainer: Training, stop: Stop, write: Callable[[], None], quiet: bool = False) -> None:
    """Step by step, to the end or until somebody ends it; evaluates now and then, and writes there and at last."""
    every, written = trainer.settings.evaluate_every, trainer.step
    look_s = 0.1 if sys.stderr.isatty() else 10.0  # between two looks of the bar; a log file wants few
    steps = trainer.settings.steps
    with tqdm(total=steps, initial=trainer.step, unit="step", disable=quiet, mininterval=look_s) as bar:
        while not trainer.done and stop.signal is None:
            loss = trainer.advance()
            if trainer.step % every == 0 or trainer.done:
                trainer.evaluate()
                write()
                written = trainer.step
            scores = trainer.scores[-1][1].values() if trainer.scores else ()
            bar.set_postfix_str(f"loss {loss:.4f}, scores {' '.join(f'{x:.3f}' for x in scores)}", refresh=False)
            bar.update()
    if trainer.step != written or not trainer.step:
        write()


def chosen(kind: type, default: str, said: argparse.Namespace):
    """The settings that a command line asks for: a config, `default` where it names none, and what differs from it.

    Raises: ConfigError for settings that cannot be used, or an `out` that holds a run, or none to go on with.
    """
    files = [text for text in said.settings if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"settings files are {files}; wanted one: a YAML file or the name of one of ours")
    path = found(files[0] if files else default, "train")
    settings = config.load(kind, path, [text for text in said.settings if "=" in text])
    if (said.out / CHECKPOINT).exists() != said.resume:
        told = "holds no run to go on with" if said.resume else "holds a run; wanted --resume, or another --out"
        raise ConfigError(f"{said.out} {told}")
    return settings


def cosine(step: int, steps: int, warm_up: int, last: float = 0.0) -> float:
    """Share of the highest learning rate: linear up to it, then half a cosine down to `last`."""
    if step < warm_up:
        return (step + 1) / warm_up
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def drawn_by(seed: int, step: int) -> int:
    """What random numbers of a step are seeded with: another for each seed and step in the 32 bits that count."""
    return (seed << 20) + step
