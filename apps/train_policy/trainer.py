"""Behaviour cloning of whole episodes, with a carried state."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.policy.tasks import simulated
from streammem.policy.tasks.episodes import Episodes, EpisodeStream, Segment, joined, record

from ..training import Training, cosine, drawn_by
from .model import made
from .settings import PolicyTrainSettings, Stage
from .task import judged, posed

UNSEEN = 1 << 31  # seeds from here on are for judging


class PolicyTrainer(Training):
    """A policy and its optimiser on their way. A step is one turn of whole episodes.

    Where a memory diverged and its write was refused the gradient of a segment is not finite, and changes nothing.
    """

    def __init__(self, settings: PolicyTrainSettings):
        torch.manual_seed(settings.seed)
        model = made(settings.policy)
        gates = {id(p) for p in model.gates()}
        rest = [p for p in model.parameters() if id(p) not in gates]
        groups = [{"params": rest, "times": 1.0}, {"params": model.gates(), "times": settings.gate_rate}]
        optimiser = torch.optim.AdamW(
            [group for group in groups if group["params"]], settings.rate, weight_decay=settings.weight_decay
        )
        super().__init__(settings, model, optimiser, "policy")
        self._stream: tuple[int, EpisodeStream] | None = None  # of which stage, and its episodes

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
            group["lr"] = group["times"] * s.rate * cosine(self.step, s.steps, s.warm_up, last=0.01)
        if s.threshold_ramp != (0, 0):
            self.model.policy.memory.gate.raised.fill_(s.threshold_at(self.step))
        state, losses = self.model.init_state(s.stages[stage].batch), []
        for segment in self._episodes(stage).turn(g):
            state, loss = self._learned(state, segment)
            losses.append(loss)
            state = tree.map(Tensor.detach, state)
        return self.stepped(sum(losses) / len(losses))

    def evaluate(self) -> dict[str, float]:
        """Success in episodes that nobody is trained on, entered beside the mean loss since the last time."""
        s = self.settings
        self.model.eval()
        found = {}
        for delay in s.evaluate_delay:
            found |= judged(self.model, s.mode, delay, s.evaluate_on, UNSEEN)
        return self.entered(found)

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
