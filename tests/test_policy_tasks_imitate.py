"""Imitation: time warps that are human and monotone, skills that only the demonstrations tell, prompts as files."""

import math

import pytest
import torch

from apps.train_policy.model import made
from apps.train_policy.settings import PolicySettings
from apps.train_policy.task import judged
from streammem import store
from streammem.errors import ConfigError
from streammem.policy import cartridge
from streammem.policy.encoders import Observation
from streammem.policy.tasks import imitate as imitates
from streammem.policy.tasks import trained
from streammem.policy.tasks.episodes import record
from streammem.policy.tasks.imitate import ImitateTask, minimum_jerk, time_warp
from streammem.policy.tasks.recall import WITHIN_M
from streammem.policy.tasks.trained import Recipe


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 3.0])
def test_a_time_warp_is_monotone_bounded_and_arrives_on_time(strength):
    way = time_warp(300, 64, strength, torch.Generator().manual_seed(0))
    pace = 64 * way.diff(dim=1)
    most = math.exp(2 * imitates.LIMIT * strength)
    assert way.shape == (300, 65) and (way[:, 0] == 0).all() and torch.allclose(way[:, -1], torch.ones(300))
    assert (pace >= 0).all() and pace.max() <= most + 1e-4 and pace.min() >= 1 / most - 1e-4
    even = torch.linspace(0, 1, 65)
    assert torch.allclose(way, even.expand_as(way), atol=1e-5) == (strength == 0)


def test_a_time_warp_is_smooth():
    """Twice as many times halve the change of pace from one to the next, and a quarter of it is left of four."""
    change = [
        (n * time_warp(100, n, 1.0, torch.Generator().manual_seed(0)).diff(dim=1)).diff(dim=1).abs().max().item()
        for n in (64, 128, 256)
    ]
    assert change[1] < 0.6 * change[0] and change[2] < 0.6 * change[1]


def test_time_warps_are_drawn_anew_and_refuse_a_negative_strength():
    g = torch.Generator().manual_seed(0)
    assert not torch.equal(time_warp(2, 16, 0.5, g), time_warp(2, 16, 0.5, g))
    with pytest.raises(ConfigError, match="strength"):
        time_warp(1, 8, -0.1, g)


def test_a_reach_has_no_speed_and_no_acceleration_at_its_ends():
    s = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64, requires_grad=True)
    assert minimum_jerk(s).tolist() == pytest.approx([0, 1, 0.5])
    (speed,) = torch.autograd.grad(minimum_jerk(s).sum(), s, create_graph=True)
    (change,) = torch.autograd.grad(speed.sum(), s)
    assert speed[:2].tolist() == pytest.approx([0, 0]) and change.tolist() == pytest.approx([0, 0, 0])
    assert speed[2].item() == pytest.approx(1.875)


def shown(task, batch=32, seed=0):
    """Each step under the expert: (phase, what was seen, hand), and the episodes."""
    world = task.begun(batch, seed)
    rows, seen = [], world.reset()
    while not world.done:
        rows.append((world.phase, seen, world.state.hand))
        seen = world.step(world.expert())
    return rows, world


def test_demonstrations_end_where_the_skill_says_but_for_a_wobble():
    _, world = shown(ImitateTask(8, wobble_m=0.01), 64)
    off = world.shown - world._belongs(world.situations[:, :8])
    assert off.std().item() == pytest.approx(0.01, rel=0.15) and world.success.all()
    low, high = torch.tensor(imitates.LOW), torch.tensor(imitates.HIGH)
    ends = world._belongs(world.situations)
    assert ((ends >= low - 1e-5) & (ends <= high + 1e-5)).all()
    _, exact = shown(ImitateTask(4, wobble_m=0.0), 16)
    assert (exact.shown - exact._belongs(exact.situations[:, :4])).norm(dim=-1).max() < 5e-3


def test_enough_demonstrations_tell_the_skill_and_more_tell_it_better():
    miss = []
    for count in (2, 3, 16):
        _, world = shown(ImitateTask(count, delay=0), 128)
        middle = (torch.tensor(imitates.LOW) + torch.tensor(imitates.HIGH)) / 2
        f, y = world.situations[:, :count].double(), (world.shown - middle).double()
        fit = torch.linalg.solve(f.mT @ f + 1e-3 * torch.eye(3).double(), f.mT @ y)
        there = world.situations[:, count:].double() @ fit - (world._belongs(world.situations[:, count:]) - middle)
        miss.append((there.norm(dim=-1) < WITHIN_M).double().mean().item())
    assert miss[0] < 0.4 < miss[1] < miss[2] and miss[2] > 0.97


