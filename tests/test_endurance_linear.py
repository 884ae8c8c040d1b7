"""Long streams, and states that another process goes on with."""

import subprocess
import sys

import pytest
import torch
from cases import CASES, start
from conftest import ROOT
from material import B

from streammem import store, tree
from streammem.memory.gates import Evidence, Gated
from streammem.rules import RULES
from streammem.types import Gates

OURS = {
    *("hebbian", "gated_hebbian", "gla", "delta", "gated_delta", "kda", "gdn2", "comba", "rwkv7", "longhorn", "nlms"),
    *("preconditioned_delta", "kalman_diag", "kalman_iso", "kdn", "kdn_iso", "mesa", "mesa_adaptive", "log_linear"),
    *("delta_product", "gated_delta_product", "longhorn_diag", "rls", "kalman", "kalman_drift", "kalman_huber"),
    *("kalman_surprise", "kalman_steady", "muon_hebbian", "last_frame", "frozen"),
}
ROWS = [case for case in CASES if case.name in OURS]
every = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
GROWS = {"hebbian", "muon_hebbian"}  # they forget nothing and subtract nothing: their errors grow, as the theory says


def drift(rule, steps, d=8, streams=32):
    """Prequential squared error by tenths of a float32 stream whose target turns, relative to that of saying 0."""
    g = torch.Generator().manual_seed(0)
    target = torch.nn.functional.normalize(torch.randn(streams, d, 1, generator=g), dim=1)
    keys = torch.nn.functional.normalize(torch.randn(512, streams, 1, d, generator=g), dim=-1)
    noise = torch.randn(512, streams, d, 1, generator=g)
    one = torch.ones(streams, 1, 1)
    gates = Gates(0.5 * one, 0.98 * one, 0 * one)
    state, errors = rule.init(torch.zeros(streams, d, 1)), []
    with torch.inference_mode():
        for t in range(steps):
            target = torch.nn.functional.normalize(target + 0.01 * noise[t * 7 % 512], dim=1)
            key = keys[t * 5 % 512]
            value = key @ target
            errors.append((rule.read(state, key) - value).square().mean() / value.square().mean())
            state = rule.write(state, key, value, gates)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state))
    return torch.stack(errors).view(10, -1).mean(-1)


def judged(case, steps):
    errors = drift(case.rule, steps)
    assert errors.isfinite().all()
    if case.name not in GROWS:
        assert errors[-1] < 1.5 * errors[1:5].mean() + 1e-4, errors


@every
def test_some_hundred_steps_in_float32(case):
    judged(case, 400)


@pytest.mark.slow
@every
def test_a_hundred_thousand_steps_in_float32(case):
    judged(case, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rls", "kalman", "kdn", "mesa"])
def test_one_direction_for_a_hundred_thousand_steps(name):
    """Retention .95 and one excited direction of 8: the textbook form of RLS overflows float32 at step 1729."""
    rule = RULES[name]()
    state, one = rule.init(torch.zeros(1, 8, 1)), torch.ones(1, 1, 1)
    key = torch.eye(8)[None, :1]
    for _ in range(100_000):
        state = rule.write(state, key, one, Gates(one, 0.95 * one, one))
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state))


READER = """
import sys, torch
sys.path[:0] = [{root!r}, {tests!r}]
from cases import start
from streammem import store
from test_endurance_linear import ROWS
for case in ROWS:
    frames, like = start(case)
    state = store.load({folder!r} + "/" + case.name, schema=1, rule=repr(case.rule)).into(like)
    outs = case.rule.read(state, frames[0].query), case.rule.step(state, frames[1])[1]
    torch.save(outs, {folder!r} + "/" + case.name + ".out")
"""


def test_another_process_goes_on_with_a_state(tmp_path):
    expected = {}
    for case in ROWS:
        frames, state = start(case)
        for frame in frames:
            state, _ = case.rule.step(state, frame)
        store.save(tmp_path / case.name, state, schema=1, rule=repr(case.rule))
        expected[case.name] = case.rule.read(state, frames[0].query), case.rule.step(state, frames[1])[1]
    code = READER.format(root=str(ROOT), tests=str(ROOT / "tests"), folder=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    for name, outs in expected.items():
        for a, b in zip(torch.load(tmp_path / f"{name}.out"), outs):
            assert torch.equal(a, b), name


def test_a_gated_rule_is_a_rule():
    rule = Gated(RULES["gated_delta"](), Evidence(1.0, high=0.5, low=0.1))
    frames, _ = start(ROWS[0])
    state = rule.init(torch.zeros(B, 6, 5, dtype=torch.float64))
    vmapped = torch.func.vmap(rule.step)(state, frames[0])
    for a, b in zip(tree.leaves(vmapped), tree.leaves(rule.step(state, frames[0])), strict=True):
        torch.testing.assert_close(a, b)
    assert repr(rule).startswith("Gated(rule=Composed") and hash(rule) == hash(rule)
