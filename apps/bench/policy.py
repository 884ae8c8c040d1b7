"""Does a memory pay after 8,000 steps? Policies in the loop, by history, items, false confidence and faults.

Runs are kept in the folder of the bench and gone on with: a bench that was interrupted trains nothing twice.
"""

from collections.abc import Iterator
from statistics import mean
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from streammem import tree
from streammem.policy.tasks import simulated
from streammem.policy.tasks.recall import OBSERVATION, RecallTask

from ..train_policy.model import Contender, Ours, made
from ..train_policy.rollout import interval, rolled
from .case import Case, Setup
from .figure import Measured, Target, at_least, at_most
from .policy_faults import FAULTS, faced
from .policy_runs import BASELINES, POLICIES, seeds, what
from .workload import Policy

AGREES = 1e-5
UNSEEN = 3 << 30  # seeds of the episodes; no training has them
GIVEN, LEARNED = "delta", "learned gate"
SHIPPED = (GIVEN, LEARNED)
TARGETS = {  # (policy, cell): what the issue asks
    (GIVEN, "history 8000"): at_least(0.97),
    (GIVEN, "20 items"): at_least(0.90),
    (LEARNED, "history 8000"): at_least(0.90),
    (GIVEN, "false confidence 1 %"): at_least(0.95),
    (GIVEN, "false confidence 10 %"): at_least(0.75),
    (GIVEN, "taught again"): at_least(0.95),
}


class Cell(NamedTuple):
    """What a policy is asked."""

    task: RecallTask
    simulated: bool = False  # with the arm in MuJoCo


def parity(setup: Setup) -> str | None:
    """Steps of every policy say what its sequences say, with resets in the middle."""
    g = torch.Generator().manual_seed(0)
    observed, given = torch.randn(2, 23, OBSERVATION, generator=g), (torch.rand(2, 23, generator=g) < 0.3).float()
    time_s, reset = (0.04 * torch.arange(23.0)).double().expand(2, -1), torch.rand(2, 23, generator=g) < 0.1
    for name in setup.workload.policy.policies or POLICIES:
        torch.manual_seed(0)
        policy = made(what(name)).eval()
        with torch.no_grad():
            whole = policy.sequence(policy.init_state(2), observed, given, time_s, reset).action
            state, apart = policy.init_state(2), 0.0
            for t in range(23):
                state = tree.where(reset[:, t], policy.init_state(2), state)
                state, action, _ = policy.step(state, observed[:, t], given[:, t], time_s[:, t])
                apart = max(apart, (action - whole[:, t]).abs().max().item())
        if not apart <= AGREES:
            return f"steps of {name} are {apart:.1e} from its sequence"
    return None


def measure(setup: Setup) -> Iterator[Measured]:
    """Success by cell, then faults and latency of our own."""
    told = setup.workload.policy
    for mode in told.modes:
        for name in told.policies or POLICIES:
            longer = told.longer * (told.baselines_longer if name in BASELINES else 1)
            policies = list(seeds(name, mode, told.seeds, longer, told.simulated, setup.out))
            for words, cell in cells(name, mode, told).items():
                yield from success(f"{mode}, {name}, {words}", policies, cell, told, TARGETS.get((name, words)))
            if name == GIVEN and mode == "place":
                yield from faults(policies, told)
            if name in told.timed and mode == "place":
                yield from latency(name, policies[0], told)


def cells(name: str, mode: str, told: Policy) -> dict[str, Cell]:
    """What a policy is asked, by name."""
    found = {f"history {n}": Cell(RecallTask(mode, delay=n - 120)) for n in told.histories}
    found |= {f"{n} items": Cell(RecallTask(mode, items=n, delay=told.items_delay)) for n in told.items}
    settings = what(name)
    if settings.kind == "memory" and settings.recipe.gate in ("given", "checked", "confirmed"):
        for share in told.false_confidence:
            task = RecallTask(mode, delay=2000, false_confidence=share)
            found[f"false confidence {100 * share:g} %"] = Cell(task)
    if settings.kind == "memory" and told.changed:
        found["taught again"] = Cell(RecallTask(mode, changed=told.changed, delay=told.items_delay))
    if name in SHIPPED and mode == "place" and told.simulated:
        found |= {
            f"history {n}, simulated arm": Cell(RecallTask(mode, delay=n - 120), True) for n in told.histories[-1:]
        }
    return found


