"""A live run of a policy: opened whole or not at all, saved so that it can go on from the middle of its episode."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from streammem import config, store
from streammem.errors import CheckpointError, ConfigError
from streammem.policy import cartridge
from streammem.policy.loop import SCHEMA, ControlLoop
from streammem.policy.memory_policy import MemoryPolicy
from streammem.policy.tasks import trained
from streammem.policy.timing import LeapingTime, SystemTime

from .arguments import RUN
from .bench.figure import commit, machine, versions
from .journal import Lines
from .policy_world import LiveSettings, Shot, World

STATE, EPISODE = "state.safetensors", "episode.tsv"
HEADING = "# tick\tphase\tindex\taction_x\taction_y\taction_z\n"
AUTOSAVE = 250  # ticks
NOTE = "live"
FLAGS = ("policy", "mode", "items", "history", "arm", "seed", "fast")


class LiveRun:
    """What is at work during a run. The world is a function of its settings and the actions, so that these are kept."""

    def __init__(self, settings: LiveSettings, policy: MemoryPolicy, lines: Lines, about: dict, say: Callable):
        self.settings, self.policy, self._lines, self.about, self.say = settings, policy, lines, about, say
        self.world = World(settings)
        self.out = lines.path.parent
        time_ = LeapingTime() if settings.fast else SystemTime()
        self.loop = ControlLoop(policy, settings.rate_hz, deadline=settings.deadline, time=time_)
        self.shots: list[Shot] = []
        self.writes: list[int] = []  # ticks
        self.save_cartridge: Path | None = None
        self._written = 0

    def move(self, action: Tensor) -> None:
        """One tick of the world, and a line of the episode."""
        name, index, _ = self.world.episode.phase
        numbers = "\t".join(f"{x:.9g}" for x in action[0].tolist())
        self._lines.write(f"{self.world.tick}\t{name}\t{index}\t{numbers}\n")
        self.world.move(action)

    def note(self) -> None:
        """Keeps what is to be seen of the tick that was made, and the cartridge after the last lesson."""
        written = self.loop.counters()["written"][0]
        fresh = written > self._written
        self._written = written
        self._keep(fresh)
        if self.save_cartridge is not None and self.world.tick == self.world.taught:
            taught = {name: getattr(self.settings, name) for name in ("mode", "items", "seed")}
            notes = {NOTE: json.dumps(taught)}
            cartridge.save(self.save_cartridge, self.policy, self.loop.snapshot(), notes=notes)
            self.say(f"  {self.save_cartridge}")

    def save(self) -> None:
        """Writes the state, and beside it how far the episode has come: its lines reach the disk first."""
        note = {"ticks": self.world.tick, "bytes": self._lines.sync(), "writes": self.writes}
        self.loop.save(self.out / STATE, {NOTE: json.dumps(note)})

    def write_record(self) -> None:
        """The settings, all of them, and what the run says about itself."""
        report = self.loop.report()
        told = self.about | {"ended": _now(), "ticks": self.world.tick, "arm": self.world.arm}
        told |= {"latency_ms": {name: getattr(report, name)._asdict() for name in ("tick", "observe", "act")}}
        told |= {"loop": vars(report.ticks), "observations": {k: x[0] for k, x in self.loop.counters().items()}}
        told |= {"answers": [verdict._asdict() for verdict in self.world.told.verdicts()]}
        (self.out / RUN).write_text(config.dump({"settings": self.settings, "run": told}))

    def go_on(self, path: Path) -> None:
        """Plays again what was played, and takes up the state."""
        note = json.loads(self.loop.load(path)[NOTE])
        writes, self._written = set(note["writes"]), self.loop.counters()["written"][0]
        rows = (self.out / EPISODE).read_text().splitlines()[1:]
        self.world.skip(self.about.get("skipped", 0))
        for row in rows[: note["ticks"] - self.world.tick]:
            self.world.move(torch.tensor([[float(x) for x in row.split("\t")[3:]]]))
            self._keep(self.world.tick - 1 in writes)

    def insert(self, path: Path) -> None:
        """Takes the lessons from a cartridge: they are over in the world, and in the memory."""
        self.loop.restore(cartridge.load(path, self.policy).state)
        self.world.skip(self.world.taught)
        self.about["skipped"] = self.world.taught

    def _keep(self, fresh: bool) -> None:
        if fresh:
            self.writes.append(self.world.tick - 1)
        self.shots.append(self.world.shot(fresh))


def opened(said: argparse.Namespace, command: list[str]) -> LiveRun:
    """Opens everything before anything is written.

    Raises: StreamMemError where the settings, the policy, the state or the folder cannot be used.
    """
    held = (said.out / STATE).exists()
    if said.resume and not held:
        raise ConfigError(f"{said.out} holds no episode to go on with; wanted another --out, or no --resume")
    if held and not said.resume and not said.overwrite:
        raise ConfigError(f"{said.out} holds an episode; wanted another --out, --resume, or --overwrite to lose it")
    before = config.read(said.out / RUN) if said.resume else {}
    taught = {} if said.cartridge is None else _taught(said.cartridge)
    settings = _settings(said, before, taught)
    torch.set_num_threads(settings.threads)
    policy = _policy(settings)
    if said.cartridge is not None:
        cartridge.load(said.cartridge, policy)
    said.out.mkdir(parents=True, exist_ok=True)
    keep = _kept(said.out / STATE) if said.resume else 0
    about = {"command": command, "started": _now(), "commit": commit(), "machine": machine(), "versions": versions()}
    about |= {"threads": torch.get_num_threads()}
    about |= {"skipped": before.get("run", {}).get("skipped", 0)}
    run = LiveRun(settings, policy, Lines(said.out / EPISODE, HEADING, keep), about, _silent if said.quiet else _aloud)
    run.save_cartridge = said.save_cartridge
    if said.resume:
        run.go_on(said.out / STATE)
    elif said.cartridge is not None:
        run.insert(said.cartridge)
    run.save()
    run.write_record()
    return run


def _settings(said: argparse.Namespace, before: dict, taught: dict) -> LiveSettings:
    data = dict(before.get("settings", {}))
    given = {name: getattr(said, name) for name in FLAGS if getattr(said, name) not in (None, False)}
    if said.resume and (said.settings or given or said.cartridge):
        raise ConfigError(f"{said.out} is gone on with as it was begun; wanted --resume without other settings")
    if said.resume:
        return config.build(LiveSettings, data, str(said.out / RUN))
    for text in said.settings:
        config.override(data, text)
    return config.build(LiveSettings, data | given | taught, "settings")


def _taught(path: Path) -> dict:
    """What makes the world that a cartridge is of."""
    note = cartridge.notes(path).get(NOTE)
    if note is None:
        raise CheckpointError(f"{path}: a cartridge, but not one that `streammem policy` wrote")
    return json.loads(note)


def _policy(settings: LiveSettings) -> MemoryPolicy:
    """Of a file, or of those that come with the package."""
    name = settings.policy or settings.mode
    if Path(name).is_file():
        return trained.load(name)
    if name not in trained.SHIPPED:
        known = ", ".join(trained.SHIPPED)
        raise ConfigError(
            f"{name}: no such file, and no policy of ours; wanted what streammem train-policy writes, or {known}"
        )
    return trained.shipped(name)


def _kept(path: Path) -> int:
    """Bytes of the episode's lines that the state knows of."""
    notes = store.load(path, schema=SCHEMA).notes
    if NOTE not in notes:
        raise CheckpointError(f"{path}: a state, but not one that `streammem policy` was saving")
    return json.loads(notes[NOTE])["bytes"]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _aloud(text: str, end: str = "\n") -> None:
    print(text, end=end, flush=True)


def _silent(text: str, end: str = "\n") -> None:
    """Says nothing."""
