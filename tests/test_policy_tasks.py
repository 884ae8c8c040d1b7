"""The recall task, its arm, and its episodes on disk: against definitions, and that nothing leaks the answer."""

import math

import numpy as np
import pytest
import torch

from streammem.errors import ConfigError, SourceError
from streammem.policy.tasks import arm as arms
from streammem.policy.tasks import recall as recalls
from streammem.policy.tasks.episodes import Episodes, EpisodeStream, joined, load, record
from streammem.policy.tasks.recall import Recall, RecallTask

TAG, WAYPOINT, FLAGS = slice(13, 37), slice(37, 40), slice(40, 43)


def played(task, batch=4, seed=0):
    """(observations [T, B, 43], confidences [T, B], the episodes) under the expert."""
    episodes, rows = Recall(task, batch, seed), []
    seen = episodes.reset()
    while not episodes.done:
        rows.append(seen)
        seen = episodes.step(episodes.expert())
    return torch.stack([x.observation for x in rows]), torch.stack([x.confidence for x in rows]), episodes


def chain(joints):
    """The hand by 4 x 4 matrices, Craig's convention, one arm in numpy."""
    pose = np.eye(4)
    for (a, d, alpha), q in zip(arms.LINKS, joints):
        ca, sa, c, s = math.cos(alpha), math.sin(alpha), math.cos(q), math.sin(q)
        pose = pose @ np.array(
            [[c, -s, 0, a], [s * ca, c * ca, -sa, -d * sa], [s * sa, c * sa, ca, d * ca], [0, 0, 0, 1]]
        )
    return (pose @ [0, 0, arms.HAND, 1])[:3]


def test_the_hand_is_where_the_chain_of_matrices_ends_and_moves_as_its_jacobian_says():
    joints = torch.randn(5, 7, dtype=torch.float64)
    hand, jacobian = arms.forward(joints)
    assert np.allclose(hand, np.stack([chain(q) for q in joints.numpy()]), atol=1e-12)
    for q, found in zip(joints, jacobian):
        wanted = torch.autograd.functional.jacobian(lambda x: arms.forward(x)[0], q)
        assert torch.allclose(found, wanted, atol=1e-12)


def test_the_arm_follows_a_velocity_and_sags_by_the_payload():
    arm = arms.KinematicArm()
    state = arm.reset(2)
    for _ in range(10):
        before, state = state, arm.move(state, torch.tensor([[0.1, -0.2, 0.05]] * 2), torch.zeros(2))
    assert torch.allclose((state.hand - before.hand) / arms.STEP_S, torch.tensor([0.1, -0.2, 0.05]), atol=0.02)
    state = arm.reset(2)
    for _ in range(30):
        state = arm.move(state, torch.zeros(2, 3), torch.tensor([0.0, 2.0]))
    error = state.joints - state.command
    force = torch.tensor([0.0, 0.0, -2.0 * arms.GRAVITY])
    assert torch.allclose(error[1], state.jacobian[1].T @ force / arms.STIFFNESS, atol=1e-4)
    assert error[0].abs().max() < 1e-4 and state.hand[1, 2] < state.hand[0, 2]


@pytest.mark.parametrize("mode", ["place", "weigh"])
def test_the_expert_answers_within_a_third_of_the_tolerance(mode):
    *_, episodes = played(RecallTask(mode, items=3, delay=40), batch=32)
    assert episodes.miss_m.max() < recalls.WITHIN_M / 2 and episodes.miss_m.mean() < 0.005


def test_one_seed_gives_the_same_episodes_and_the_next_reset_others():
    task = RecallTask(items=2, delay=30)
    one, two = played(task)[0], played(task)[0]
    assert torch.equal(one, two) and not torch.equal(one, played(task, seed=1)[0])
    episodes = Recall(task, 4, 0)
    episodes.reset()
    before = episodes.tags.clone()
    episodes.reset()
    assert not torch.equal(before, episodes.tags)


