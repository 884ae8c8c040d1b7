"""Keeping time: clocks that can be replaced, a pace to keep, and what was measured of it."""

import time
from typing import NamedTuple, Protocol

import numpy as np

from streammem.errors import ConfigError

SPIN_S = 1e-3  # how long before a tick sleeping ends


class Time(Protocol):
    """Where time comes from; tests bring their own."""

    def now(self) -> float:
        """Seconds, never going back."""

    def sleep(self, seconds: float) -> None:
        """Returns after about as long, or somewhat later."""


class SystemTime:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class LeapingTime:
    """The machine's clock, but waiting takes no time: for a loop that is to be over sooner than life."""

    def __init__(self):
        self._leapt_s = 0.0

    def now(self) -> float:
        return time.perf_counter() + self._leapt_s

    def sleep(self, seconds: float) -> None:
        self._leapt_s += seconds + SPIN_S


class Latency(NamedTuple):
    """Quantiles of a window, in milliseconds."""

    count: int  # ticks of the window
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


class Window:
    """The last `size` durations, in a buffer allocated once.

    Raises: ConfigError where size is not positive.
    """

    def __init__(self, size: int):
        if size < 1:
            raise ConfigError(f"a window of {size} ticks; wanted at least 1")
        self._seconds = np.zeros(size)
        self._count = 0

    def add(self, seconds: float) -> None:
        """Enters one, over the oldest."""
        self._seconds[self._count % len(self._seconds)] = seconds
        self._count += 1

    def clear(self) -> None:
        """Forgets all."""
        self._count = 0

    def latency(self) -> Latency:
        """Quantiles of what is in the window; NaN where that is nothing."""
        seconds = self._seconds[: self._count]
        if not len(seconds):
            return Latency(0, *[float("nan")] * 4)
        return Latency(len(seconds), *(1e3 * np.percentile(seconds, [50, 99, 99.9, 100])).tolist())

    def seconds(self) -> np.ndarray:
        """A copy of what is in the window, in no order."""
        return self._seconds[: self._count].copy()


class Estimate:
    """What a piece of work takes: the mean of its last durations, the latest counting most.

    m = m + 0.1 (seconds - m)
    """

    def __init__(self):
        self.seconds = 0.0
        self._known = False

    def add(self, seconds: float) -> None:
        """Enters one."""
        self.seconds = self.seconds + 0.1 * (seconds - self.seconds) if self._known else seconds
        self._known = True

    def fade(self) -> None:
        """The work was left out for what it takes; one slow time must not leave it out for ever."""
        self.seconds *= 0.9


class Pace:
    """Ticks at a fixed rate: sleeps until shortly before a tick, then spins, so that it begins on time.

    spin_s: how long before the tick sleeping ends; a machine's timer is rarely better than that.

    Raises: ConfigError where the rate is not positive, or spin_s is negative.
    """

    def __init__(self, rate_hz: float, time: Time, spin_s: float = SPIN_S):
        if not rate_hz > 0 or not spin_s >= 0:
            raise ConfigError(f"rate_hz is {rate_hz}, spin_s {spin_s}; wanted a rate above 0 and spin_s >= 0")
        self.period_s = 1 / rate_hz
        self._time, self._spin_s = time, spin_s
        self._due: float | None = None  # of the next tick

    def start(self) -> None:
        """The next tick is due now."""
        self._due = None

    def wait(self) -> tuple[float, int]:
        """Waits for the next tick; returns (when it was due, ticks that were left out because they were over)."""
        now = self._time.now()
        due = now if self._due is None else self._due
        left_out = max(0, int((now - due) / self.period_s))
        due += left_out * self.period_s
        if due - now > self._spin_s:
            self._time.sleep(due - now - self._spin_s)
        while self._time.now() < due:
            pass
        self._due = due + self.period_s
        return due, left_out
