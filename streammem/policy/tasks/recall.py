"""Recall: an arm is taught once where things belong, works on something else for long, and is asked.

An episode of `items` taught things, `delay` steps of work and `queries` questions:

    teach   20 steps a thing: a teacher drags the arm; in the last three the thing's tag is seen
    work    `delay` steps: visible waypoints, a new one each second; at some of them a tag flashes that means nothing
    query   35 steps a question: only a tag is seen; the arm must do what it was taught for that tag

place: bring the hand back to where the teacher put it. weigh: the teacher holds the arm still while a hidden payload
hangs on it, seen only through the joints' errors; asked, bring the hand to a side that says how heavy it was. Which tag
means what is drawn anew each episode, so that it cannot sit in the weights.

Observation, 43 numbers: hand position (3), its velocity (3), joint errors (7, scaled), tag as one of 24 (24),
waypoint (3), flags: teacher present, waypoint seen, tag seen (3). Action: Cartesian velocity of the hand (3), in shares
of 0.6 m/s.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.policy.tasks.arm import STEP_S, KinematicArm

TAGS, OBSERVATION, ACTION = 24, 43, 3
TAUGHT, ASKED, WAYPOINT = 20, 35, 25  # steps of a thing, a question, a waypoint
SHOWN = 3  # steps in which a tag is seen
FASTEST, DRAGGED = 0.6, 1.1  # m/s, of the policy and of the teacher
WITHIN_M = 0.03  # of the goal counts as success; a random place has a chance of 0.3 %
LOW, HIGH = (0.38, -0.28, 0.28), (0.60, 0.28, 0.55)  # box of all goals, m
CENTRE, FRONT = (0.49, 0.0, 0.42), (0.5, 0.0, 0.4)
LIGHTEST, HEAVIEST = 0.3, 3.0  # payloads, kg
WEIGHTS = {"teach": 0.0, "work": 0.3, "query": 1.0}  # of a step in the loss
ERRORS = {"place": 20.0, "weigh": 80.0}  # times joint errors, rad: 3 and 11 at the furthest that the leash allows


class Arm(Protocol):
    """What the task asks of an arm."""

    def reset(self, batch: int): ...

    def move(self, state, velocity: Tensor, payload: Tensor): ...


class Seen(NamedTuple):
    """What B arms perceive at one instant, and what a teacher of policies knows beside it."""

    observation: Tensor  # [B, 43]
    confidence: Tensor  # [B] 1 where a thing is being taught and its tag is seen, 0 elsewhere
    weight: float | Tensor  # of this step in the loss, or [B]: 0 taught, 0.3 at work, 1 asked
    time_s: Tensor  # [B] float64, since the episode began


class Phase(NamedTuple):
    """Where in the episode a step is."""

    name: Literal["teach", "work", "query"]
    index: int  # of the thing, the waypoint or the question
    step: int  # within it


@dataclass(frozen=True)
class RecallTask:
    """The task's parameters.

    items: things taught. changed: how many of them are taught once more, elsewhere; the latest counts. delay: steps of
    work. distractors: share of waypoints at which a tag flashes. noise: times the sensors' own, 1 mm and 0.5 mrad.
    false_confidence: chance that a step in which a distracting tag is seen is given with confidence 1.

    Raises: ConfigError where a number makes no sense.
    """

    mode: Literal["place", "weigh"] = "place"
    items: int = 6
    queries: int = 3
    delay: int = 100
    changed: int = 0
    distractors: float = 0.5
    noise: float = 1.0
    false_confidence: float = 0.0

    def __post_init__(self):
        if self.mode not in ("place", "weigh"):
            raise ConfigError(f"mode is {self.mode!r}; wanted 'place' or 'weigh'")
        if not (1 <= self.items <= TAGS and 0 <= self.changed <= self.items and self.queries >= 1 and self.delay >= 0):
            raise ConfigError(f"{self} makes no sense; wanted 1 to {TAGS} items, changed <= items, queries >= 1")
        for name in ("distractors", "false_confidence"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; wanted a share, 0 to 1")
        if not self.noise >= 0:
            raise ConfigError(f"noise is {self.noise}; wanted at least 0")

    @property
    def lessons(self) -> int:
        """Things taught, those taught again counted again."""
        return self.items + self.changed

    @property
    def history(self) -> int:
        """Steps before the first question."""
        return TAUGHT * self.lessons + self.delay

    @property
    def length(self) -> int:
        """Steps of an episode."""
        return self.history + ASKED * self.queries

    def phase(self, t: int) -> Phase:
        """Where step t is."""
        if t < TAUGHT * self.lessons:
            return Phase("teach", *divmod(t, TAUGHT))
        if t < self.history:
            return Phase("work", *divmod(t - TAUGHT * self.lessons, WAYPOINT))
        return Phase("query", *divmod(min(t, self.length - 1) - self.history, ASKED))

    def begun(self, batch: int, seed: int, arm: Arm | None = None) -> "Recall":
        """Episodes of it."""
        return Recall(self, batch, seed, arm)


class Recall:
    """B episodes of a task in lock step.

    answer, wanted: where the hand is at the end of each question, and where it should be, [B, queries, 3] metres.
    miss_m: the distance between them, [B, queries]. NaN before.

    Shapes: actions [B, 3], cut to [-1, 1].
    Source: our own task; the arm after RoboTTT's eight thousand steps of history.
    """

    def __init__(self, task: RecallTask, batch: int, seed: int, arm: Arm | None = None):
        self.task, self.batch = task, batch
        self.arm = KinematicArm() if arm is None else arm
        self._random = torch.Generator().manual_seed(seed)
        self._rows = torch.arange(batch)

    def reset(self) -> Seen:
        """New episodes; which they are depends on the seed and on how many there were before."""
        task, g = self.task, self._random
        self.t, self.state = 0, self.arm.reset(self.batch)
        self._before = self.state.hand
        self.tags = _shuffled(g, self.batch, TAGS)[:, : task.items]
        again = _shuffled(g, self.batch, task.items)[:, : task.changed]
        self.order = torch.cat([torch.arange(task.items).expand(self.batch, -1), again], 1)  # [B, lessons]
        self.places = inside(g, self.batch, task.lessons)
        self.mass = torch.rand(self.batch, task.lessons, generator=g)  # 0 lightest, 1 heaviest
        asked = torch.cat([_shuffled(g, self.batch, task.items) for _ in range(-(-task.queries // task.items))], 1)
        self.asked = asked[:, : task.queries]
        latest = torch.arange(task.lessons).expand(self.batch, -1)
        self._lesson = torch.zeros_like(self.tags).scatter_reduce(1, self.order, latest, "amax")  # [B, items]
        stops = task.delay // WAYPOINT + 1
        self.waypoints = inside(g, self.batch, stops)
        self.flashes = torch.randint(TAGS, (self.batch, stops), generator=g)
        self.flashing = torch.rand(self.batch, stops, generator=g) < task.distractors
        self.answer = torch.full((self.batch, task.queries, 3), torch.nan)
        self.wanted = torch.full_like(self.answer, torch.nan)
        return self._seen()

    @property
    def done(self) -> bool:
        """Whether the episodes are over."""
        return self.t >= self.task.length

    @property
    def miss_m(self) -> Tensor:
        """Distance of each answer from what was wanted, [B, queries] metres; NaN before the question's end."""
        return (self.answer - self.wanted).norm(dim=-1)

    @property
    def phase(self) -> Phase:
        """Where in the episodes the next action falls."""
        return self.task.phase(self.t)

    def goal(self) -> Tensor:
        """Where the hand should be now, [B, 3] metres."""
        name, i, _ = self.phase
        if name == "work":
            return self.waypoints[:, i]
        if name == "teach":
            return self.places[:, i] if self.task.mode == "place" else torch.tensor(FRONT).expand(self.batch, 3)
        lesson = self._lesson[self._rows, self.asked[:, i]]
        if self.task.mode == "place":
            return self.places[self._rows, lesson]
        side = LOW[1] + (HIGH[1] - LOW[1]) * self.mass[self._rows, lesson]
        front = torch.tensor(FRONT)
        return torch.stack([front[0].expand_as(side), side, front[2].expand_as(side)], 1)

    def expert(self) -> Tensor:
        """The action of one who knows the goal, [B, 3]."""
        return (3.0 * (self.goal() - self.state.hand) / FASTEST).clamp(-1, 1)

    def step(self, action: Tensor) -> Seen:
        """Moves the arms; while they are taught the teacher moves them."""
        (name, i, k), goal = self.phase, self.goal()
        payload = torch.zeros(self.batch)
        if name == "teach":
            velocity = (6.0 * (goal - self.state.hand)).clamp(-DRAGGED, DRAGGED)
            if self.task.mode == "weigh" and k < TAUGHT - 1:
                payload = LIGHTEST + (HEAVIEST - LIGHTEST) * self.mass[:, i]
        else:
            velocity = action.clamp(-1, 1) * FASTEST
        self._before, self.state = self.state.hand, self.arm.move(self.state, velocity, payload)
        if name == "teach" and k == TAUGHT - 2:
            self.places[:, i] = self.state.hand  # what was shown is where the arm really was
        if name == "query" and k == ASKED - 1:
            self.answer[:, i], self.wanted[:, i] = self.state.hand, goal
        self.t += 1
        return self._seen()

    def _seen(self) -> Seen:
        g, task, (name, i, k) = self._random, self.task, self.phase
        rows = self._rows
        tag, waypoint, flags = torch.zeros(self.batch, TAGS), torch.zeros(self.batch, 3), torch.zeros(self.batch, 3)
        if name == "teach" and k >= TAUGHT - SHOWN:
            tag[rows, self.tags[rows, self.order[:, i]]] = 1
        elif name == "work":
            waypoint = scaled(self.waypoints[:, i])
            if 10 <= k < 10 + SHOWN:
                tag[rows, self.flashes[:, i]] = self.flashing[:, i].float()
        elif name == "query":
            tag[rows, self.tags[rows, self.asked[:, i]]] = 1
        flags[:, 0], flags[:, 1], flags[:, 2] = name == "teach", name == "work", tag.sum(1)
        confidence = flags[:, 0] * flags[:, 2]
        if task.false_confidence and name == "work":
            wrong = torch.rand(self.batch, generator=g) < task.false_confidence
            confidence = flags[:, 2] * wrong
        body = felt(self.state, self._before, ERRORS[task.mode], task.noise, g)
        observation = torch.cat([body, tag, waypoint, flags], 1)
        time_s = torch.full((self.batch,), self.t * STEP_S, dtype=torch.float64)
        return Seen(observation, confidence, WEIGHTS[name], time_s)


