"""The world of `streammem policy`: one robot at one task, and what it senses."""

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.policy.encoders import Observation
from streammem.policy.tasks import arm as arms
from streammem.policy.tasks import imitate, recall, simulated
from streammem.policy.tasks.episodes import Task
from streammem.policy.tasks.recall import Phase
from streammem.policy.tasks.search import SearchTask

from .policy_told import ImitateTold, RecallTold, SearchTold, Shown, Told

TOLD = {"place": RecallTold, "weigh": RecallTold, "search": SearchTold, "imitate": ImitateTold}
SPARE = 2  # attempts at a board, beside one for each hole


@dataclass(frozen=True)
class LiveSettings:
    """What a run of `streammem policy` can be told.

    items: things taught, holes of a board, or demonstrations. history: steps before the first question, or before the
    second visit to the board. dropped: share of frames that the sensors do not
    bring. arm: auto is MuJoCo's Panda where the extra [robot] is installed, else its kinematics. fast: waiting for the
    next tick takes no time. policy: a file, or the name of one that comes with the package; none is that of the mode.
    threads: that a tick may use; more than one make so small a policy slower, and late where others want them too.

    Raises: ConfigError where the numbers make no sense.
    """

    mode: Literal["place", "weigh", "search", "imitate"] = "place"
    items: int = 6
    history: int = 620
    queries: int = 3
    distractors: float = 0.5
    noise: float = 1.0
    dropped: float = 0.0
    arm: Literal["auto", "mujoco", "kinematic"] = "auto"
    seed: int = 0
    rate_hz: float = 25.0
    fast: bool = False
    deadline: Literal["hold", "skip_write", "shed"] = "hold"
    policy: str | None = None
    threads: int = 1

    def __post_init__(self):
        if self.history < self.taught:
            told = f"{self.items} things need {self.taught}"
            raise ConfigError(f"history is {self.history}; wanted at least what teaching takes: {told} steps")
        if not 0 <= self.dropped < 1:
            raise ConfigError(f"dropped is {self.dropped}; wanted a share below 1")
        if not self.rate_hz > 0 or self.threads < 1:
            raise ConfigError(f"rate_hz is {self.rate_hz}, threads {self.threads}; wanted above 0, and at least 1")
        self.task()

    @property
    def taught(self) -> int:
        """Steps after which all is learned that can be."""
        if self.mode == "search":
            return SearchTask(self.items, self.items + SPARE).visit
        return (imitate.TAUGHT if self.mode == "imitate" else recall.TAUGHT) * self.items

    def task(self) -> Task:
        """The task.

        Raises: ConfigError where it makes no sense.
        """
        delay = self.history - self.taught
        if self.mode == "search":
            return SearchTask(self.items, self.items + SPARE, delay, self.distractors, self.noise)
        if self.mode == "imitate":
            return imitate.ImitateTask(self.items, self.queries, delay, noise=self.noise)
        shares = {"distractors": self.distractors, "noise": self.noise}
        return recall.RecallTask(self.mode, self.items, self.queries, delay, **shares)


class Shot(NamedTuple):
    """What is to be seen of one tick."""

    tick: int
    phase: Phase
    joints: Tensor  # [7] rad, zeros as the kinematics count them
    hand: Tensor  # [3] metres
    goal: Tensor  # [3] metres
    shown: Shown
    written: bool


class World:
    """One robot at the task. The same settings and the same actions make the same ticks.

    arm: what moves, "mujoco" or "kinematic". zero: of its sixth joint, as the kinematics count it, rad.
    """

    def __init__(self, settings: LiveSettings):
        self.settings, self.task, self.taught = settings, settings.task(), settings.taught
        self.arm, arm = _arm(settings.arm, settings.mode)
        self.episode = self.task.begun(1, settings.seed, arm)
        self.told: Told = TOLD[settings.mode](self.episode)
        self.zero = 0.0 if arm is None else arms.HOME[5] - arm.home[5]
        self._last = self.episode.reset()
        self._goal, self._phase = self.episode.goal()[0], self.episode.phase
        self._faults = torch.Generator().manual_seed(settings.seed)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.episode.done

    @property
    def tick(self) -> int:
        """Ticks that were made."""
        return self.episode.t

    def skip(self, ticks: int) -> None:
        """Ticks that nobody is to see, as the expert makes them."""
        while self.tick < ticks:
            self.move(self.episode.expert())

    def sense(self) -> tuple[Observation, float]:
        """What the sensors bring; where a frame was dropped it is the one before, with its time."""
        return Observation(self._last.observation, confidence=self._last.confidence), float(self._last.time_s[0])

    def move(self, action: Tensor) -> None:
        """One tick: [1, 3]."""
        self._goal, self._phase = self.episode.goal()[0], self.episode.phase
        seen = self.episode.step(action)
        if torch.rand((), generator=self._faults) >= self.settings.dropped:
            self._last = seen

    def shot(self, written: bool) -> Shot:
        """What is to be seen of the tick that was made last."""
        tick = self.tick - 1
        joints = self.episode.state.joints[0].clone()
        joints[5] += self.zero
        shown = self.told.shown(tick, self._phase, self._goal)
        return Shot(tick, self._phase, joints, self.episode.state.hand[0], self._goal, shown, written)


def _arm(wanted: str, mode: str):
    """(what it is called, the arm; None: the kinematics alone).

    Raises: ConfigError where MuJoCo is wanted and missing.
    """
    if wanted == "kinematic":
        return wanted, None
    headless()
    try:
        return "mujoco", simulated.arm(mode)
    except ConfigError:
        if wanted == "mujoco":
            raise
        return "kinematic", None


def headless() -> None:
    """Lets MuJoCo render without a display, where nothing else was asked for and the library is there."""
    if not sys.platform.startswith("linux") or {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        return
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return
    os.environ["MUJOCO_GL"] = "egl"
