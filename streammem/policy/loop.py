"""ControlLoop: a policy at a fixed rate, in real time."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from streammem import store, tree
from streammem.errors import ConfigError, ShapeError
from streammem.policy.clock import Counters
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy, PolicyState
from streammem.policy.shared import Shared
from streammem.policy.timing import Estimate, Latency, Pace, SystemTime, Time, Window

SCHEMA = 1
Deadline = Literal["hold", "skip_write", "shed"]


class Live(NamedTuple):
    """What an episode is resumed from."""

    state: PolicyState
    action: Tensor  # the last one, as the head has it


@dataclass
class Ticks:
    """What became of the ticks since the statistics were cleared."""

    done: int = 0
    missed: int = 0  # whose action came after their deadline, or that were over before they could begin
    held: int = 0  # the last action was sent again
    skipped: int = 0  # nothing was written, for want of time
    shed: int = 0  # optional work left undone


class Report(NamedTuple):
    """Latencies over the window, and counts since the statistics were cleared."""

    tick: Latency  # from when a tick was due to its action
    observe: Latency
    act: Latency
    ticks: Ticks


class ControlLoop:
    """A policy that acts at a fixed rate, its state in buffers that are allocated once.

    >>> loop = ControlLoop(policy, rate_hz=25)
    >>> loop.warm_up(observation)
    >>> loop.run(sense, send, ticks=8000)

    sense() -> (observation, time_s), send(action): the robot. `observe` may instead be called by a sensor's thread and
    `act` by others: one thread writes, any number read (each through its own `reader`).

    What `send` is given is the loop's own buffer, and is overwritten by the next tick.

    deadline: what gives way where there is no time. "hold": in place of an action that is late the last one goes out
    again. "skip_write": where observing and acting would be late, the observation is acted on and not written. "shed":
    optional work is left out; nothing else is.
    window: ticks that latencies are told of. time: the machine's clock, or a test's.

    Raises: ConfigError for another deadline, rate or window.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        rate_hz: float,
        batch: int = 1,
        deadline: Deadline = "hold",
        window: int = 10_000,
        time: Time | None = None,
    ):
        if deadline not in ("hold", "skip_write", "shed"):
            raise ConfigError(f"deadline is {deadline!r}; wanted 'hold', 'skip_write' or 'shed'")
        self.policy, self.batch, self.deadline, self.rate_hz, self._size = (
            policy.eval(),
            batch,
            deadline,
            rate_hz,
            window,
        )
        self._time = SystemTime() if time is None else time
        self._pace = Pace(rate_hz, self._time)
        with torch.no_grad():
            state = policy.init_state(batch)
            self._live = Live(state, torch.zeros_like(policy.act(state)))
            self._shared = Shared(state)
        self._action = self._live.action
        self._windows = {name: Window(window) for name in ("tick", "observe", "act")}
        self._costs = {name: Estimate() for name in ("observe", "act", "optional")}
        self.ticks = Ticks()

    def warm_up(self, observation: Observation, ticks: int = 20) -> None:
        """Runs the real path on a copy, and leaves state, action and statistics as they were."""
        state = self.snapshot()
        for i in range(ticks):
            state = self._observed(state, observation, self._times(float(i)), None)
            self._acted(state, None)

    @torch.inference_mode()
    def observe(self, observation: Observation, time_s: float | Tensor, valid: Tensor | None = None) -> None:
        """Writes what is worth it, as `MemoryPolicy.observe`; from one thread."""
        start = self._time.now()
        self._shared.publish(self._observed(self._shared.front, observation, self._times(time_s), valid))
        self._took("observe", start)

    @torch.inference_mode()
    def act(self, query: Observation | None = None) -> Tensor:
        """The action of this moment; from the thread that observes. Others use a `reader`."""
        start = self._time.now()
        action = self._acted(self._shared.front, query)
        self._took("act", start)
        return action

    def reader(self) -> "Reader":
        """A way to act for one more thread, with a buffer of its own."""
        return Reader(self.policy, self._shared, self.snapshot())

    def run(
        self,
        sense: Callable[[], tuple[Observation, float]],
        send: Callable[[Tensor], None],
        ticks: int,
        optional: Callable[[], None] | None = None,
        stop: threading.Event | None = None,
    ) -> Report:
        """Senses, writes, acts and sends at the rate, `ticks` times or until `stop` is set; tells how it went.

        optional: work that may be left out (a picture, a log line), done after the action where time is left.
        """
        self._pace.start()
        for _ in range(ticks):
            if stop is not None and stop.is_set():
                break
            due, left_out = self._pace.wait()
            self.ticks.missed += left_out
            self._tick(due, sense, send)
            if optional is not None:
                self._optional(optional, due + self._pace.period_s)
        return self.report()

    def reset(self, mask: Tensor | None = None) -> None:
        """Streams where `mask` [B] is true start over, or all of them; from the thread that writes.

        Raises: ShapeError where the mask is not [B] bool.
        """
        mask = torch.ones(self.batch, dtype=torch.bool) if mask is None else mask
        with torch.no_grad():
            self._shared.publish(self.policy.reset(self._shared.front, mask.to(self._action.device)))
            self._action.copy_(tree.where(mask.to(self._action.device), torch.zeros_like(self._action), self._action))

    def snapshot(self) -> PolicyState:
        """A copy of the state, for `restore` or to plan from; from any thread."""
        state = tree.zeros_like(self._shared.front)
        self._shared.copy_into(state)
        return state

    def restore(self, snapshot: PolicyState) -> None:
        """Goes back to a snapshot; from the thread that writes.

        Raises: ShapeError, with the state left as it was, where the snapshot is of another structure.
        """
        tree.from_dict(self._shared.front, tree.to_dict(snapshot))
        self._shared.publish(snapshot)

    def fork(self) -> "ControlLoop":
        """Another loop that goes on from here by itself: to try what would happen, and throw it away."""
        other = ControlLoop(self.policy, self.rate_hz, self.batch, self.deadline, self._size, self._time)
        other.restore(self.snapshot())
        other._action.copy_(self._action)
        return other

    def save(self, path, notes: Mapping[str, str] | None = None) -> None:
        """Writes the episode as it stands, atomically: killed at any moment, the file is the old one or the new one.

        notes: whatever else is to be known where the episode goes on; `load` returns them.

        Raises: CheckpointError where the disk refuses.
        """
        live = Live(self.snapshot(), self._action)
        told = {"rule": repr(self.policy.rule), "fingerprint": store.fingerprint(self.policy)}
        store.save(path, live, schema=SCHEMA, notes=notes, **told)

    def load(self, path) -> dict[str, str]:
        """Goes on where `save` was called, with the same policy: the same observations give the same actions.

        Returns the notes.

        Raises: CheckpointError where the file is not whole, or of another policy.
        """
        told = {"schema": SCHEMA, "rule": repr(self.policy.rule), "fingerprint": store.fingerprint(self.policy)}
        stored = store.load(path, **told, device=self._action.device)
        live = stored.into(self._live)
        self._shared.publish(live.state)
        self._action.copy_(live.action)
        return stored.notes

    def report(self) -> Report:
        """Latencies and counts."""
        return Report(*(window.latency() for window in self._windows.values()), Ticks(**vars(self.ticks)))

    def durations(self, name: Literal["tick", "observe", "act"]) -> np.ndarray:
        """What the report's latencies are of, in seconds, in no order."""
        return self._windows[name].seconds()

    def clear(self) -> None:
        """Forgets the statistics, not the state."""
        self.ticks = Ticks()
        for window in self._windows.values():
            window.clear()

    def counters(self) -> dict[str, list[int]]:
        """What became of the observations, by stream; waits for the device."""
        return {name: count.tolist() for name, count in zip(Counters._fields, self.snapshot().counters)}

    def _tick(self, due: float, sense, send) -> None:
        end = due + self._pace.period_s
        observation, time_s = sense()
        needed = self._costs["observe"].seconds + self._costs["act"].seconds
        if self.deadline == "skip_write" and self._time.now() + needed > end:
            self.ticks.skipped += 1
            self._costs["observe"].fade()
            action = self.act(observation)
        else:
            self.observe(observation, time_s)
            action = self.act()
        ready = self._time.now()
        late = ready > end
        self._windows["tick"].add(ready - due)
        if late and self.deadline == "hold":
            self.ticks.held += 1
            send(self._action)
            self._action.copy_(action)  # held next, so that a loop that is always late still moves
        else:
            self._action.copy_(action)
            send(self._action)
        self.ticks.done += 1
        self.ticks.missed += late

    def _optional(self, work: Callable[[], None], end: float) -> None:
        start = self._time.now()
        if self.deadline == "shed" and start + self._costs["optional"].seconds > end:
            self.ticks.shed += 1
            self._costs["optional"].fade()
            return
        work()
        self._costs["optional"].add(self._time.now() - start)

    @torch.inference_mode()
    def _observed(self, state, observation: Observation, time_s: Tensor, valid: Tensor | None) -> PolicyState:
        return self.policy.observe(state, observation, time_s, valid)

    @torch.inference_mode()
    def _acted(self, state, query: Observation | None) -> Tensor:
        return self.policy.act(state, query)

    def _times(self, time_s: float | Tensor) -> Tensor:
        """[B] float64."""
        if isinstance(time_s, Tensor):
            if time_s.shape != (self.batch,):
                raise ShapeError(f"time_s is {list(time_s.shape)}; wanted a number, or [B] with B = {self.batch}")
            return time_s
        return torch.full((self.batch,), time_s, dtype=torch.float64, device=self._action.device)

    def _took(self, name: str, start: float) -> None:
        seconds = self._time.now() - start
        self._windows[name].add(seconds)
        self._costs[name].add(seconds)


class Reader:
    """Acts on the newest state, from one thread that is not the writer's."""

    def __init__(self, policy: MemoryPolicy, shared: Shared, buffer: PolicyState):
        self._policy, self._shared, self._buffer = policy, shared, buffer

    @torch.inference_mode()
    def act(self, query: Observation | None = None, noise: Tensor | None = None) -> Tensor:
        """The action of this moment, as `MemoryPolicy.act`."""
        self._shared.copy_into(self._buffer)
        return self._policy.act(self._buffer, query, noise)