def success(
    metric: str, policies: list[Contender], cell: Cell, told: Policy, target: Target | None
) -> Iterator[Measured]:
    """Share of the questions answered within 3 cm, over all seeds, beside chance; then the ends of its 95 % interval.

    Chance is what the same answers score at the questions of other episodes.
    """
    arm = simulated.arm(cell.task.mode) if cell.simulated else None
    found = [rolled(policy, cell.task, told.episodes, UNSEEN + i, arm) for i, policy in enumerate(policies)]
    right, asked = (int(sum(count(x.success) for x in found)) for count in (torch.sum, torch.numel))
    unit, chance = f"of {asked}", mean(x.chance for x in found)
    yield Measured(metric, unit, right / asked, chance, "chance", target if told.full else None)
    for end, share in zip(("from", "to"), interval(right, asked)):
        yield Measured(f"{metric}, 95 % {end}", unit, share)


def faults(policies: list[Contender], told: Policy) -> Iterator[Measured]:
    """What a fifth of faulty observations costs, against none in the same episodes."""
    base, task = None, RecallTask(delay=told.faults_history - 120)
    for fault in FAULTS:
        found = [faced(x.policy, task, told.episodes, UNSEEN + i, fault) for i, x in enumerate(policies)]
        share = mean(x.success.float().mean().item() for x in found)
        base = share if base is None else base
        yield Measured(f"fault {fault}", "", share, base, "no fault", at_least(base - 0.05, "falls by <= .05"))
        yield Measured(f"fault {fault}, state finite", "", float(all(x.finite for x in found)), target=at_least(1))
        for name in ("nonfinite", "duplicate", "late", "missing"):
            yield Measured(
                f"fault {fault}, {name} per episode",
                "",
                mean(getattr(x.counters, name).float().mean().item() for x in found),
            )


def latency(name: str, policy: Contender, told: Policy) -> Iterator[Measured]:
    """Observe and act at batch 1 with a history of 100 steps and a long one, in turn, and the state's bytes."""
    g = torch.Generator().manual_seed(0)
    states, histories = {}, (100, told.timed_history)
    with torch.inference_mode():
        state = policy.init_state(1)
        for t in range(histories[1] + 1):
            if t in histories:
                states[t] = state
            seen = torch.randn(1, OBSERVATION, generator=g), torch.tensor([float(t % 50 == 0)]), torch.tensor([t / 25])
            state, *_ = policy.step(state, *seen)
        times = {t: [] for t in histories}
        for turn in range(told.repeats + 20):
            seen = torch.randn(1, OBSERVATION, generator=g), torch.tensor([0.0])
            for t, state in states.items():
                now = torch.tensor([(t + turn + 1) / 25], dtype=torch.float64)
                start = perf_counter()
                states[t], *_ = policy.step(state, *seen, now)
                if turn >= 20:
                    times[t].append(1e6 * (perf_counter() - start))
    for percent in (50, 99):
        early, late = (float(np.percentile(times[t], percent)) for t in histories)
        target = at_most(1.1 * early, "<= 1.1 x") if isinstance(policy, Ours) else None
        yield Measured(f"{name}, p{percent} at {histories[1]}", "us", late, early, "at 100", target)
    early, late = (tree.nbytes(states[t].memory if isinstance(policy, Ours) else states[t]) for t in histories)
    yield Measured(f"{name}, state", "bytes", late, early, "at 100", at_most(early, "constant"))


POLICY = Case(parity, measure)
