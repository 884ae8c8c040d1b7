"""Training that can be stopped anywhere: everything that the next step depends on is in one file."""

import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from streammem import build, config, store
from streammem.errors import CheckpointError, ConfigError

from .model import SequenceModel, device_of
from .settings import TrainSettings
from .tasks import Batch, Task, stream

SCHEMA = 1


class Trainer:
    """A model and its optimiser, `step` steps on their way.

    losses: (step, mean loss of the steps since the entry before); scores: (step, score by level).

    Raises: StreamMemError where the settings do not make a model.
    """

    def __init__(self, settings: TrainSettings):
        torch.manual_seed(settings.seed)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.settings, self.task = settings, settings.made()
        self.model = SequenceModel(settings.model, self.task).to(build.device(settings.device))
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.AdamW(trained, settings.rate, weight_decay=settings.weight_decay)
        self.step = 0
        self.losses: list[tuple[int, float]] = []
        self.scores: list[tuple[int, dict[str, float]]] = []
        self._since: list[float] = []  # losses since the last entry
        self._batches = stream(self.task, settings.batch, settings.seed)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        enough, last = self.settings.enough, self.scores[-1][1] if self.scores else {}
        well = enough is not None and bool(last) and min(last.values()) >= enough
        return self.step >= self.settings.steps or well

    def advance(self) -> float:
        """One step of the optimiser; returns the loss before it.

        Raises: ConfigError where the loss is not finite.
        """
        s = self.settings
        loss = loss_of(self.model, self.task, next(self._batches))
        self._since.append(loss.item())
        if not math.isfinite(self._since[-1]):
            told = f"the loss of step {self.step} is {self._since[-1]}: the memory diverged"
            raise ConfigError(f"{told}; wanted a lower model.most, or a lower rate")
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), s.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(s, self.step)
        self.optimiser.step()
        self.step += 1
        return self._since[-1]

    def evaluate(self) -> dict[str, float]:
        """Score of every level, which is entered beside the mean loss since the last time."""
        s = self.settings
        found = {name: score(self.model, task, s.evaluate_on, s.seed) for name, task in self.task.levels().items()}
        if self._since:
            self.losses.append((self.step, sum(self._since) / len(self._since)))
            self._since = []
        self.scores.append((self.step, found))
        return found

    def save(self, path: Path) -> None:
        """Writes everything, or nothing."""
        tensors = {f"model.{name}": x for name, x in self.model.state_dict().items()}
        for index, entry in self.optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": x for name, x in entry.items()}
        tensors["random"] = torch.get_rng_state()
        note = {"step": self.step, "since": self._since, "losses": self.losses, "scores": self.scores}
        notes = {"settings": json.dumps(config.plain(self.settings)), "progress": json.dumps(note)}
        store.save(path, tensors, schema=SCHEMA, rule=repr(self.settings.model.rule), notes=notes)

    def load(self, path: Path) -> None:
        """Goes on where `save` was called: the steps that follow are those that would have followed.

        Raises: CheckpointError where the file is not whole, or of another run.
        """
        stored = store.load(path, schema=SCHEMA, rule=repr(self.settings.model.rule))
        told, now = json.loads(stored.notes.get("settings", "{}")), json.loads(json.dumps(config.plain(self.settings)))
        differs = [f"{name} was {told.get(name)}, is {x}" for name, x in now.items() if told.get(name) != x]
        if differs:
            raise CheckpointError(f"{path} is of another run: {'; '.join(differs)}; wanted the same settings")
        parts: dict[str, dict] = {}
        for name, x in stored.tensors.items():
            head, _, rest = name.partition(".")
            parts.setdefault(head, {})[rest] = x
        self.model.load_state_dict(parts["model"])
        self._load_optimiser(parts.get("optimiser", {}))
        torch.set_rng_state(parts["random"][""])
        progress = json.loads(stored.notes["progress"])
        self.step, self._since = progress["step"], progress["since"]
        self.losses, self.scores = ([(step, x) for step, x in progress[name]] for name in ("losses", "scores"))
        self._batches = stream(self.task, self.settings.batch, self.settings.seed, self.step)

    def _load_optimiser(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for name, x in tensors.items():
            index, _, field = name.partition(".")
            state.setdefault(int(index), {})[field] = x
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": state})


def rate_at(s: TrainSettings, step: int) -> float:
    """Learning rate: linear to its highest, then half a cosine down to 0 at the last step."""
    if step < s.warm_up:
        return s.rate * (step + 1) / s.warm_up
    return s.rate * 0.5 * (1 + math.cos(math.pi * (step - s.warm_up) / max(1, s.steps - s.warm_up)))


def loss_of(model: nn.Module, task: Task, batch: Batch) -> Tensor:
    """Mean over the tokens that are asked: cross-entropy of symbols, half the squared error of numbers."""
    inputs, targets, asked = (x.to(device_of(model)) for x in batch)
    said, wanted = model(inputs)[asked], targets[asked]
    return nn.functional.cross_entropy(said, wanted) if task.symbols else 0.5 * (said - wanted).square().mean()


def score(model: nn.Module, task: Task, sequences: int, seed: int) -> float:
    """Share of right answers, or of the variance that is explained, on sequences that nobody is trained on."""
    right, total, part = 0.0, 0.0, min(sequences, 64)
    batches = stream(task, part, seed, unseen=True)
    with torch.no_grad():
        for _ in range(math.ceil(sequences / part)):
            inputs, targets, asked = (x.to(device_of(model)) for x in next(batches))
            said, wanted = model(inputs)[asked], targets[asked]
            if task.symbols:
                right, total = right + (said.argmax(-1) == wanted).sum().item(), total + len(wanted)
            else:
                right += (wanted.square() - (said - wanted).square()).sum().item()
                total += wanted.square().sum().item()
    return right / total
