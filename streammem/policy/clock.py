"""When observations were made: what is taken, what is refused, how much time went by. All of it masks and counts."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError

RECENT = 8  # times that are kept to know a duplicate by
NEVER = float("-inf")


class Clock(NamedTuple):
    """Times of what was taken."""

    newest_s: Tensor  # [B] float64; -inf before the first
    recent_s: Tensor  # [B, RECENT] float64, in order of arrival


class Counters(NamedTuple):
    """What became of the observations of each stream since it last started over, [B] int64 each."""

    taken: Tensor  # observations the policy saw; those that are late among them
    written: Tensor  # of these, those the gate let in
    invalid: Tensor  # the source said so, or the time was not finite
    nonfinite: Tensor  # a NaN or an infinity in them
    duplicate: Tensor  # of a time that was seen already
    late: Tensor  # older than the newest, and taken
    stale: Tensor  # older than that by more than the limit, and refused
    missing: Tensor  # that should have come between two that did, where the period is known
    refused: Tensor  # would have made the memory not finite


class Admitted(NamedTuple):
    """The verdict on one observation of each stream."""

    take: Tensor  # [B] bool: may be written
    newest: Tensor  # [B] bool: what the policy acts on from now
    elapsed_s: Tensor  # [B] float64 since the newest before, 0 where this is not newer
    late_s: Tensor  # [B] float64 behind the newest, 0 where this is newer


class Admission:
    """Decides what is taken.

    late_limit_s: how old an observation may be, against the newest, and still be written. period_s: between two
    observations, for the count of missing ones; None does not count.

    Raises: ConfigError where a time makes no sense.
    """

    def __init__(self, late_limit_s: float = 1.0, period_s: float | None = None):
        if not late_limit_s >= 0 or (period_s is not None and not period_s > 0):
            raise ConfigError(f"late_limit_s is {late_limit_s}, period_s {period_s}; wanted >= 0, and > 0 or None")
        self.late_limit_s, self.period_s = late_limit_s, period_s

    def __call__(self, clock: Clock, counters: Counters, time_s: Tensor, valid: Tensor, finite: Tensor) -> tuple:
        """Returns (clock, counters, admitted); time_s, valid, finite: [B]."""
        time_s = time_s.to(torch.float64)
        usable = valid & time_s.isfinite()
        sound = usable & finite
        duplicate = sound & (clock.recent_s == time_s[:, None]).any(1)
        behind = sound & ~duplicate & (time_s < clock.newest_s)
        late_s = torch.where(behind, clock.newest_s - time_s, 0.0)
        stale = late_s > self.late_limit_s
        take = sound & ~duplicate & ~stale
        newest = take & ~behind
        elapsed_s = torch.where(newest & clock.newest_s.isfinite(), time_s - clock.newest_s, 0.0)
        counters = counters._replace(
            taken=counters.taken + take,
            invalid=counters.invalid + ~usable,
            nonfinite=counters.nonfinite + (usable & ~finite),
            duplicate=counters.duplicate + duplicate,
            late=counters.late + (take & behind),
            stale=counters.stale + stale,
            missing=counters.missing + self.missing(elapsed_s),
        )
        shifted = torch.cat([clock.recent_s[:, 1:], time_s[:, None]], 1)
        clock = Clock(torch.where(newest, time_s, clock.newest_s), torch.where(take[:, None], shifted, clock.recent_s))
        return clock, counters, Admitted(take, newest, elapsed_s, torch.where(take, late_s, 0.0))

    def missing(self, elapsed_s: Tensor) -> Tensor:
        """How many observations should have come in times between two that did; any shape."""
        if self.period_s is None:
            return torch.zeros_like(elapsed_s, dtype=torch.int64)
        return ((elapsed_s / self.period_s).round() - 1).clamp_min(0).to(torch.int64)


def started(batch: int, device) -> tuple[Clock, Counters]:
    """A clock and counts before the first observation."""
    newest = torch.full((batch,), NEVER, dtype=torch.float64, device=device)
    recent = torch.full((batch, RECENT), float("nan"), dtype=torch.float64, device=device)
    counts = (torch.zeros(batch, dtype=torch.int64, device=device) for _ in Counters._fields)
    return Clock(newest, recent), Counters(*counts)
