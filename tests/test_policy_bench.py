"""The bench of policies: faults are what they say, cells are what they say, and a small run of all of it."""

from dataclasses import replace

import pytest
import torch
from conftest import ROOT

from apps.bench import policy as bench
from apps.bench import policy_runs as runs
from apps.bench.case import Setup, run
from apps.bench.policy_faults import FAULTS, Faulty, faced
from apps.bench.workload import Policy, Workload
from apps.train_policy.model import made
from apps.train_policy.settings import PolicyTrainSettings, Stage
from streammem import config
from streammem.policy.encoders import Observation
from streammem.policy.tasks.recall import RecallTask

TINY = Policy(
    ("delta", "memoryless"),
    ("place",),
    1,
    2,
    (125,),
    (1,),
    5,
    (0.1,),
    1,
    0.0,
    150,
    200,
    timed=("delta",),
    repeats=5,
    full=False,
)


def deliveries(fault, steps=200, batch=50):
    faulty, found = Faulty(fault, 0.2, 0), []
    for t in range(steps):
        seen = Observation(vector=torch.full((batch, 2), float(t)), confidence=torch.ones(batch))
        found.append(faulty.deliver(seen, torch.full((batch,), t * 0.04, dtype=torch.float64)))
    return found


def test_a_fifth_of_the_observations_meets_the_fault():
    assert all(len(x) == 1 and x[0].which.all() and x[0].seen.vector.isfinite().all() for x in deliveries("none"))
    lost = torch.stack([~x[0].which for x in deliveries("dropped")]).float().mean()
    spoilt = torch.stack([x[0].seen.vector.isnan().any(1) for x in deliveries("not finite")]).float().mean()
    twice = deliveries("duplicated")
    assert all(torch.equal(one.time_s, two.time_s) for one, two in twice)
    again = torch.stack([two.which for _, two in twice]).float().mean()
    assert all(0.18 < share < 0.22 for share in (lost, spoilt, again))


@pytest.mark.parametrize("fault, steps", [("reordered", 1), ("300 ms late", 8)])
def test_what_is_late_comes_once_and_with_its_own_time(fault, steps):
    found = deliveries(fault)
    for t, arrived in enumerate(found[steps:], steps):
        now, late = arrived
        assert torch.equal(late.which, ~found[t - steps][0].which)
        assert (late.time_s == (t - steps) * 0.04).all() and (late.seen.vector == t - steps).all()
        assert (now.time_s == t * 0.04).all()
    assert all(len(x) == 1 for x in found[:steps])


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_counted_and_never_reach_the_state(fault):
    torch.manual_seed(0)
    policy = made(runs.what("delta")).policy.eval()
    task = RecallTask(items=1, delay=30, queries=1)
    found = faced(policy, task, 6, 0, fault)
    counted = {name: getattr(found.counters, name).float().mean().item() for name in found.counters._fields}
    wanted = {"duplicated": "duplicate", "not finite": "nonfinite", "reordered": "late", "300 ms late": "late"}.get(
        fault
    )
    assert found.finite and counted["refused"] == counted["stale"] == 0
    for name in ("duplicate", "nonfinite", "late"):
        assert (counted[name] > 5) == (name == wanted), counted
    assert (counted["missing"] > 5) == (fault not in ("none", "duplicated")), counted
    assert found.success.shape == (6, 1)


def test_cells_have_the_history_and_the_items_that_they_say():
    told = Policy()
    cells = bench.cells("delta", "weigh", told)
    assert [cells[f"history {n}"].task.history for n in told.histories] == [170, 620, 2120, 8000]
    assert [cells[f"{n} items"].task.items for n in told.items] == [3, 6, 12, 20]
    assert cells["false confidence 1 %"].task.false_confidence == 0.01 and cells["taught again"].task.changed == 6
    assert all(cell.task.mode == "weigh" for cell in cells.values())
    assert not any(cell.simulated for cell in cells.values())
    placed = bench.cells("delta", "place", told)
    assert [words for words, cell in placed.items() if cell.simulated] == ["history 8000, simulated arm"]
    assert "taught again" not in bench.cells("GRU", "place", told)
    assert "false confidence 1 %" not in bench.cells("learned gate", "place", told)
    assert {name for name, _ in bench.TARGETS} <= set(runs.POLICIES)


def test_every_policy_has_a_run():
    for entry in runs.POLICIES.values():
        weigh = entry.settings("weigh", 1, 1.0, 0.25)
        assert (weigh.seed, weigh.mode) == (1, "weigh") and {x.simulated for x in weigh.stages} == {0}
        told = entry.settings("place", 1, 0.5, 0.25)
        assert (told.seed, told.mode) == (1, "place") and {x.simulated for x in told.stages} == {0.25}
        full = entry.settings("place", 0, 1.0, 0.25)
        assert [x.steps for x in told.stages] == [x.steps // 2 for x in full.stages]
        made(told.policy)


def test_what_is_shipped_is_what_the_configs_train():
    for name in bench.SHIPPED:
        entry = runs.POLICIES[name]
        wanted = config.load(PolicyTrainSettings, ROOT / "configs" / "train" / f"{entry.base}.yaml")
        found = entry.settings("place", 0, 1.0, 0.5)
        same = replace(wanted, evaluate_every=found.evaluate_every, evaluate_delay=found.evaluate_delay)
        assert found == same


def test_a_small_run_of_the_bench(tmp_path, monkeypatch):
    stage = Stage(2, groups=1, items=(1, 1), delay=(5, 5), batch=4)
    monkeypatch.setitem(runs.POLICIES, "delta", runs.Run(differs={"stages": (stage,)}))
    monkeypatch.setattr(runs, "SHORT", stage)
    monkeypatch.setitem(runs.POLICIES, "memoryless", runs.baseline(kind="memoryless"))
    setup = Setup(replace(Workload(), policy=TINY), None, tmp_path)
    figures = {x.metric: x for x in run("policy", bench.POLICY, setup)}
    assert figures["parity"].ok
    for name in ("delta", "memoryless"):
        share, low, high = (figures[f"place, {name}, history 125{end}"] for end in ("", ", 95 % from", ", 95 % to"))
        assert 0 <= low.ours <= share.ours <= high.ours <= 1 and share.unit == "of 6"
        assert 0 <= share.baseline <= 1 and share.baseline_name == "chance" and low.baseline is None
    assert figures["fault not finite, state finite"].ours == 1 and figures["delta, state"].ok
    assert figures["delta, p50 at 200"].ours > 0
    before = (tmp_path / "policy" / "delta-place-0" / "checkpoint.safetensors").stat().st_mtime_ns
    list(bench.seeds("delta", "place", 1, 1.0, 0.0, tmp_path))
    assert (tmp_path / "policy" / "delta-place-0" / "checkpoint.safetensors").stat().st_mtime_ns == before


def test_parity_says_which_policy_is_off(monkeypatch):
    name = "GRU"
    build = bench.made

    def off(told):
        policy = build(told)
        step = policy.step
        policy.step = lambda *x: (lambda state, action, share: (state, action + 1e-3, share))(*step(*x))
        return policy

    monkeypatch.setattr(bench, "made", off)
    setup = Setup(replace(Workload(), policy=replace(TINY, policies=(name,))), None, None)
    assert "steps of GRU are 1.0e-03" in bench.parity(setup)
