"""Training of a small model on a generated sequence task."""

import math

import torch
from torch import Tensor, nn

from streammem import build

from ..training import Training, cosine
from .model import SequenceModel, device_of
from .settings import TrainSettings
from .tasks import Batch, Task, stream


class Trainer(Training):
    """A model and its optimiser on a task.

    Raises: StreamMemError where the settings do not make a model.
    """

    def __init__(self, settings: TrainSettings):
        torch.manual_seed(settings.seed)
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.task = settings.made()
        model = SequenceModel(settings.model, self.task).to(build.device(settings.device))
        trained = [p for p in model.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(trained, settings.rate, weight_decay=settings.weight_decay)
        super().__init__(settings, model, optimiser, repr(settings.model.rule))
        self._batches = stream(self.task, settings.batch, settings.seed)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do, or the scores are enough."""
        enough, last = self.settings.enough, self.scores[-1][1] if self.scores else {}
        return super().done or (enough is not None and bool(last) and min(last.values()) >= enough)

    def advance(self) -> float:
        """One step of the optimiser; returns the loss before it.

        Raises: ConfigError where the loss is not finite.
        """
        s = self.settings
        loss = loss_of(self.model, self.task, next(self._batches))
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), s.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = s.rate * cosine(self.step, s.steps, s.warm_up)
        told = self.stepped(loss.item())
        self.optimiser.step()
        return told

    def evaluate(self) -> dict[str, float]:
        """Score of every level."""
        s = self.settings
        levels = self.task.levels().items()
        return self.entered({name: score(self.model, task, s.evaluate_on, s.seed) for name, task in levels})

    def load(self, path) -> None:
        super().load(path)
        self._batches = stream(self.task, self.settings.batch, self.settings.seed, self.step)


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
