"""The tasks by name, and how a policy is judged at each."""

import torch

from streammem.errors import ConfigError
from streammem.policy.tasks.episodes import Task
from streammem.policy.tasks.imitate import ImitateTask
from streammem.policy.tasks.recall import RecallTask
from streammem.policy.tasks.search import SearchTask

from .rollout import rolled


def posed(mode: str, items: int, delay: int, changed: int = 0, false_confidence: float = 0.0) -> Task:
    """The task of a mode. items: things, holes, or demonstrations. In demonstrations nobody tries more often than must.

    Raises: ConfigError for what a task does not have.
    """
    if mode in ("place", "weigh"):
        return RecallTask(mode, items=items, delay=delay, changed=changed, false_confidence=false_confidence)
    if changed:
        raise ConfigError(f"changed is {changed} for {mode}; wanted 0: nothing is taught again there")
    if mode == "search":
        return SearchTask(items, attempts=items, delay=delay, false_confidence=false_confidence)
    if false_confidence:
        raise ConfigError(f"false_confidence is {false_confidence} for {mode}; wanted 0: nothing distracts there")
    return ImitateTask(items, delay=delay)


def judged(policy, mode: str, delay: int, episodes: int, seed: int) -> dict[str, float]:
    """What the policy achieves in episodes of its own: success, or attempts until it."""
    if mode == "search":
        task = SearchTask(delay=delay)
        search = played(policy, task, episodes, seed)
        first, again = search.attempts.mean(0).tolist()
        return {f"attempts, delay {delay}": first, f"attempts after {delay} steps": again}
    if mode == "imitate":
        return {
            f"{count} demonstrations, delay {delay}": played(policy, ImitateTask(count, delay=delay), episodes, seed)
            .success.float()
            .mean()
            .item()
            for count in (1, 4, 16)
        }
    task = RecallTask(mode, delay=delay)
    return {f"history {task.history}": rolled(policy, task, episodes, seed).success.float().mean().item()}


@torch.no_grad()
def played(policy, task: SearchTask | ImitateTask, episodes: int, seed: int, arm=None):
    """Episodes in lock step, at their end."""
    world = task.begun(episodes, seed, arm)
    seen, state = world.reset(), policy.init_state(episodes)
    while not world.done:
        state, action, _ = policy.step(state, seen.observation, seen.confidence, seen.time_s)
        seen = world.step(action)
    return world
