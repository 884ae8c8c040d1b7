"""A policy in the loop: what it achieves when it has to live with its own actions."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.policy.tasks.recall import WITHIN_M, Recall, RecallTask, Seen

Disturb = Callable[[Seen], Seen]


class Outcome(NamedTuple):
    """What came of episodes."""

    miss_m: Tensor  # [B, queries] distance from the goal at the end of each question
    chance: float  # success of the same answers, each given to the question of another episode
    written: dict[str, float]  # share of the steps of a phase that were written

    @property
    def success(self) -> Tensor:
        """[B, queries] bool, within 3 cm."""
        return self.miss_m < WITHIN_M


@torch.no_grad()
def rolled(policy, task: RecallTask, episodes: int, seed: int, arm=None, disturb: Disturb | None = None) -> Outcome:
    """Episodes in lock step. disturb: what is done to each instant between the sensors and the policy."""
    recall = Recall(task, episodes, seed, arm)
    seen, state = recall.reset(), policy.init_state(episodes)
    share: dict[str, list[Tensor]] = {"teach": [], "work": [], "query": []}
    while not recall.done:
        given = seen if disturb is None else disturb(seen)
        state, action, kept = policy.step(state, given.observation, given.confidence, given.time_s)
        share[recall.phase.name].append((kept > 0).float().mean())
        seen = recall.step(action)
    others = [(recall.answer.roll(i, 0) - recall.wanted).norm(dim=-1) < WITHIN_M for i in range(1, episodes)]
    chance = torch.stack(others).float().mean().item() if others else 0.0
    return Outcome(
        recall.miss_m, chance, {name: torch.stack(x).mean().item() if x else 0.0 for name, x in share.items()}
    )


def interval(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Source: Wilson 1927.
    """
    p, share = right / asked, z * z / asked
    middle = p + share / 2
    half = z * math.sqrt(p * (1 - p) / asked + share / (4 * asked))
    return (middle - half) / (1 + share), (middle + half) / (1 + share)
