"""Training of policies: steps say what segments say, resumed runs what uninterrupted ones do, and that gates cost."""

import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from conftest import ROOT

from apps import cli
from apps.train_policy import trainer as trainers
from apps.train_policy.model import Ours, made
from apps.train_policy.rollout import interval, rolled
from apps.train_policy.settings import PolicySettings, PolicyTrainSettings, Stage
from apps.train_policy.trainer import PolicyTrainer, cloned, demonstrations
from apps.training import drawn_by
from streammem import config, tree
from streammem.errors import CheckpointError, ConfigError
from streammem.policy.tasks import trained
from streammem.policy.tasks.episodes import Segment
from streammem.policy.tasks.recall import RecallTask
from streammem.policy.tasks.trained import Recipe

SMALL = Stage(3, groups=2, items=(1, 2), delay=(5, 25), segment=40, batch=3)
TINY = PolicyTrainSettings(stages=(SMALL, replace(SMALL, steps=2)), recorded=3, evaluate_every=2, evaluate_on=3)
TINY = replace(TINY, evaluate_delay=(0,))
WORDS = [
    "stages=[{steps: 3, groups: 2, items: [1, 2], delay: [5, 25], segment: 40, batch: 3}]",
    *("recorded=3", "evaluate_every=2", "evaluate_on=3", "evaluate_delay=[0]"),
]
POLICIES = {
    **{rule: PolicySettings(recipe=Recipe(rule), chunk=16) for rule in ("delta", "gated_delta", "mesa")},
    "kalman": PolicySettings(recipe=Recipe("kalman"), chunk=None),
    "titans": PolicySettings(recipe=Recipe("titans", most=0.02), chunk=None),
    "yaad": PolicySettings(recipe=Recipe("yaad"), chunk=None),
    "soft": PolicySettings(recipe=Recipe(gate="soft"), chunk=16),
    "evidence": PolicySettings(recipe=Recipe(gate="evidence"), chunk=16),
    "mapped": PolicySettings(recipe=Recipe(gate="checked", width=24), chunk=16),
    "confirmed": PolicySettings(recipe=Recipe(gate="confirmed"), chunk=16),
    "surprise": PolicySettings(recipe=Recipe(gate="surprise"), chunk=None),
    **{
        f"{kind}, {gate}": PolicySettings(kind, gate=gate, frames=3, slots=slots, layers=layers)
        for gate in ("none", "given", "evidence")
        for kind, slots, layers in [("memoryless", 1, 1), ("stack", 1, 1), ("gru", 1, 1), ("attention", 5, 2)]
    },
}


@pytest.mark.parametrize("name", POLICIES)
def test_steps_say_what_sequences_and_segments_say_with_resets_in_the_middle(name):
    policy = made(POLICIES[name]).eval()
    g = torch.Generator().manual_seed(0)
    observed, given = torch.randn(3, 37, 43, generator=g), (torch.rand(3, 37, generator=g) < 0.3).float()
    time_s, reset = (0.04 * torch.arange(37.0)).double().expand(3, -1), torch.rand(3, 37, generator=g) < 0.05
    with torch.no_grad():
        whole = policy.sequence(policy.init_state(3), observed, given, time_s, reset)
        state, cut = policy.init_state(3), []
        for start, end in ((0, 1), (1, 14), (14, 37)):
            said = policy.sequence(state, *(x[:, start:end] for x in (observed, given, time_s, reset)))
            state = said.state
            cut.append(said.action)
        state, stepped, kept = policy.init_state(3), [], []
        for t in range(37):
            state = tree.where(reset[:, t], policy.init_state(3), state)
            state, action, share = policy.step(state, observed[:, t], given[:, t], time_s[:, t])
            stepped.append(action)
            kept.append(share)
    assert reset[:, 1:].any() and whole.action.isfinite().all()
    assert torch.allclose(torch.cat(cut, 1), whole.action, atol=1e-5)
    assert torch.allclose(torch.stack(stepped, 1), whole.action, atol=1e-5)
    assert torch.equal(torch.stack(kept, 1) > 0, whole.share > 0)


