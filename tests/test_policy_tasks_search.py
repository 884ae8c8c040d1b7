"""Search: contact that holds, failures that are told, an expert who repeats none, and policies in it."""

import pytest
import torch

from apps.train_policy.model import made
from apps.train_policy.settings import PolicySettings, PolicyTrainSettings, Stage
from apps.train_policy.task import played, posed
from apps.train_policy.trainer import PolicyTrainer
from streammem.errors import ConfigError
from streammem.policy.tasks import arm as arms
from streammem.policy.tasks import search as searches
from streammem.policy.tasks.board import BOARD, DEPTH, HOLES, PLACES
from streammem.policy.tasks.episodes import EpisodeStream, record
from streammem.policy.tasks.search import HELD, TRYING, SearchTask

VIEW, MISSED, ENTERED, FLAGS = slice(13, 21), slice(21, 29), slice(29, 37), slice(40, 43)


def rows(task, batch, seed=0, act=None):
    """Each step under the expert, or `act`: (stage before it, marker's hole, what was seen), and the episodes."""
    world, told = task.begun(batch, seed), []
    world.reset()
    while not world.done:
        stage = world.stage.clone()
        seen = world.step(world.expert() if act is None else act(world))
        told.append((stage, world._over.clone(), seen, world.contact.clone(), world.inside.clone()))
    return told, world


def test_the_expert_never_tries_a_hole_twice_and_then_goes_straight_there():
    task = SearchTask(6, attempts=6, delay=60)
    told, world = rows(task, 256)
    tried = torch.zeros(256, HOLES)
    for t, (stage, over, _, contact, _) in enumerate(told):
        if t == task.history:
            first, tried = tried, torch.zeros(256, HOLES)
        hit = (stage == TRYING) & contact
        assert (over[hit] >= 0).all()
        tried[hit] += torch.nn.functional.one_hot(over[hit], HOLES)
    assert first.max() == 1 and tried.sum() == 0
    assert torch.equal(first.sum(1) + 1, world.attempts[:, 0]) and (world.attempts[:, 1] == 1).all()
    assert world.attempts[:, 0].mean().item() == pytest.approx(3.5, abs=0.4)  # (K + 1) / 2
    assert not (first.bool() & ~world.candidates).any() and first[torch.arange(256), world.open].sum() == 0


def test_one_who_forgets_needs_as_many_attempts_as_there_are_holes_or_so():
    def forgetful(world):
        world.tried[:], world.known[:] = False, False
        return world.expert()

    _, world = rows(SearchTask(6, delay=0), 256, act=forgetful)
    attempts = torch.arange(1, 13.0)
    chance = (5 / 6) ** (attempts - 1) / 6
    wanted = (attempts * chance).sum() + 13 * (1 - chance.sum())
    assert world.attempts.mean().item() == pytest.approx(wanted.item(), rel=0.2)


def test_a_hand_does_not_go_through_the_board_but_into_the_open_hole():
    def down(world):
        place = torch.tensor(PLACES)[world.open if into else world.target()]
        off = place - world.state.hand[:, :2]
        return torch.cat([8 * off, torch.full((len(off), 1), -0.8) * (off.norm(dim=1, keepdim=True) < 0.01)], 1)

    task = SearchTask(4, attempts=3, delay=0, noise=0.0)
    for into in (False, True):
        world = task.begun(32, 0)
        world.reset()
        deepest = torch.full((32,), torch.inf)
        while world.t < searches.GATHER + searches.SLOT:
            missing = world.target() != world.open
            seen = world.step(down(world))
            deepest = torch.minimum(deepest, world.state.hand[:, 2])
        if into:
            assert (deepest < BOARD - searches.INSIDE_M).all() and (deepest > BOARD - DEPTH - 2e-3).all()
            assert (world.attempts[:, 0] == 1).all()
        else:
            assert (deepest[missing] > BOARD - 2e-3).all() and (deepest[missing] < BOARD + 2e-3).all()
    assert seen.observation.isfinite().all()


def test_contact_is_the_least_change_of_the_joints_that_lifts_the_hand():
    arm = arms.KinematicArm()
    state = arm.reset(3)
    floor = state.hand[:, 2] + torch.tensor([0.0, 0.01, 0.03])
    held = arm.stopped(state, floor)
    assert torch.allclose(held.hand[:, 2], floor, atol=2e-4) and torch.equal(held.joints[0], state.joints[0])
    change = (held.joints - state.joints)[1]
    row = state.jacobian[1]
    wanted = row.mT @ torch.linalg.solve(row @ row.mT, torch.tensor([0.0, 0.0, 0.01]))
    assert torch.allclose(change, wanted, atol=2e-3)
    assert torch.equal(arm.stopped(state, floor - 1).joints, state.joints)


