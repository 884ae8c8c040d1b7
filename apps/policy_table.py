"""The table that `streammem policy` prints while a robot is at work: a row for each part of the episode."""

import math
import sys
import time

from streammem import tree

from .policy_run import LiveRun
from .policy_world import Shot

HEADING = (
    f"{'tick':>6}  {'phase':<34}{'tick ms: p50':>13}{'p99':>8}{'p99.9':>8}{'max':>8}"
    f"{'missed':>8}{'writes':>8}{'state':>9}  {'right':<8}"
)
PARTS = ("teach", "work", "query")
PACE_S = 10.0  # between two rows of one part, where nobody looks at a terminal; there it is a fifth of a second


class Table:
    """Rows that follow a run; the row of a part is written over until the part is over, where it is a terminal's."""

    def __init__(self, run: LiveRun):
        self._run, self._live = run, sys.stdout.isatty()
        self._bytes = tree.nbytes(run.loop.snapshot())
        self._shown, self._told = -math.inf, False

    def show(self) -> None:
        """A row, where one is due."""
        shot = self._run.shots[-1]
        ended = shot.shown.ended or self._run.world.done or self._over(shot)
        now = time.monotonic()
        if ended or now - self._shown > (0.2 if self._live else PACE_S):
            self._row(ended)
            self._shown = now

    def _over(self, shot: Shot) -> bool:
        """Whether the next tick belongs to another part of the episode."""
        coming = self._run.world.episode.phase.name
        return coming != shot.phase.name and (coming in PARTS or shot.phase.name in PARTS)

    def end(self) -> None:
        """Leaves the last row where it is."""
        if self._live and self._told:
            self._run.say("")

    def _row(self, ended: bool) -> None:
        if not self._told:
            self._run.say(HEADING)
            self._told = True
        run, report = self._run, self._run.loop.report()
        verdicts, latency = run.world.told.verdicts(), report.tick
        right = f"{sum(x.right for x in verdicts)}/{len(verdicts)}"
        words = run.shots[-1].shown.words.partition(", missed")[0]
        times = f"{latency.p50_ms:13.2f}{latency.p99_ms:8.2f}{latency.p999_ms:8.2f}{latency.max_ms:8.2f}"
        counts = f"{report.ticks.missed:8}{len(run.writes):8}{self._bytes / 1024:6.1f} kB  {right:<8}"
        row = f"{run.world.tick:6}  {words:<34.34}{times}{counts}"
        run.say(f"\r{row}" if self._live else row, "\n" if ended or not self._live else "")