@pytest.mark.parametrize("name", ["stack, given", "gru, given", "attention, given", "delta"])
def test_what_the_gate_leaves_out_leaves_no_trace(name):
    """Other numbers at steps of confidence 0 do not change the action after them."""
    policy = made(POLICIES[name]).eval()
    g = torch.Generator().manual_seed(1)
    one = torch.randn(2, 20, 43, generator=g)
    given = (torch.arange(20) % 4 == 0).float().expand(2, -1)
    two = torch.where((given > 0)[..., None], one, torch.randn(2, 20, 43, generator=g))
    two[:, -1] = one[:, -1]
    time_s = (0.04 * torch.arange(20.0)).double().expand(2, -1)
    with torch.no_grad():
        a, b = (policy.sequence(policy.init_state(2), x, given, time_s).action for x in (one, two))
        c = policy.sequence(policy.init_state(2), one.flip(2), given, time_s).action
    assert torch.allclose(a[:, -1], b[:, -1], atol=1e-6) and not torch.allclose(a[:, 5], b[:, 5], atol=1e-3)
    assert not torch.allclose(a[:, -1], c[:, -1], atol=1e-3)


def test_context_writes_and_does_not_count():
    weight = torch.tensor([[0.0, 0.0, 1.0, 3.0]])
    segment = Segment(*[None] * 6)._replace(action=torch.zeros(1, 4, 3), weight=weight)
    action = torch.tensor([9.0, 9.0, 1.0, 2.0])[None, :, None].expand(1, 4, 3)
    assert cloned(action, segment).item() == pytest.approx((1 * 1 + 3 * 4) / 4)
    assert cloned(action, segment._replace(weight=0 * weight)).item() == 0


def test_costs_follow_their_schedules():
    s = replace(TINY, stages=(Stage(100),), recorded=64, warm_up=10, write_cost=0.2)
    costs = [s.write_cost_at(step) for step in (0, 20, 30, 40, 100)]
    assert costs == [0, 0, pytest.approx(0.1), pytest.approx(0.2), 0.2]
    assert [TINY.stage(step) for step in range(6)] == [0, 0, 0, 1, 1, 1] and TINY.steps == 5


def test_another_seed_draws_other_episodes_batches_and_noise(monkeypatch):
    assert len({drawn_by(seed, step) % 2**32 for seed in (0, 1, 4095) for step in (0, 1, 2**20 - 1)}) == 9
    recorded = [demonstrations(TINY, SMALL, (seed << 8) + stage) for seed in (0, 1) for stage in (0, 1)]
    assert len({x.observation[0].sum().item() for x in recorded}) == 4
    alike = replace(TINY, stages=(replace(SMALL, groups=1),), recorded=32)
    same = demonstrations(alike, alike.stages[0], 7)
    monkeypatch.setattr(trainers, "demonstrations", lambda *_: same)
    seen = []
    for seed in (0, 1):
        trainer = PolicyTrainer(replace(alike, seed=seed))
        sequence = trainer.model.sequence
        trainer.model.sequence = lambda state, x, *rest, call=sequence: seen.append(x) or call(state, x, *rest)
        trainer.advance()
    half = len(seen) // 2
    assert not torch.equal(seen[0], seen[half])


def test_a_stage_teaches_again_and_errs_as_it_is_told():
    stage = replace(SMALL, groups=12, items=(2, 2), delay=(75, 75), changed=1.0, false_confidence=1.0)
    shown = demonstrations(TINY, stage, 0)
    lessons = (shown.lengths - 75 - 105) // 20
    assert set(lessons.tolist()) == {2, 3, 4}
    at_work = shown.observation[:, 41] == 1
    assert torch.equal(shown.confidence[at_work], shown.observation[at_work, 42]) and shown.confidence[at_work].any()


def test_a_share_of_the_demonstrations_is_simulated():
    pytest.importorskip("mujoco", reason="needs the extra [robot]")
    stage = replace(SMALL, groups=4, items=(1, 1), delay=(5, 5))
    none, half = (demonstrations(TINY, replace(stage, simulated=share), 0) for share in (0.0, 0.5))
    alike = [
        torch.equal(*(x.observation.unflatten(0, (12, -1))[3 * i : 3 * i + 3] for x in (none, half))) for i in range(4)
    ]
    assert alike == [True, False, True, False]


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted():
    trainer = PolicyTrainer(TINY)
    before = [p.clone() for p in trainer.model.parameters()]
    next(trainer.model.parameters()).register_hook(lambda grad: grad * torch.nan)
    trainer.advance()
    assert trainer.skipped > 0 and all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters()))


