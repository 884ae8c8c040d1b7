"""Sensors that fail: observations lost, doubled, swapped, spoilt or late, on their way to a policy in the loop."""

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.policy.clock import Counters
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy
from streammem.policy.tasks.recall import Recall, RecallTask

LATE = {"reordered": 1, "300 ms late": 8}  # steps of 40 ms after which an observation comes
FAULTS = ("none", "dropped", "duplicated", "not finite", *LATE)


class Delivery(NamedTuple):
    """One observation of each robot, and which robots get it."""

    seen: Observation
    time_s: Tensor  # [B]
    which: Tensor  # [B] bool


class Faulty:
    """A share of the observations of each robot meets one fault, at random."""

    def __init__(self, fault: str, share: float, seed: int):
        self.fault, self.share = fault, share
        self._random = torch.Generator().manual_seed(seed)
        self._waiting: deque[Delivery] = deque()

    def deliver(self, seen: Observation, time_s: Tensor) -> list[Delivery]:
        """What arrives at this instant, in order of arrival."""
        everyone = torch.ones(len(time_s), dtype=torch.bool)
        met = torch.rand(len(time_s), generator=self._random) < self.share
        now = Delivery(seen, time_s, everyone)
        if self.fault == "dropped":
            return [now._replace(which=~met)]
        if self.fault == "duplicated":
            return [now, now._replace(which=met)]
        if self.fault == "not finite":
            return [now._replace(seen=seen._replace(vector=torch.where(met[:, None], torch.nan, seen.vector)))]
        if self.fault in LATE:
            self._waiting.append(now._replace(which=met))
            late = [self._waiting.popleft()] if len(self._waiting) > LATE[self.fault] else []
            return [now._replace(which=~met), *late]
        return [now]


class Faced(NamedTuple):
    """What came of episodes with faults."""

    success: Tensor  # [B, queries] bool
    counters: Counters
    finite: bool  # whether the state was finite at every step


@torch.no_grad()
def faced(policy: MemoryPolicy, task: RecallTask, episodes: int, seed: int, fault: str, share: float = 0.2) -> Faced:
    """Episodes in which observations meet a fault; the policy acts at every step, on what it has."""
    recall, faulty = Recall(task, episodes, seed), Faulty(fault, share, seed)
    seen, state, finite = recall.reset(), policy.init_state(episodes), torch.ones(episodes, dtype=torch.bool)
    while not recall.done:
        told = Observation(vector=seen.observation, confidence=seen.confidence)
        for arrived in faulty.deliver(told, seen.time_s):
            after = policy.observe(state, arrived.seen, arrived.time_s)
            state = tree.where(arrived.which, after, state)
        finite &= tree.finite(state.memory.memory)
        seen = recall.step(policy.act(state))
    return Faced(recall.miss_m < 0.03, state.counters, bool(finite.all()))
