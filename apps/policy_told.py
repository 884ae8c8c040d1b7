"""What an episode has to tell its spectators, who know more than the robot does: marks, words, verdicts."""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from streammem.policy.tasks import imitate
from streammem.policy.tasks.arm import STEP_S
from streammem.policy.tasks.board import BOARD, HOLES, PLACES
from streammem.policy.tasks.recall import ASKED, TAUGHT, WITHIN_M, Phase, Recall
from streammem.policy.tasks.search import VISITS, Search


class Mark(NamedTuple):
    """Something that belongs into the picture."""

    place: tuple[float, float, float]  # metres
    label: str
    kind: Literal["slot", "wanted", "waypoint", "right", "wrong"]


class Shown(NamedTuple):
    """What a picture tells of a tick."""

    part: Literal["teach", "work", "query"]  # of the episode
    marks: tuple[Mark, ...]
    words: str
    ended: bool  # the last tick of a question, or of an attempt


class Verdict(NamedTuple):
    """How a question was answered."""

    asked: str
    ago_s: float  # since it was taught, or 0
    found: str  # what came of it
    right: bool


class Told(Protocol):
    """Of a task."""

    def shown(self, tick: int, phase: Phase, goal: Tensor) -> Shown: ...

    def verdicts(self) -> list[Verdict]: ...


class RecallTold:
    """Of recall."""

    def __init__(self, episode: Recall):
        self._episode, self._task = episode, episode.task

    def shown(self, tick: int, phase: Phase, goal: Tensor) -> Shown:
        """Of the tick that was made last, the phase it was in, and where the hand should have been, [3]."""
        name, i, step = phase
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
        return Shown(name, tuple(marks), words, ended)

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


class ImitateTold:
    """Of imitation."""

    def __init__(self, episode: imitate.Imitate):
        self._episode, self._task = episode, episode.task

    def shown(self, tick: int, phase: Phase, goal: Tensor) -> Shown:
        """Of the tick that was made last, the phase it was in, and where the hand should have been, [3]."""
        name, i, step = phase
        done = min(self._task.demonstrations, (tick + 1) // imitate.TAUGHT)
        marks = [Mark(tuple(self._episode.shown[0, j].tolist()), f"{j + 1}", "slot") for j in range(done)]
        if name == "teach":
            return Shown(name, tuple(marks), f"demonstration {i + 1} of {self._task.demonstrations}", False)
        ended, words, kind = name == "query" and step == ASKED - 1, "at work", "waypoint"
        if name == "query":
            words = f"asked {i + 1} of {self._task.queries}: a new situation"
            kind = ("right" if self._miss_m(i) < WITHIN_M else "wrong") if ended else "wanted"
            words += f", missed by {100 * self._miss_m(i):.1f} cm" if ended else ""
        marks.append(Mark(tuple(goal.tolist()), "", kind))
        return Shown(name, tuple(marks), words, ended)

    def verdicts(self) -> list[Verdict]:
        """Of the questions so far."""
        over = [i for i in range(self._task.queries) if self._miss_m(i) == self._miss_m(i)]
        taught = imitate.TAUGHT * self._task.demonstrations
        ago = [(self._task.history + ASKED * (i + 1) - taught) * STEP_S for i in over]
        found = [f"missed by {100 * self._miss_m(i):.1f} cm" for i in over]
        right = [self._miss_m(i) < WITHIN_M for i in over]
        return [Verdict("a new situation", *told) for told in zip(ago, found, right)]

    def _miss_m(self, question: int) -> float:
        return float(self._episode.miss_m[0, question])


class SearchTold:
    """Of search."""

    def __init__(self, episode: Search):
        self._episode, self._task = episode, episode.task

    def shown(self, tick: int, phase: Phase, goal: Tensor) -> Shown:
        """Of the tick that was made last, the phase it was in, and where the hand should have been, [3]."""
        world = self._episode
        marks = [self._hole(i) for i in range(HOLES) if world.candidates[0, i]]
        if phase.name == "work":
            marks.append(Mark(tuple(goal.tolist()), "", "waypoint"))
            return Shown("work", tuple(marks), "at work", False)
        visit = "first visit" if tick < self._task.history else "second visit"
        ended = phase.name == "attempt" and world.phase.name != "attempt"
        words = f"{visit}, attempt {max(1, phase.index)}"
        if ended:
            words += ": in the hole" if world.inside[0] else ": a miss" if world.contact[0] else ": in vain"
        return Shown("query", tuple(marks), words, ended)

    def verdicts(self) -> list[Verdict]:
        """Of the visits so far: the first is right where nothing can have been tried twice, the second at once."""
        told, names = [], ("first visit", "second visit")
        for visit, count in zip(range(VISITS), self._episode.attempts[0].tolist()):
            if count == count:
                most = 1 if visit else self._task.holes
                ago_s = (self._task.delay if visit else 0) * STEP_S
                found = f"{count:.0f} attempts" if count <= self._task.most else "not found"
                told.append(Verdict(f"{names[visit]}, {self._task.holes} holes", ago_s, found, count <= most))
        return told

    def _hole(self, i: int) -> Mark:
        world = self._episode
        kind = "wrong" if world.tried[0, i] else "slot"
        if world.known[0] and i == int(world.open[0]):
            kind = "right"
        return Mark((*PLACES[i], BOARD), f"{i + 1}", kind)