def test_phases_flags_and_confidence_follow_the_schedule_and_pace_differs():
    task = ImitateTask(3, delay=30, queries=2)
    rows, world = shown(task, 16)
    assert len(rows) == task.length == 3 * 40 + 30 + 2 * 35
    for (name, _, k), seen, _ in rows:
        teacher, work, marked = seen.observation[:, 40:].unbind(-1)
        assert (teacher == (name == "teach")).all() and (work == (name == "work")).all()
        assert torch.equal(seen.confidence, teacher * marked)
        assert seen.confidence.bool().all() == (name == "teach" and k >= 37)
        assert (seen.observation[:, 13:16].norm(dim=1) - float(name != "work")).abs().max() < 1e-5
        assert not seen.observation[:, 16:37].any()
    hand = torch.stack([hand for *_, hand in rows[:40]])
    half = ((hand - hand[0]).norm(dim=-1) > 0.5 * (hand[39] - hand[0]).norm(dim=-1)).float().argmax(0)
    assert half.unique().numel() > 4  # of 16 teachers, who are half-way at different times
    assert (world.waypoints.shape[1], world.miss_m.shape) == (2, (16, 2))


def test_a_question_tells_nothing_of_the_skill():
    """Two worlds that differ only in their skills look alike when the arm is asked."""
    seen = []
    for times in (1.0, -1.0):
        world = ImitateTask(1, delay=0, queries=1, noise=0.0).begun(4, 0)
        world.reset()
        world.t, world.skill = 40, times * world.skill
        seen.append(world._seen().observation)
    assert torch.equal(*seen)


def test_a_prompt_of_a_file_is_the_prompt(tmp_path):
    """Asked, the arm acts from a cartridge as if it had been shown itself."""
    torch.manual_seed(0)
    net, world = Recipe().made().eval(), ImitateTask(2, delay=0, queries=1).begun(1, 0)
    seen, state, asked = world.reset(), net.init_state(1), 0
    with torch.no_grad():
        while not world.done:
            observation = Observation(seen.observation, confidence=seen.confidence)
            if world.phase == ("query", 0, 0):
                cartridge.save(tmp_path / "prompt", net, state)
                prompted = cartridge.load(tmp_path / "prompt", net).state
            state, action = net.step(state, observation, seen.time_s)
            if world.phase.name == "query":
                prompted, same = net.step(prompted, observation, seen.time_s)
                assert torch.equal(same, action)
                asked += 1
            seen = world.step(action)
    assert asked == 35 and state.counters.written.item() > 0


def test_keys_see_what_they_are_asked_for_and_values_everything(tmp_path):
    torch.manual_seed(0)
    recipe = Recipe("kalman", asked=(13, 37))
    net = recipe.made().eval()
    one = torch.randn(5, 1, 1, 43)
    two = one.clone()
    two[..., :13], two[..., 37:] = torch.randn(5, 1, 1, 13), torch.randn(5, 1, 1, 6)
    with torch.no_grad():
        a, b = (net.memory.layer.tokens((), x)[1] for x in (one, two))
    assert torch.equal(a.key, b.key) and torch.equal(a.query, b.query) and not torch.equal(a.value, b.value)
    trained.save(tmp_path / "p", net, recipe, "nobody")
    same = trained.load(tmp_path / "p")
    assert store.fingerprint(same) == store.fingerprint(net)
    with torch.no_grad():
        assert torch.equal(same.memory.layer.tokens((), one)[1].key, a.key)
    for asked, width in (((5, 5), 0), ((0, 44), 0), ((0, 3), 8)):
        with pytest.raises(ConfigError, match="asked"):
            Recipe(asked=asked, width=width)


def test_it_is_recorded_and_judged_by_the_same_code():
    episodes = record(ImitateTask(2, delay=5, queries=1), 3, 0)
    assert episodes.lengths.tolist() == [120] * 3 and episodes.confidence.sum() == 3 * 6
    found = judged(made(PolicySettings()), "imitate", 0, 2, 0)
    assert found.keys() == {f"{n} demonstrations, delay 0" for n in (1, 4, 16)}


@pytest.mark.parametrize("options", [{"demonstrations": 0}, {"features": 25}, {"warp": -1.0}, {"wobble_m": -1.0}])
def test_a_task_that_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="wanted"):
        ImitateTask(**options)