def test_phases_and_flags_follow_the_schedule():
    task = RecallTask(items=2, delay=60, queries=2)
    seen, confidence, episodes = played(task)
    assert len(seen) == task.length == 2 * 20 + 60 + 2 * 35 and task.history == 100
    for t in range(task.length):
        name, _, k = task.phase(t)
        teacher, work, tag = seen[t, :, FLAGS].unbind(-1)
        assert (teacher == float(name == "teach")).all() and (work == float(name == "work")).all()
        assert torch.equal(seen[t, :, TAG].sum(-1), tag)
        assert torch.equal(confidence[t], teacher * tag)
        assert confidence[t].bool().all() == (name == "teach" and k >= 17)
        if name == "query":
            assert (tag == 1).all()


def test_a_question_shows_its_tag_and_nothing_of_the_answer():
    """Two worlds that differ only in where things were taught look alike when the arm is asked."""
    task = RecallTask(items=2, delay=0, queries=1, noise=0.0)
    worlds = []
    for offset in (0.0, 0.05):
        episodes = Recall(task, 3, 5)
        episodes.reset()
        episodes.places += offset
        while episodes.phase.name == "teach":
            seen = episodes.step(torch.zeros(3, 3))
        episodes.state = arms.KinematicArm().reset(3)
        episodes._before = episodes.state.hand
        worlds.append(episodes._seen().observation)
        assert torch.equal(seen.observation[:, TAG], worlds[-1][:, TAG])
    assert torch.equal(*worlds)


def test_distractors_flash_at_their_share_and_never_where_there_are_none():
    def share(**options):
        seen, *_ = played(RecallTask(items=1, delay=250, queries=1, **options), batch=64)
        return seen[20:270, :, TAG].sum(-1).mean().item()

    assert share(distractors=0.0) == 0
    assert share() == pytest.approx(0.5 * 3 / 25, rel=0.15)
    assert share(distractors=1.0) == pytest.approx(3 / 25)


def test_false_confidence_comes_at_its_rate_where_a_tag_distracts_and_nowhere_else():
    seen, confidence, _ = played(RecallTask(items=1, delay=500, queries=1, false_confidence=0.2), batch=64)
    work, asked = slice(20, 520), slice(520, None)
    tag = seen[work, :, FLAGS][..., 2]
    assert confidence[work][tag == 1].mean().item() == pytest.approx(0.2, abs=0.03)
    assert confidence[work][tag == 0].sum() == 0 and confidence[asked].sum() == 0


def test_what_is_taught_again_counts_from_then_on():
    task = RecallTask(items=3, changed=2, delay=0, queries=3)
    _, _, episodes = played(task, batch=16)
    for b in range(16):
        for q in range(3):
            item = episodes.asked[b, q].item()
            last = max(i for i, x in enumerate(episodes.order[b].tolist()) if x == item)
            episodes.t = task.history + q * 35
            assert torch.equal(episodes.goal()[b], episodes.places[b, last])
    assert (episodes.miss_m < recalls.WITHIN_M).all() and episodes.order.shape == (16, 5)


def test_a_payload_shows_in_the_joints_and_nowhere_else():
    seen, confidence, episodes = played(RecallTask("weigh", items=4, delay=0), batch=64)
    told = confidence.bool()[:, 0]
    settled = seen[told][:-1]  # [shown, B, 43]
    rows = torch.stack([settled[3 * i + 1] for i in range(4)]).flatten(0, 1)
    mass = episodes.mass.T.flatten()
    features = torch.cat([rows[:, 6:13], torch.ones(len(rows), 1)], 1)
    residual = mass - features @ torch.linalg.lstsq(features, mass[:, None]).solution[:, 0]
    assert 1 - residual.var() / mass.var() > 0.97


@pytest.mark.parametrize("mode", ["place", "weigh"])
def test_joint_errors_stay_within_what_the_leash_allows(mode):
    seen, *_ = played(RecallTask(mode, items=3, delay=100), batch=16)
    errors = seen[..., 6:13].abs()
    assert 0.3 < errors.max() < 1.05 * recalls.ERRORS[mode] * arms.LEASH


@pytest.mark.parametrize(
    "options",
    [
        {"items": 0},
        {"items": 25},
        {"mode": "throw"},
        {"distractors": 1.5},
        {"delay": -1},
        {"changed": 7},
        {"noise": -1.0},
    ],
)
def test_a_task_that_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError, match="wanted"):
        RecallTask(**options)


