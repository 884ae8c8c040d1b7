"""Runs a policy with a memory: a robot is taught, works for long, is asked; a film and a report show how it went.

The robot is MuJoCo's Panda where the extra [robot] is installed, else the same arm's kinematics. The loop is the one
for real robots, at 25 Hz; --fast leaves out the waiting.

exit status:
  0           the episode was played to its end
  2           the settings, the policy or the state file cannot be used
  130, 143    ended early by Ctrl-C or SIGTERM, with everything written; --resume goes on; a second one ends at once
"""

import argparse
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streammem.errors import StreamMemError

from .policy_film import film
from .policy_report import write_report
from .policy_run import AUTOSAVE, LiveRun, opened
from .policy_table import Table
from .stop import Stop


def main(argv: list[str]) -> int:
    """Plays an episode; returns the exit status that the module's first lines state."""
    said = _parser().parse_args(argv)
    run = opened(said, ["streammem", "policy", *argv])
    run.say(f"{run.world.arm} arm, {run.world.task.length} ticks, from {run.world.tick} on, into {run.out}")
    stop = Stop()
    with stop:
        play(run, stop)
        run.save()
        if stop.signal:
            run.say(f"{stop.signal.name} at tick {run.world.tick}: writing everything; --resume goes on")
        run.write_record()
        shown = film(run, said.film)
        write_report(run, shown)
    for name in sorted(path.name for path in run.out.iterdir() if path.is_file()):
        run.say(f"  {run.out / name}")
    return 128 + stop.signal if stop.signal else 0


def play(run: LiveRun, stop: Stop) -> None:
    """Tick by tick, to the end of the episode or until somebody ends it."""
    ended, table = threading.Event(), Table(run)

    def send(action) -> None:
        run.move(action)
        if stop.signal:
            ended.set()

    def after() -> None:
        run.note()
        table.show()
        if run.world.tick % AUTOSAVE == 0:
            run.save()

    run.loop.warm_up(run.world.sense()[0])
    with _uncollected():
        run.loop.run(run.world.sense, send, run.world.task.length - run.world.tick, after, ended)
    table.end()


@contextmanager
def _uncollected() -> Iterator[None]:
    """The garbage collector waits; it would come in the middle of a tick."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("settings", nargs="*", metavar="key=value", help="what else a run can be told; run.yaml shows it all")
    add("--policy", metavar="FILE", help="what streammem train-policy wrote (default: that of the mode)")
    add("--mode", help="place (default), weigh, search or imitate")
    add("--items", type=int, help="things taught, holes, or demonstrations (default: 6)")
    add("--history", type=int, metavar="N", help="steps before the first question (default: 620)")
    add("--arm", choices=("auto", "mujoco", "kinematic"), help="default: auto, mujoco where it is installed")
    add("--seed", type=int, help="which episode (default: 0)")
    add("--fast", action="store_true", help="wait for no tick")
    add("--film", choices=("auto", "drawn", "none"), default="auto", help="drawn: by lines, though MuJoCo could render")
    add("--out", type=Path, metavar="DIR", default=Path("out/policy"), help="where to write (default: out/policy)")
    add("--resume", action="store_true", help="go on with the episode in DIR")
    add("--overwrite", action="store_true", help="DIR may hold another episode, which is lost")
    add("--cartridge", type=Path, metavar="FILE", help="teach nothing: go on from what another robot was taught")
    add("--save-cartridge", type=Path, metavar="FILE", help="write what this robot was taught")
    add("--quiet", action="store_true", help="say nothing but errors")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except StreamMemError as error:
        sys.exit(f"streammem policy: {error}")