def test_a_memory_that_diverges_in_training_says_what_to_lower():
    stage = replace(SMALL, items=(3, 3), segment=400)
    told = PolicySettings(recipe=Recipe("titans", most=5.0), chunk=None)
    with pytest.raises(ConfigError, match="recipe.most"):
        PolicyTrainer(replace(TINY, policy=told, stages=(stage,))).advance()


def test_a_hard_gate_is_soft_at_first():
    s = replace(TINY, policy=PolicySettings(recipe=Recipe(gate="hard"), chunk=16), threshold_ramp=(0.2, 0.6))
    trainer, raised = PolicyTrainer(s), []
    while not trainer.done:
        trainer.advance()
        raised.append(trainer.model.policy.memory.gate.raised.item())
    assert raised == [0, 0, pytest.approx(0.5), 1, 1]
    with pytest.raises(ConfigError, match="gate not hard"):
        replace(TINY, threshold_ramp=(0.2, 0.6))


def test_work_that_is_repeated_leaves_what_the_same_steps_leave_many_times_over():
    policy = made(PolicySettings(recipe=Recipe(gate="soft"), chunk=16)).double()
    observed, time_s = torch.randn(2, 21, 43).double(), (0.04 * torch.arange(21.0)).double().expand(2, -1)
    given = torch.ones(2, 21).double()
    start = policy.sequence(policy.init_state(2), observed.flip(1), given, time_s - 1).state
    for doublings in (1, 3):
        once = policy.sequence(start, observed, given, time_s, doublings=doublings)
        state = start
        for i in range(2**doublings):
            state = policy.sequence(state, observed, given, time_s + i).state
        found = once.state.memory.memory.dual
        assert torch.allclose(found, state.memory.memory.dual, atol=1e-9)
        assert not torch.allclose(found, start.memory.memory.dual, atol=1e-3)
    with pytest.raises(ConfigError, match="cannot repeat"):
        other = made(POLICIES["kalman"])
        other.sequence(other.init_state(2), observed.float(), given.float(), time_s, doublings=1)


def test_repeated_work_goes_on_bit_for_bit_too_and_reaches_the_gate():
    s = replace(TINY, policy=PolicySettings(recipe=Recipe(gate="soft"), chunk=16), doublings=4)
    s = replace(s, doublings_ramp=(0.0, 0.5), stages=(replace(SMALL, steps=5, segment=1000),))
    trainer = PolicyTrainer(s)
    assert [s.doublings_at(step) for step in range(5)] == [0, 2, 3, 4, 4]
    before = [p.clone() for p in trainer.model.gates()]
    assert all(math.isfinite(trainer.advance()) for _ in range(5))
    assert all(not torch.equal(a, b) for a, b in zip(before, trainer.model.gates()))


def test_a_run_goes_on_bit_for_bit_over_a_change_of_stage(tmp_path):
    s = replace(TINY, policy=PolicySettings(recipe=Recipe(gate="hard_concrete"), chunk=16), write_cost=0.1)
    whole = PolicyTrainer(s)
    losses = [whole.advance() for _ in range(5)]
    half = PolicyTrainer(s)
    assert [half.advance() for _ in range(2)] == losses[:2]
    half.evaluate()
    half.save(tmp_path / "run.safetensors")
    again = PolicyTrainer(s)
    again.load(tmp_path / "run.safetensors")
    assert [again.advance() for _ in range(3)] == losses[2:] and again.done
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters()))
    with pytest.raises(CheckpointError, match="seed was 0, is 1"):
        PolicyTrainer(replace(s, seed=1)).load(tmp_path / "run.safetensors")


