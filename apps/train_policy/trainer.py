"""Behaviour cloning that can be stopped anywhere: everything the next step depends on is in one file."""

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from streammem import config, store, tree
from streammem.errors import CheckpointError, ConfigError
from streammem.policy.tasks import simulated
from streammem.policy.tasks.episodes import Episodes, EpisodeStream, Segment, joined, record

from .model import made
from .settings import PolicyTrainSettings, Stage
from .task import judged, posed

SCHEMA = 1
UNSEEN = 1 << 31  # seeds from here on are for judging


class PolicyTrainer:
    """A policy and its optimiser, `step` steps on their way. A step is one turn of whole episodes.

    losses: (step, mean loss since the entry before); scores: (step, success by history). skipped: segments whose
    gradient was not finite, as where a memory diverged and its write was refused; they change nothing.
    """

    def __init__(self, settings: PolicyTrainSettings):
        torch.manual_seed(settings.seed)
        self.settings, self.model = settings, made(settings.policy)
        gates = {id(p) for p in self.model.gates()}
        rest = [p for p in self.model.parameters() if id(p) not in gates]
        groups = [{"params": rest, "times": 1.0}, {"params": self.model.gates(), "times": settings.gate_rate}]
        self.optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]], settings.rate, weight_decay=settings.weight_decay
        )
        self.step = self.skipped = 0
        self.losses: list[tuple[int, float]] = []
        self.scores: list[tuple[int, dict[str, float]]] = []
        self._since: list[float] = []  # losses since the last entry
        self._stream: tuple[int, EpisodeStream] | None = None  # of which stage, and its episodes

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.step >= self.settings.steps

    def advance(self) -> float:
        """One turn: its segments one after the other, the state carried, the gradient cut; returns the mean loss.

        Each segment is a step of the optimiser.

        Raises: ConfigError where the loss is not finite.
        """
        s, stage = self.settings, self.settings.stage(self.step)
        g = torch.Generator().manual_seed(drawn_by(s.seed, self.step))
        torch.manual_seed(drawn_by(s.seed, self.step))  # of the noise in the gates
        self.model.train()
        for group in self.optimiser.param_groups:
            group["lr"] = group["times"] * rate_at(s, self.step)
        if s.threshold_ramp != (0, 0):
            self.model.policy.memory.gate.raised.fill_(s.threshold_at(self.step))
        state, losses = self.model.init_state(s.stages[stage].batch), []
        for segment in self._episodes(stage).turn(g):
            state, loss = self._learned(state, segment)
            losses.append(loss)
            state = tree.map(Tensor.detach, state)
        self.step += 1
        self._since.append(sum(losses) / len(losses))
        if not math.isfinite(self._since[-1]):
            raise ConfigError(f"the loss of step {self.step} is {self._since[-1]}; wanted a lower rate or recipe.most")
        return self._since[-1]

    def evaluate(self) -> dict[str, float]:
        """Success in episodes that nobody is trained on, entered beside the mean loss since the last time."""
        s = self.settings
        self.model.eval()
        found = {}
        for delay in s.evaluate_delay:
            found |= judged(self.model, s.mode, delay, s.evaluate_on, UNSEEN)
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
        note = {
            "step": self.step,
            "skipped": self.skipped,
            "since": self._since,
            "losses": self.losses,
            "scores": self.scores,
        }
        notes = {"settings": json.dumps(config.plain(self.settings)), "progress": json.dumps(note)}
        store.save(path, tensors, schema=SCHEMA, rule="policy", notes=notes)

    def load(self, path: Path) -> None:
        """Goes on where `save` was called: the steps that follow are those that would have followed.

        Raises: CheckpointError where the file is not whole, or of another run.
        """
        stored = store.load(path, schema=SCHEMA, rule="policy")
        if json.loads(stored.notes["settings"]) != json.loads(json.dumps(config.plain(self.settings))):
            raise CheckpointError(f"{path} is of a run with other settings; wanted those it began with")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, x in stored.tensors.items():
            head, _, rest = name.partition(".")
            if head == "optimiser":
                index, _, part = rest.partition(".")
                moments.setdefault(int(index), {})[part] = x
        self.model.load_state_dict(
            {k.removeprefix("model."): x for k, x in stored.tensors.items() if k.startswith("model.")}
        )
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": moments})
        progress = json.loads(stored.notes["progress"])
        self.step, self.skipped, self._since = (progress[name] for name in ("step", "skipped", "since"))
        self.losses, self.scores = ([(step, x) for step, x in progress[name]] for name in ("losses", "scores"))

    def _learned(self, state, segment: Segment):
        """One step of the optimiser; returns (state, loss). A segment that does not count only writes."""
        action, cost, steps = [], 0.0, segment.weight.shape[1]
        for start, end in self._stretches(segment):
            part = Segment(*(x[:, start:end] for x in segment))
            at_work = 0 < part.weight[0, 0] < 1
            doublings = self.settings.doublings_at(self.step) if at_work else 0
            options = {"doublings": doublings} if doublings else {}
            said = self.model.sequence(state, part.observation, part.confidence, part.time_s, **options)
            state, cost = said.state, cost + said.cost * (end - start) / steps
            action.append(said.action)
        if not segment.weight.any():
            return state, 0.0
        loss = cloned(torch.cat(action, 1), segment)
        self.optimiser.zero_grad()
        (loss + self.settings.write_cost_at(self.step) * cost).backward()
        if nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip).isfinite():
            self.optimiser.step()
        else:
            self.skipped += 1
        return state, loss.item()

    def _stretches(self, segment: Segment) -> list[tuple[int, int]]:
        """Where lessons, work and questions begin and end, where work is to be repeated; else all as one."""
        weight = segment.weight[0]
        cuts = (weight.diff() != 0).nonzero()[:, 0] + 1 if self.settings.doublings else weight.new_zeros(0).long()
        bounds = [0, *cuts.tolist(), len(weight)]
        return list(zip(bounds, bounds[1:]))

    def _episodes(self, stage: int) -> EpisodeStream:
        """The demonstrations of a stage, recorded when it begins."""
        if self._stream is None or self._stream[0] != stage:
            s = self.settings.stages[stage]
            episodes = demonstrations(self.settings, s, (self.settings.seed << 8) + stage)
            self._stream = stage, EpisodeStream(episodes, s.batch, s.segment)
        return self._stream[1]