def test_a_miss_is_told_by_contact_and_by_the_joints_and_by_nothing_that_says_which_is_open():
    told, world = rows(SearchTask(5, attempts=5, delay=0, noise=0.0), 64)
    for _, over, seen, contact, inside in told:
        trying, working, touched = seen.observation[:, FLAGS].unbind(-1)
        assert not (touched.bool() & ~contact).any() and (touched * working).sum() == 0
        near = torch.nn.functional.one_hot(over.clamp_min(0), HOLES) * (over >= 0)[:, None]
        view, at = seen.observation[:, VIEW], trying.bool()
        assert not view[at][~world.candidates[at]].any() and (view[at][world.candidates[at]] > 0).all()
        assert torch.equal(view[at & (over >= 0)].argmax(1), over[at & (over >= 0)])
        assert torch.equal(seen.observation[:, MISSED], near * touched[:, None])
        assert torch.equal(seen.observation[:, ENTERED], near * (inside & trying.bool())[:, None])
    confident = torch.stack([seen.confidence for _, _, seen, _, _ in told])
    held = torch.stack([stage == HELD for stage, *_ in told])
    felt = torch.stack([seen.observation[:, 42] + seen.observation[:, ENTERED].sum(1) for _, _, seen, _, _ in told])
    assert ((confident == 0) | (felt > 0)).all() and confident.sum() > 64 and held.sum() == 3 * (world.attempts.sum())


def test_before_anything_was_tried_nothing_seen_depends_on_which_hole_is_open():
    task, seen = SearchTask(6, delay=0), []
    for shift in (0, 1):
        world = task.begun(16, 3)
        world.reset()
        order = world.candidates.float().argsort(1, descending=True)[:, : task.holes]
        world.open = order.gather(1, (torch.arange(16) % task.holes).add(shift).remainder(task.holes)[:, None])[:, 0]
        now = [world.step(torch.zeros(16, 3)).observation for _ in range(searches.GATHER + 5)]
        seen.append(torch.stack(now))
    assert torch.equal(*seen)


def test_demonstrations_are_of_one_length_and_come_in_segments():
    task = SearchTask(3, attempts=3, delay=20)
    episodes = record(task, 6, 0)
    assert episodes.lengths.tolist() == [task.length] * 6 and task.length == 2 * (20 + 3 * 56) + 20
    assert torch.allclose(episodes.weight.unique(), torch.tensor([0.0, 0.3, 1.0])) and episodes.action.isfinite().all()
    parts = list(EpisodeStream(episodes, 4, 100).turn(torch.Generator().manual_seed(0)))
    assert sum(part.weight.shape[1] for part in parts) == task.length
    assert episodes.confidence.sum() > 0


def test_it_is_trained_and_judged_by_the_same_code():
    stage = Stage(2, groups=1, items=(2, 3), delay=(0, 5), segment=200, batch=2)
    run = PolicyTrainSettings(mode="search", stages=(stage,), recorded=2, evaluate_on=2, evaluate_delay=(0,))
    trainer = PolicyTrainer(run)
    assert trainer.advance() > 0
    scores = trainer.evaluate()
    assert set(scores) == {"attempts, delay 0", "attempts after 0 steps"} and 1 <= min(scores.values())
    policy = made(PolicySettings())
    assert played(policy, SearchTask(2, attempts=1, delay=0), 3, 0).attempts.isfinite().all()


@pytest.mark.parametrize("options", [{"holes": 1}, {"holes": 9}, {"delay": -1}, {"distractors": 2.0}, {"noise": -1.0}])
def test_a_task_that_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="wanted"):
        SearchTask(**options)


def test_what_a_task_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="changed"):
        posed("search", 4, 10, changed=1)
    with pytest.raises(ConfigError, match="false_confidence"):
        posed("imitate", 4, 10, false_confidence=0.1)


def test_one_seed_gives_the_same_episodes():
    one, two, three = (
        torch.stack([x[2].observation for x in rows(SearchTask(3, attempts=2, delay=9), 2, seed)[0]])
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