def test_the_state_is_carried_and_its_gradient_cut():
    """Segments lower the loss of what lies in an earlier one only through what was written without a gradient."""
    s = replace(TINY, stages=(replace(SMALL, items=(2, 2), delay=(10, 10), segment=20),))
    trainer = PolicyTrainer(s)
    carried = []
    sequence = trainer.model.sequence

    def watched(state, *rest):
        carried.append((state.memory.memory.dual.abs().sum().item(), state.memory.memory.dual.requires_grad))
        return sequence(state, *rest)

    trainer.model.sequence = watched
    trainer.advance()
    assert len(carried) == math.ceil((2 * 20 + 10 + 3 * 35) / 20)
    assert all(size > 0 and not gradient for size, gradient in carried[1:])


def test_one_who_stands_still_is_right_by_chance_alone():
    class Still:
        def init_state(self, batch):
            return ()

        def step(self, state, observation, confidence, time_s):
            return state, torch.zeros(len(observation), 3), confidence

    # it stays where the last of eight things was taught
    outcome = rolled(Still(), RecallTask(items=8, delay=0), 16, 0)
    assert 0 < outcome.success.float().mean() < 0.3 and outcome.miss_m.shape == (16, 3)
    assert 0 <= outcome.chance < 0.1
    assert outcome.written == {"teach": pytest.approx(0.15), "work": 0.0, "query": 0.0}


def test_wilson_intervals():
    low, high = interval(50, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert interval(100, 100) == (pytest.approx(0.9630, abs=1e-4), pytest.approx(1.0))


@pytest.mark.parametrize(
    "words",
    ["policy={recipe: {rule: nothing}}", "policy={recipe: {gate: ajar}}", "policy={gate: ajar}", "stages=[]"]
    + ["policy={recipe: {rule_options: {speed: 1}}}", "stages=[{steps: 1, items: [3, 2]}]", "rate=0", "recorded=2"]
    + ["seed=4096", "stages=[{steps: 1, changed: 2}]", "threshold_ramp=[0.2, 0.4]"],
)
def test_settings_that_make_no_sense_are_refused(words, tmp_path, capsys):
    assert cli.main(["train-policy", "--out", str(tmp_path / "x"), words]) == 2
    assert "streammem train-policy: " in capsys.readouterr().err and not (tmp_path / "x").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "train").glob("policy*.yaml")), ids=lambda path: path.stem)
def test_our_configs_can_be_used(path):
    made(config.load(PolicyTrainSettings, path).policy)


def test_the_program_trains_says_what_it_did_and_writes_a_policy_that_acts(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["train-policy", "--out", str(out), *WORDS]) == 0
    assert "parameters, from step 0 of 3 on" in capsys.readouterr().out
    assert {x.name for x in out.iterdir()} >= {"checkpoint.safetensors", "curve.svg", "policy.safetensors", "run.yaml"}
    policy = trained.load(out / "policy.safetensors")
    assert not policy.training and policy.init_state(2).memory.memory.dual.shape[:2] == (2, 2)
    assert cli.main(["train-policy", "--out", str(out), *WORDS]) == 2
    assert "holds a run" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="no policy"):
        trained.load(out / "checkpoint.safetensors")


@pytest.mark.parametrize("name", trained.SHIPPED)
def test_what_is_shipped_remembers_and_a_state_that_is_wiped_does_not(name):
    policy = Ours(trained.shipped(name), 64)
    outcome = rolled(policy, RecallTask(delay=200), 16, 7)
    assert outcome.success.float().mean() >= 0.9 and outcome.written["work"] == outcome.written["query"] == 0

    class Forgetful:
        init_state = policy.init_state

        def step(self, state, observation, confidence, time_s):
            return policy.step(policy.init_state(len(observation)), observation, confidence, time_s)

    assert rolled(Forgetful(), RecallTask(delay=200), 16, 7).success.float().mean() < 0.2
    with pytest.raises(ConfigError, match="place_learned"):
        trained.shipped("nothing")


@pytest.mark.slow
def test_a_run_that_is_ended_goes_on(tmp_path):
    words = ["--out", str(tmp_path / "run"), *WORDS, "stages=[{steps: 500, groups: 1, batch: 3, delay: [5, 5]}]"]
    run = subprocess.Popen([sys.executable, "-m", "apps.cli", "train-policy", *words], cwd=ROOT)
    while not (tmp_path / "run" / "checkpoint.safetensors").exists():
        assert run.poll() is None
        time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 128 + signal.SIGTERM
    assert config.read(tmp_path / "run" / "run.yaml")["run"]["step"] < 500
