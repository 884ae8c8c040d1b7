"""Search: one of several holes is open, and only trying tells; what was tried must not be tried again.

An episode of two visits to a board of `holes` holes, with `delay` steps of other work between them. A visit:

    gather  20 steps: the arm is brought to a start above the board, drawn anew for every attempt
    attempt 56 steps, up to `attempts` times: at most 40 in which the arm goes to a hole and down, until it touches the
            board (a miss) or is in the open hole; 3 in which it is held there; then it is brought to the next start
    work    steps that are left once the hole was found: visible waypoints, a new one each second

Which hole is open is drawn anew each episode, and is the same in both visits: whoever remembers misses nowhere twice in
the first, and nowhere at all in the second. A miss is seen as contact, and as the joints' errors while it lasts.

Observation, 43 numbers: hand position (3), its velocity (3), joint errors (7, rad times 20), how large the marker of
each hole of this board appears (8: exp(-sideways distance / 6 cm)), which is touched (8), which the hand is in (8),
waypoint (3), flags: trying, waypoint seen, contact (3). Action: as in `recall`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.policy.tasks.arm import STEP_S
from streammem.policy.tasks.board import BOARD, HOLES, PLACES, OverBoard, SearchArm
from streammem.policy.tasks.recall import (
    DRAGGED,
    ERRORS,
    FASTEST,
    LOW,
    SHOWN,
    WAYPOINT,
    Phase,
    Seen,
    felt,
    inside,
    scaled,
)

MARKER_M = 0.045  # sideways, at which it is still a hole that is touched
APPEARS_M = 0.06  # sideways, at which a marker appears 1 / e as large
INSIDE_M = 0.02  # this deep is in the hole
GATHER, SLOT, OUT = 20, 56, 40  # steps
START, LOWEST = 0.45, 0.40  # heights of starts and of waypoints at least, metres
VISITS = 2
GATHERING, TRYING, HELD, BACK, WORKING = range(5)
NAMES = ("gather", "attempt", "held", "back", "work")


@dataclass(frozen=True)
class SearchTask:
    """The task's parameters.

    holes: of a board, one of them open. attempts: in each visit, at most; 0: two for each hole. delay: steps of work
    between the visits. distractors: share of waypoints at which a marker is seen that means nothing. noise: as in
    `RecallTask`. false_confidence: chance that a step in which such a marker is seen is given with confidence 1.

    Raises: ConfigError where a number makes no sense.
    """

    holes: int = 6
    attempts: int = 0
    delay: int = 100
    distractors: float = 0.5
    noise: float = 1.0
    false_confidence: float = 0.0

    def __post_init__(self):
        if not (2 <= self.holes <= HOLES and self.attempts >= 0 and self.delay >= 0 and self.noise >= 0):
            raise ConfigError(f"{self} makes no sense; wanted 2 to {HOLES} holes; attempts, delay, noise >= 0")
        for name in ("distractors", "false_confidence"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; wanted a share, 0 to 1")

    @property
    def most(self) -> int:
        """Attempts in a visit."""
        return self.attempts or 2 * self.holes

    @property
    def visit(self) -> int:
        """Steps of a visit."""
        return GATHER + SLOT * self.most

    @property
    def history(self) -> int:
        """Steps before the second visit."""
        return self.visit + self.delay

    @property
    def length(self) -> int:
        """Steps of an episode."""
        return self.history + self.visit

    def begun(self, batch: int, seed: int, arm: SearchArm | None = None) -> "Search":
        """Episodes of it."""
        return Search(self, batch, seed, arm)


class Search:
    """B episodes of a task in lock step; each is in a phase of its own.

    attempts: how many it took to find the hole, [B, visits]; one more than there are where it was not; NaN before.
    tried: which holes were touched in this visit, [B, HOLES] bool, while the open one is not known.

    Shapes: actions [B, 3], cut to [-1, 1].
    Source: our own task; failures as context after RoboTTT.
    """

    def __init__(self, task: SearchTask, batch: int, seed: int, arm: SearchArm | None = None):
        self.task, self.batch = task, batch
        self.arm = OverBoard() if arm is None else arm
        self._random = torch.Generator().manual_seed(seed)
        self._rows, self._places = torch.arange(batch), torch.tensor(PLACES)

    def reset(self) -> Seen:
        """New episodes; which they are depends on the seed and on how many there were before."""
        task, g, batch = self.task, self._random, self.batch
        order = torch.rand(batch, HOLES, generator=g).argsort(1)
        self.candidates = torch.zeros(batch, HOLES, dtype=torch.bool).scatter(1, order[:, : task.holes], True)
        self.open = order[:, 0]
        stops = task.length // WAYPOINT + 1
        self.waypoints = inside(g, batch, stops, low=(*LOW[:2], LOWEST))
        self._flash = torch.randint(HOLES, (batch, stops), generator=g)
        self._flashing = torch.rand(batch, stops, generator=g) < task.distractors
        self.t = 0
        self.state = self.arm.reset(batch, self.open)
        self._before = self.state.hand
        self.attempts = torch.full((batch, VISITS), torch.nan)
        self.tried = torch.zeros(batch, HOLES, dtype=torch.bool)
        self.known = torch.zeros(batch, dtype=torch.bool)  # the open hole was found once
        self._count = torch.zeros(batch)  # attempts begun in this visit
        self._since = torch.zeros(batch, dtype=torch.int64)  # steps in the phase
        self._over = torch.full((batch,), -1)  # the hole under the hand
        self.contact, self.inside = torch.zeros(batch, dtype=torch.bool), torch.zeros(batch, dtype=torch.bool)
        self.stage = torch.full((batch,), GATHERING)
        self._start = self._drawn_start()
        return self._seen()

    @property
    def done(self) -> bool:
        """Whether the episodes are over."""
        return self.t >= self.task.length

    @property
    def phase(self) -> Phase:
        """What the first episode is at."""
        return Phase(NAMES[int(self.stage[0])], int(self._count[0]), int(self._since[0]))

    @property
    def visit(self) -> int:
        """Which visit it is, 0 or 1."""
        return int(self.t >= self.task.history)

    def target(self) -> Tensor:
        """The hole that one who remembers goes to, [B]: the open one once it is known, else the nearest untried."""
        away = (self.state.hand[:, None, :2] - self._places).norm(dim=-1)
        nearest = torch.where(self.candidates & ~self.tried, away, torch.inf).argmin(1)
        return torch.where(self.known, self.open, nearest)

    def goal(self) -> Tensor:
        """Where the hand should be now, [B, 3] metres: over its hole, and in it once it is over it."""
        place = self._places[self.target()]
        off = (self.state.hand[:, :2] - place).norm(dim=1)
        height = BOARD - 0.08 + (3 * (off - 0.012)).clamp(0, 0.16)
        hole = torch.cat([place, height[:, None]], 1)
        work = (self.stage == WORKING)[:, None]
        moved = ((self.stage == GATHERING) | (self.stage == BACK))[:, None]
        return torch.where(work, self.waypoints[:, self.t // WAYPOINT], torch.where(moved, self._start, hole))

    def expert(self) -> Tensor:
        """The action of one who remembers what was tried, [B, 3]."""
        return (5.0 * (self.goal() - self.state.hand) / FASTEST).clamp(-1, 1)

    def step(self, action: Tensor) -> Seen:
        """Moves the arms; while they are held or brought back the action does nothing."""
        free = ((self.stage == TRYING) | (self.stage == WORKING))[:, None]
        velocity = torch.where(free, action.clamp(-1, 1) * FASTEST, self._brought())
        velocity = torch.where((self.stage == HELD)[:, None], torch.zeros_like(velocity), velocity)
        self._before = self.state.hand
        self.state, touched = self.arm.move(self.state, velocity)
        self._felt(touched)
        self.t += 1
        self._turned()
        return self._seen()

    def _felt(self, touched: Tensor) -> None:
        """What the attempts came to. touched: the board, [B] bool."""
        trying, now = self.stage == TRYING, self.state.hand
        busy = trying | (self.stage == HELD)
        self.inside = busy & (now[:, 2] < BOARD - INSIDE_M)
        self.contact = busy & touched & ~self.inside
        close = (now[:, :2] - self._places[self._under(now)]).norm(dim=1) < MARKER_M
        self._over = torch.where(busy & close, self._under(now), -1)
        missed = trying & self.contact & (self._over >= 0) & ~self.known
        hole = torch.nn.functional.one_hot(self._over.clamp_min(0), HOLES).bool()
        self.tried = self.tried | (hole & missed[:, None])
        self.tried = self.tried & ~(self.candidates & ~self.tried).any(1, keepdim=True).logical_not()  # all: anew
        found = trying & self.inside
        self.known = self.known | found
        fresh = found & self.attempts[:, self.visit].isnan()
        self.attempts[:, self.visit] = torch.where(fresh, self._count, self.attempts[:, self.visit])

    def _turned(self) -> None:
        """The phases of the next step."""
        t = self.t - (self.task.history if self.t >= self.task.history else 0)
        if self.done:
            self.attempts = torch.where(self.attempts.isnan(), self.task.most + 1.0, self.attempts)
            return
        self._since = self._since + 1
        if t == 0:  # the second visit
            missed = self.attempts[:, 0].isnan()
            self.attempts[:, 0] = torch.where(missed, self.task.most + 1.0, self.attempts[:, 0])
            self._go(torch.full((self.batch,), True), GATHERING)
            self._count, self._start = torch.zeros(self.batch), self._drawn_start()
            return
        trying, held = self.stage == TRYING, self.stage == HELD
        ended = trying & (self.contact | self.inside)
        over = trying & ~ended & (self._since >= OUT)
        self._go(ended, HELD)
        self._go(over | (held & (self._since >= SHOWN)), BACK)
        if t >= GATHER and (t - GATHER) % SLOT == 0:
            seeking = self.attempts[:, self.visit].isnan() & (t < self.task.visit)
            self._go(seeking, TRYING)
            self._count = self._count + seeking
            self._go(~seeking, WORKING)
            self._start = self._drawn_start()

    def _go(self, rows: Tensor, stage: int) -> None:
        self.stage = torch.where(rows, stage, self.stage)
        self._since = torch.where(rows, 0, self._since)

    def _brought(self) -> Tensor:
        """How whoever brings the arm back moves it: up first."""
        away = self._start - self.state.hand
        up = torch.stack([torch.zeros(self.batch), torch.zeros(self.batch), away[:, 2]], 1)
        low = (self.state.hand[:, 2] < BOARD + 0.03)[:, None]
        return (6.0 * torch.where(low, up, away)).clamp(-DRAGGED, DRAGGED)

    def _under(self, hand: Tensor) -> Tensor:
        """The hole of this board that is nearest, [B]."""
        away = (hand[:, None, :2] - self._places).norm(dim=-1)
        return torch.where(self.candidates, away, torch.inf).argmin(1)

    def _drawn_start(self) -> Tensor:
        return inside(self._random, self.batch, 1, (0.42, -0.24, START), (0.58, 0.24, START))[:, 0]

    def _seen(self) -> Seen:
        g, task, batch, hand = self._random, self.task, self.batch, self.state.hand
        trying, working = (self.stage == TRYING) | (self.stage == HELD), self.stage == WORKING
        stop, k = min(self.t, task.length - 1) // WAYPOINT, self.t % WAYPOINT
        flash = working & self._flashing[:, stop] & (10 <= k < 10 + SHOWN)
        large = self.candidates * (-(hand[:, None, :2] - self._places).norm(dim=-1) / APPEARS_M).exp()
        view = torch.where(trying[:, None], large, _marker(torch.where(flash, self._flash[:, stop], -1)))
        touched, entered = (trying & x for x in (self.contact, self.inside))
        hole = _marker(self._over)
        told = torch.cat([view, hole * touched[:, None], hole * entered[:, None]], 1)
        flags = torch.stack([trying, working, touched], 1).float()
        waypoint = torch.where(working[:, None], scaled(self.waypoints[:, stop]), torch.zeros(batch, 3))
        body = felt(self.state, self._before, ERRORS["place"], task.noise, g)
        observation = torch.cat([body, told, waypoint, flags], 1)
        confidence = ((self.stage == HELD) & (self.contact | self.inside)).float()
        if task.false_confidence:
            confidence = torch.where(flash & (torch.rand(batch, generator=g) < task.false_confidence), 1.0, confidence)
        weight = (self.stage == TRYING) + 0.3 * working
        return Seen(observation, confidence, weight, torch.full((batch,), self.t * STEP_S, dtype=torch.float64))


def _marker(hole: Tensor) -> Tensor:
    """[B] -> [B, HOLES], nothing where there is none (-1)."""
    return torch.nn.functional.one_hot(hole.clamp_min(0), HOLES) * (hole >= 0)[:, None].float()