def felt(state, before: Tensor, errors: float, noise: float, g: torch.Generator) -> Tensor:
    """What an arm perceives of itself, [B, 13]: its hand, the hand's velocity, and the joints' errors times `errors`.

    before: where the hand was a step ago, [B, 3] metres. noise: times the sensors' own.
    """
    batch, hand = len(before), state.hand
    position = scaled(hand + 1e-3 * noise * torch.randn(batch, 3, generator=g))
    error = state.command - state.joints + 5e-4 * noise * torch.randn(batch, 7, generator=g)
    return torch.cat([position, (hand - before) * 30, errors * error], 1)


def inside(g: torch.Generator, batch: int, count: int, low=LOW, high=HIGH) -> Tensor:
    """Random places in a box, [B, count, 3] metres."""
    low, high = torch.tensor(low), torch.tensor(high)
    return low + (high - low) * torch.rand(batch, count, 3, generator=g)


def scaled(place: Tensor) -> Tensor:
    """A place [..., 3], metres, as it stands in an observation."""
    return (place - torch.tensor(CENTRE)) * 4


def _shuffled(g: torch.Generator, batch: int, count: int) -> Tensor:
    """0 to count - 1 in a random order for each row: [B, count]."""
    return torch.rand(batch, count, generator=g).argsort(1)
