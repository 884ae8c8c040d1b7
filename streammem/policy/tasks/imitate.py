"""Imitation in context: an unknown skill is shown a few times, at a human's pace, and then asked for elsewhere.

A skill says where the hand belongs in a situation, which is a direction f of `features` numbers:

    goal = centre + A f;  A drawn anew each episode, so that it cannot sit in the weights

An episode of `demonstrations`, `delay` steps of other work, and `queries`:

    teach   40 steps a demonstration: a situation is seen, a teacher moves the arm to where it belongs, never twice at
            one pace; the last three are marked
    work    `delay` steps, as in `recall`
    query   35 steps: a situation that was never shown

Observation: as in `recall`, with the situation in the first numbers of the tag. A prompt is what the memory holds after
the demonstrations; `policy.cartridge` makes a file of it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.policy.tasks.arm import STEP_S, KinematicArm
from streammem.policy.tasks.recall import (
    ASKED,
    DRAGGED,
    ERRORS,
    FASTEST,
    HIGH,
    LOW,
    SHOWN,
    TAGS,
    WAYPOINT,
    WEIGHTS,
    WITHIN_M,
    Arm,
    Phase,
    Seen,
    felt,
    inside,
    scaled,
)

TAUGHT, MOVING = 40, 32  # steps of a demonstration, and those in which the teacher moves
WAVES = 3  # of which a pace is made
LIMIT = 1.5  # of the logarithm of a pace, before it is made to arrive on time


def time_warp(batch: int, steps: int, strength: float, g: torch.Generator) -> Tensor:
    """How far a human is on the way after each of `steps` equal times: smooth, from 0 to 1, never backwards.

        s(u) = int_0^u exp(strength w) / int_0^1 exp(strength w);  w = LIMIT tanh(sum_k a_k sin(pi k u + p_k) / LIMIT)

    The pace s' stays within exp(-2 LIMIT strength) and exp(2 LIMIT strength); strength 0 is an even pace.

    Shapes: -> [batch, steps + 1].
    Raises: ConfigError where the strength is negative.
    Source: our form of a random monotone time warp.
    """
    if not strength >= 0:
        raise ConfigError(f"strength is {strength}; wanted at least 0")
    u = (torch.arange(steps) + 0.5) / steps
    k = torch.arange(1, WAVES + 1)
    size, offset = torch.randn(batch, WAVES, generator=g), 2 * math.pi * torch.rand(batch, WAVES, generator=g)
    wave = (size[..., None] * (math.pi * k[:, None] * u + offset[..., None]).sin()).sum(1)
    pace = (strength * LIMIT * (wave / LIMIT).tanh()).exp()
    way = torch.nn.functional.pad(pace.cumsum(1), (1, 0))
    return way / way[:, -1:]


def minimum_jerk(s: Tensor) -> Tensor:
    """Share of a reach that a hand has made at a share of its time: 10 s^3 - 15 s^4 + 6 s^5.

    Source: Flash and Hogan 1985.
    """
    return s**3 * (10 - 15 * s + 6 * s * s)


@dataclass(frozen=True)
class ImitateTask:
    """The task's parameters.

    features: numbers of a situation. wobble_m: standard deviation of where a demonstration ends. warp: strength of the
    time warp of demonstrations. delay, noise: as in `RecallTask`.

    Raises: ConfigError where a number makes no sense.
    """

    demonstrations: int = 4
    queries: int = 3
    delay: int = 50
    features: int = 3
    wobble_m: float = 0.01
    warp: float = 0.5
    noise: float = 1.0

    def __post_init__(self):
        if not (self.demonstrations >= 1 and self.queries >= 1 and self.delay >= 0 and 1 <= self.features <= TAGS):
            raise ConfigError(f"{self} makes no sense; wanted 1 demonstration, query, feature or more, {TAGS} at most")
        if min(self.wobble_m, self.warp, self.noise) < 0:
            raise ConfigError(f"{self} makes no sense; wanted wobble_m, warp and noise of at least 0")

    @property
    def history(self) -> int:
        """Steps before the first question."""
        return TAUGHT * self.demonstrations + self.delay

    @property
    def length(self) -> int:
        """Steps of an episode."""
        return self.history + ASKED * self.queries

    def phase(self, t: int) -> Phase:
        """Where step t is."""
        if t < TAUGHT * self.demonstrations:
            return Phase("teach", *divmod(t, TAUGHT))
        if t < self.history:
            return Phase("work", *divmod(t - TAUGHT * self.demonstrations, WAYPOINT))
        return Phase("query", *divmod(min(t, self.length - 1) - self.history, ASKED))

    def begun(self, batch: int, seed: int, arm: Arm | None = None) -> "Imitate":
        """Episodes of it."""
        return Imitate(self, batch, seed, arm)


class Imitate:
    """B episodes of a task in lock step.

    shown: where demonstrations ended, [B, demonstrations, 3] metres. miss_m: distance of the hand from where the skill
    wants it at the end of each question, [B, queries]; NaN before.

    Shapes: actions [B, 3], cut to [-1, 1].
    Source: our own task; demonstrations as a prompt after RoboSSM and RoboTTT.
    """

    def __init__(self, task: ImitateTask, batch: int, seed: int, arm: Arm | None = None):
        self.task, self.batch = task, batch
        self.arm = KinematicArm() if arm is None else arm
        self._random = torch.Generator().manual_seed(seed)

    def reset(self) -> Seen:
        """New episodes; which they are depends on the seed and on how many there were before."""
        task, g, batch = self.task, self._random, self.batch
        half = (torch.tensor(HIGH) - torch.tensor(LOW)) / 2
        self.skill = half[:, None] * _directions(g, batch, 3, task.features)  # [B, 3, features]
        self.situations = _directions(g, batch, task.demonstrations + task.queries, task.features)
        ends = self._belongs(self.situations)
        ends[:, : task.demonstrations] += task.wobble_m * torch.randn(batch, task.demonstrations, 3, generator=g)
        self._ends = ends
        self._way = torch.stack(
            [minimum_jerk(time_warp(batch, MOVING, task.warp, g)) for _ in range(task.demonstrations)], 1
        )
        stops = task.delay // WAYPOINT + 1
        self.waypoints = inside(g, batch, stops)
        self.t, self.state = 0, self.arm.reset(batch)
        self._before = self._left = self.state.hand
        self.shown = torch.full((batch, task.demonstrations, 3), torch.nan)
        self.miss_m = torch.full((batch, task.queries), torch.nan)
        return self._seen()

    @property
    def done(self) -> bool:
        """Whether the episodes are over."""
        return self.t >= self.task.length

    @property
    def phase(self) -> Phase:
        """Where in the episodes the next action falls."""
        return self.task.phase(self.t)

    @property
    def success(self) -> Tensor:
        """[B, queries] bool, within 3 cm."""
        return self.miss_m < WITHIN_M

    def goal(self) -> Tensor:
        """Where the hand should be now, [B, 3] metres."""
        name, i, k = self.phase
        if name == "work":
            return self.waypoints[:, i]
        if name == "query":
            return self._belongs(self.situations[:, self.task.demonstrations + i])
        share = self._way[:, i, min(k + 1, MOVING), None]
        return self._left + share * (self._ends[:, i] - self._left)

    def expert(self) -> Tensor:
        """The action of one who knows the skill, [B, 3]."""
        return (3.0 * (self.goal() - self.state.hand) / FASTEST).clamp(-1, 1)

    def step(self, action: Tensor) -> Seen:
        """Moves the arms; in a demonstration the teacher moves them."""
        (name, i, k), goal = self.phase, self.goal()
        if name == "teach":
            self._left = self.state.hand if k == 0 else self._left
            velocity = (12.0 * (self.goal() - self.state.hand)).clamp(-DRAGGED, DRAGGED)
        else:
            velocity = action.clamp(-1, 1) * FASTEST
        self._before, self.state = self.state.hand, self.arm.move(self.state, velocity, torch.zeros(self.batch))
        if name == "teach" and k == TAUGHT - 2:
            self.shown[:, i] = self.state.hand
        if name == "query" and k == ASKED - 1:
            self.miss_m[:, i] = (self.state.hand - goal).norm(dim=1)
        self.t += 1
        return self._seen()

    def _belongs(self, situation: Tensor) -> Tensor:
        """The skill: [B, ..., features] -> [B, ..., 3] metres."""
        middle = (torch.tensor(LOW) + torch.tensor(HIGH)) / 2
        return middle + torch.einsum("b...f, bcf -> b...c", situation, self.skill)

    def _seen(self) -> Seen:
        g, task, (name, i, k) = self._random, self.task, self.phase
        batch = self.batch
        told, waypoint, flags = torch.zeros(batch, TAGS), torch.zeros(batch, 3), torch.zeros(batch, 3)
        if name == "work":
            waypoint = scaled(self.waypoints[:, i])
        else:
            at = i if name == "teach" else task.demonstrations + i
            told[:, : task.features] = self.situations[:, at]
        marked = name == "teach" and k >= TAUGHT - SHOWN
        flags[:, 0], flags[:, 1], flags[:, 2] = name == "teach", name == "work", marked or name == "query"
        body = felt(self.state, self._before, ERRORS["place"], task.noise, g)
        observation = torch.cat([body, told, waypoint, flags], 1)
        confidence = torch.full((batch,), float(marked))
        return Seen(observation, confidence, WEIGHTS[name], torch.full((batch,), self.t * STEP_S, dtype=torch.float64))


def _directions(g: torch.Generator, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=g), dim=-1)
