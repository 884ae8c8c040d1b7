"""The film of a run: lessons at twice their pace, work in a few seconds, questions as they were."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streammem.policy.tasks.arm import STEP_S
from streammem.policy.tasks.view import Camera

from .policy_picture import Backdrop, Drawn, Painter, Simulated, Timeline
from .policy_run import LiveRun
from .policy_video import write_film
from .policy_world import Shot

FPS = round(1 / STEP_S)
WORK_S, HELD_S = 6.0, 0.8  # of the film: all work together, and the end of each question
PACES = {"teach": 2, "query": 1}


class Frames(NamedTuple):
    """What is kept of a film for the report."""

    path: Path | None
    keys: list[tuple[Shot, np.ndarray]]  # the end of each lesson, the middle of the work, the end of each question


def film(run: LiveRun, how: str) -> Frames:
    """Renders what was played, writes the film and returns the key frames; how: auto, drawn or none."""
    if not run.shots:
        return Frames(None, [])
    camera = Camera()
    painter = Painter(camera, _backdrop(run, camera, how), _timeline(run))
    chosen, keys, painted = _chosen(run), _keys(run), {}

    def pictures() -> Iterator[np.ndarray]:
        for shot, pace in chosen:
            picture = painter.paint(shot, _words(run, shot, pace), [x for x in run.writes if x <= shot.tick])
            if shot.tick in keys:
                painted[shot.tick] = shot, picture
            yield picture
            for _ in range(round(HELD_S * FPS) if shot.shown.ended else 0):
                yield picture

    if how == "none":
        chosen = [(shot, pace) for shot, pace in chosen if shot.tick in keys]
        for _ in pictures():
            pass
        return Frames(None, list(painted.values()))
    return Frames(write_film(run.out, pictures(), FPS), list(painted.values()))


def _backdrop(run: LiveRun, camera: Camera, how: str) -> Backdrop:
    if run.world.arm != "mujoco" or how == "drawn":
        return Drawn(camera)
    try:
        return Simulated(run.world)
    except Exception as error:  # noqa: BLE001 - what a machine without graphics lacks, it lacks in many ways
        run.say(f"MuJoCo cannot render here ({type(error).__name__}): the film is drawn by lines")
        return Drawn(camera)


def _timeline(run: LiveRun) -> Timeline:
    parts = []
    for shot in run.shots:
        if not parts or parts[-1][0] != shot.shown.part:
            parts.append((shot.shown.part, shot.tick, shot.tick))
        parts[-1] = (*parts[-1][:2], shot.tick + 1)
    return Timeline(parts, run.world.task.length)


def _chosen(run: LiveRun) -> list[tuple[Shot, int]]:
    """The shots of the film, and how much faster than life each is shown."""
    work = sum(shot.shown.part == "work" for shot in run.shots)
    paces = PACES | {"work": max(1, -(-work // round(WORK_S * FPS)))}
    keys, chosen = _keys(run), []
    for shot in run.shots:
        pace = paces[shot.shown.part]
        if shot.tick % pace == 0 or shot.tick in keys:
            chosen.append((shot, pace))
    return chosen


def _keys(run: LiveRun) -> set[int]:
    """Ticks of the key frames."""
    at = {shot.tick for shot in run.shots if shot.shown.ended}
    at |= {a.tick for a, b in zip(run.shots, run.shots[1:]) if a.phase.name == "teach" and a.phase[:2] != b.phase[:2]}
    work = [shot.tick for shot in run.shots if shot.shown.part == "work"]
    return at | set(work[len(work) // 2 :][:1]) | {run.shots[-1].tick}


def _words(run: LiveRun, shot: Shot, pace: int) -> str:
    faster = f", shown {pace} times faster" if pace > 1 else ""
    return f"{shot.tick * STEP_S:.1f} s{faster}; {sum(x <= shot.tick for x in run.writes)} writes"