def drawn_by(seed: int, step: int) -> int:
    """What random numbers of a step are seeded with: another for each seed and step in the 32 bits that count."""
    return (seed << 20) + step


def demonstrations(settings: PolicyTrainSettings, stage: Stage, seed: int) -> Episodes:
    """What the expert shows in a stage: group by group, one number of items, one delay and one kind of arm each.

    Raises: ConfigError where the simulated arm is wanted and the extra [robot] is missing.
    """
    shown = replace(stage, steps=1, segment=1, batch=1)  # of these nothing depends on them
    return _recorded(settings.mode, settings.recorded, shown, seed)


@lru_cache(maxsize=2)  # several policies may be trained on the same
def _recorded(mode: str, episodes: int, stage: Stage, seed: int) -> Episodes:
    g, groups, arm = torch.Generator().manual_seed(seed), [], simulated.arm(mode) if stage.simulated else None
    for i in range(stage.groups):
        items, delay = (int(torch.randint(low, high + 1, (), generator=g)) for low, high in (stage.items, stage.delay))
        changed = int(torch.randint(int(stage.changed * items) + 1, (), generator=g))
        wrong = stage.false_confidence
        task = posed(mode, items, delay, changed, wrong)
        due = int((i + 1) * stage.simulated) > int(i * stage.simulated)
        groups.append(record(task, episodes, (seed << 10) + i, arm=arm if due else None))
    return joined(groups)


def cloned(action: Tensor, segment: Segment) -> Tensor:
    """Mean over the steps that count of the squared error, weighted; 0 where none counts."""
    error = (action - segment.action).square().mean(-1)
    return (error * segment.weight).sum() / segment.weight.sum().clamp_min(1e-9)


def rate_at(s: PolicyTrainSettings, step: int) -> float:
    """Learning rate: linear to its highest, then half a cosine down to a hundredth at the last step."""
    if step < s.warm_up:
        return s.rate * (step + 1) / s.warm_up
    share = (step - s.warm_up) / max(1, s.steps - s.warm_up)
    return s.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
