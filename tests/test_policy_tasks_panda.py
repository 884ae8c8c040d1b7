"""PandaRecall in MuJoCo: the environments as Gymnasium wants them, the expert in them, and the kinematic arm beside."""

import numpy as np
import pytest
import torch

from apps.policy_world import headless

headless()  # before MuJoCo is imported
gymnasium = pytest.importorskip("gymnasium", reason="needs the extra [robot]")
pytest.importorskip("gymnasium_robotics", reason="needs the extra [robot]")
pytest.importorskip("mujoco", reason="needs the extra [robot]")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from streammem.errors import ConfigError  # noqa: E402
from streammem.policy.tasks import arm, panda  # noqa: E402
from streammem.policy.tasks.episodes import record  # noqa: E402
from streammem.policy.tasks.recall import Recall, RecallTask  # noqa: E402

panda.register()
SHORT = {"items": 2, "delay": 40, "queries": 2}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", panda.IDS.values())
def test_environments_are_what_gymnasium_wants(name):
    env = gymnasium.make(name, **SHORT)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("mode", panda.IDS)
def test_the_expert_answers_every_question(mode):
    env = gymnasium.make(panda.IDS[mode], **SHORT)
    observation, info = env.reset(seed=3)
    total, steps, misses, done = 0.0, 0, [], False
    while not done:
        observation, reward, done, cut, info = env.step(env.unwrapped.expert())
        assert env.observation_space.contains(observation) and not cut
        total, steps = total + reward, steps + 1
        misses += [info["miss_m"]] if "miss_m" in info else []
    assert total == 2 and steps == 2 * 20 + 40 + 2 * 35 and max(misses) < 0.015


def test_a_seed_says_which_episode():
    def first(seed):
        env = panda.PandaRecall(**SHORT)
        rows = [env.reset(seed=seed)[0]]
        rows += [env.step(np.zeros(3, np.float32))[0] for _ in range(20)]
        return np.stack(rows)

    assert np.array_equal(first(1), first(1)) and not np.array_equal(first(1), first(2))


def test_dropped_frames_stand_still_and_are_told():
    env = panda.PandaRecall(dropped=0.3, **SHORT)
    before, info = env.reset(seed=0)
    valid = []
    for _ in range(100):
        observation, _, _, _, info = env.step(np.array([0.3, 0.0, 0.0], np.float32))
        assert info["valid"] != np.array_equal(observation, before)
        before = observation
        valid.append(info["valid"])
    assert 0.5 < np.mean(valid) < 0.85


def test_parameters_that_make_no_sense_are_refused():
    for options in ({"dropped": 1.0}, {"render_mode": "human"}, {"mode": "throw"}, {"items": 0}):
        with pytest.raises(ConfigError, match="wanted"):
            panda.PandaRecall(**options)


def test_the_kinematic_arm_is_the_simulated_one_without_its_dynamics():
    """Same hand for the same joints, the sixth counted from another zero; same motion after a while."""
    simulated, thought = panda.MujocoArm(), arm.KinematicArm()
    one, two = simulated.reset(2), thought.reset(2)
    assert torch.allclose(one.hand, two.hand, atol=2e-3)
    velocity = torch.tensor([[0.1, 0.1, 0.0], [0.0, -0.2, -0.1]])
    for _ in range(15):
        one, two = simulated.move(one, velocity, torch.zeros(2)), thought.move(two, velocity, torch.zeros(2))
    turned = one.joints + torch.tensor([0.0] * 5 + [arm.HOME[5] - panda.HOME[5], 0.0])
    assert torch.allclose(arm.forward(turned)[0], one.hand, atol=2e-3)
    assert torch.allclose(one.hand, two.hand, atol=0.03)  # it sags under its own weight


def test_demonstrations_are_recorded_from_it_too():
    episodes = record(RecallTask(items=1, delay=10, queries=1), 2, 0, arm=panda.MujocoArm())
    assert episodes.lengths.tolist() == [65, 65] and episodes.observation.isfinite().all()


def test_a_payload_shows_in_the_joints():
    def settled(mass):
        recall = Recall(RecallTask("weigh", items=1, delay=0, noise=0.0), 1, 0, panda.MujocoArm())
        recall.reset()
        recall.mass[:] = mass
        for _ in range(18):
            seen = recall.step(torch.zeros(1, 3))
        return seen.observation[0, 6:13]

    light, middle, heavy = settled(0.0), settled(0.5), settled(1.0)
    assert (light - heavy).abs().max() > 1
    assert torch.allclose(middle, (light + heavy) / 2, atol=0.15)  # nothing is cut off


@pytest.mark.slow
def test_a_picture_shows_the_robot():
    env = panda.PandaRecall(render_mode="rgb_array", **SHORT)
    env.reset(seed=0)
    try:
        picture = env.render()
    except Exception as error:  # noqa: BLE001 - what a machine lacks, it lacks in many ways
        pytest.skip(f"nothing to render with: {error}")
    assert picture.shape == (480, 640, 3) and picture.std() > 10
    env.close()
