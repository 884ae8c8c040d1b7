"""What an episode has to tell its spectators, who know more than the robot does: marks, words, verdicts."""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from streammem.policy.tasks.arm import STEP_S
from streammem.policy.tasks.recall import ASKED, TAUGHT, WITHIN_M, Recall


class Mark(NamedTuple):
    """Something that belongs into the picture."""

    place: tuple[float, float, float]  # metres
    label: str
    kind: Literal["slot", "wanted", "waypoint", "right", "wrong"]


class Shown(NamedTuple):
    """What a picture tells of a tick."""

    marks: tuple[Mark, ...]
    words: str
    ended: bool  # the last tick of a question


class Verdict(NamedTuple):
    """How a question was answered."""

    asked: str
    ago_s: float  # since it was taught
    found: str  # what came of it
    right: bool


class Told(Protocol):
    """Of a task."""

    def shown(self, tick: int, goal: Tensor) -> Shown: ...

    def verdicts(self) -> list[Verdict]: ...


class RecallTold:
    """Of recall."""

    def __init__(self, episode: Recall):
        self._episode, self._task = episode, episode.task

    def shown(self, tick: int, goal: Tensor) -> Shown:
        """Of a tick that was made, and where the hand should have been, [3]."""
        name, i, step = self._task.phase(tick)
        marks, words = list(self._taught(tick)), "at work"
        if name == "teach":
            words = f"taught {i + 1} of {self._task.lessons}: tag {self._tag(int(self._episode.order[0, i]))}"
        elif name == "work":
            marks.append(Mark(tuple(goal.tolist()), "", "waypoint"))
        else:
            words = f"asked {i + 1} of {self._task.queries}: tag {self._tag(int(self._episode.asked[0, i]))}"
        ended = name == "query" and step == ASKED - 1
        if name == "query":
            kind = ("right" if self._miss_m(i) < WITHIN_M else "wrong") if ended else "wanted"
            marks.append(Mark(tuple(goal.tolist()), "", kind))
            words += f", missed by {100 * self._miss_m(i):.1f} cm" if ended else ""
        return Shown(tuple(marks), words, ended)

    def verdicts(self) -> list[Verdict]:
        """Of the questions so far."""
        told = []
        for i in range(self._task.queries):
            end = self._task.history + ASKED * (i + 1)
            if end > self._episode.t:
                break
            item = int(self._episode.asked[0, i])
            ago_s = (end - TAUGHT * (self._lesson(item) + 1)) * STEP_S
            miss_m = self._miss_m(i)
            found = f"missed by {100 * miss_m:.1f} cm"
            told.append(Verdict(f"tag {self._tag(item)}", ago_s, found, miss_m < WITHIN_M))
        return told

    def _taught(self, tick: int):
        """Where things were taught, the latest place of each."""
        latest = {}
        for i in range(min(self._task.lessons, (tick + 1) // TAUGHT)):
            latest[int(self._episode.order[0, i])] = i
        if self._task.mode == "place":
            for item, i in latest.items():
                yield Mark(tuple(self._episode.places[0, i].tolist()), f"{self._tag(item)}", "slot")

    def _tag(self, item: int) -> int:
        return int(self._episode.tags[0, item])

    def _lesson(self, item: int) -> int:
        order = self._episode.order[0].tolist()
        return max(i for i, x in enumerate(order) if x == item)

    def _miss_m(self, question: int) -> float:
        return float(self._episode.miss_m[0, question])