@pytest.fixture(scope="module")
def demonstrations() -> Episodes:
    short, long = RecallTask(items=1, delay=7, queries=1), RecallTask(items=2, delay=20, queries=1)
    return joined([record(short, 3, 0), record(long, 5, 1)])


def each(episodes):
    return episodes.observation.split(episodes.lengths.tolist())


def test_demonstrations_disturb_the_motion_and_keep_the_action_right(demonstrations):
    clean, noisy = (record(RecallTask(items=1, delay=50, queries=1), 16, 0, noise) for noise in (0.0, 0.25))
    place = noisy.observation[:, :3] / 4 + torch.tensor(recalls.CENTRE)
    goal = noisy.observation[:, WAYPOINT] / 4 + torch.tensor(recalls.CENTRE)
    at_work = noisy.observation[:, 41] == 1
    wanted = (3 * (goal - place) / recalls.FASTEST).clamp(-1, 1)
    assert torch.allclose(noisy.action[at_work], wanted[at_work], atol=0.03)  # sensor noise
    assert noisy.action[at_work].abs().mean() > 1.2 * clean.action[at_work].abs().mean()
    assert demonstrations.lengths.tolist() == [62] * 3 + [95] * 5
    assert torch.equal(demonstrations.weight.unique(), torch.tensor([0.0, 0.3, 1.0]))


def test_episodes_come_back_from_disk(demonstrations, tmp_path):
    demonstrations.save(tmp_path / "a" / "demo.npz", {"task": "recall"})
    back = load(tmp_path / "a" / "demo.npz")
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(demonstrations, back))
    with np.load(tmp_path / "a" / "demo.npz") as file:
        assert sorted(file) == sorted([*Episodes._fields, "about"]) and str(file["about"]) == '{"task": "recall"}'


def test_what_is_no_recording_is_refused(demonstrations, tmp_path):
    with pytest.raises(SourceError, match="wanted an .npz"):
        load(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(SourceError, match="wanted an .npz"):
        load(tmp_path / "text.npz")
    demonstrations._replace(start=demonstrations.start + 1).save(tmp_path / "off.npz")
    demonstrations._replace(action=demonstrations.action[1:]).save(tmp_path / "short.npz")
    for name in ("off", "short"):
        with pytest.raises(SourceError, match="do not fit"):
            load(tmp_path / f"{name}.npz")


@pytest.mark.parametrize("steps", [1, 13, 62, 1000])
def test_segments_of_a_turn_are_whole_episodes_cut_in_pieces(demonstrations, steps):
    stream = EpisodeStream(demonstrations, 3, steps, seed=4)
    g = torch.Generator().manual_seed(4)
    for _ in range(4):
        parts = list(stream.turn(g))
        assert all(x.reset.shape == x.weight.shape and x.reset.shape[1] <= steps for x in parts)
        whole, reset = (torch.cat([getattr(x, name) for x in parts], 1) for name in ("observation", "reset"))
        assert reset[:, 0].all() and not reset[:, 1:].any()
        for row in whole:
            assert sum(torch.equal(episode, row) for episode in each(demonstrations)) == 1


def test_packed_lanes_play_episodes_without_a_gap(demonstrations):
    stream = iter(EpisodeStream(demonstrations, 4, 50, seed=1, packed=True))
    parts = [next(stream) for _ in range(12)]
    observed, reset = (torch.cat([getattr(x, name) for x in parts], 1) for name in ("observation", "reset"))
    assert observed.shape == (4, 600, 43) and reset[:, 0].all()
    for row, begins in zip(observed, reset):
        at = begins.nonzero()[:, 0].tolist()
        assert len(at) >= 6
        for start, end in zip(at, at[1:]):
            assert any(torch.equal(episode, row[start:end]) for episode in each(demonstrations))


def test_a_stream_that_cannot_be_is_refused(demonstrations):
    with pytest.raises(ConfigError, match="at most 5"):
        EpisodeStream(demonstrations, 6, 10)
    with pytest.raises(ConfigError, match="at least 1"):
        EpisodeStream(demonstrations, 0, 10)
