"""The policy under other libraries' names: whose episode an observation belongs to, and what each call promises."""

import sys
import types

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_policy import A, B, D, S, T, at, episode, equal, policy, stepped

from apps.examples import lerobot_policy, robomimic_rollout, sb3_predict
from streammem import tree
from streammem.policy.encoders import Observation
from streammem.policy.heads import ChunkHead
from streammem.policy.lerobot import LerobotPolicy
from streammem.policy.recurrent import Recurrent

PERIOD = 0.04


def alone(net, observations):
    """What a memory that saw these and nothing before says, [N D]."""
    state = net.init_state(1)
    with torch.no_grad():
        for i, x in enumerate(observations):
            seen = Observation(vector=torch.as_tensor(np.asarray(x), dtype=torch.float32).reshape(1, -1))
            state = net.observe(state, seen, torch.full((1,), i * PERIOD, dtype=torch.float64))
        return net.memory.read(state.memory, state.seen).flatten(1)[0].numpy()


def test_examples_are_short():
    for path in (ROOT / "apps/examples").glob("*.py"):
        assert len(path.read_text().splitlines()) < 60, path


def test_sb3_starts_over_where_an_episode_starts():
    net = Recurrent(policy(), PERIOD)
    observation, time_s = episode()
    starts = torch.zeros(B, T, dtype=torch.bool)
    starts[:, 0] = starts[1, 5] = starts[2, 9] = True
    state, actions = None, []
    for t in range(T):
        action, state = net.predict(at(observation, t).vector.numpy(), state, starts[:, t].numpy())
        actions.append(action)
    wanted = stepped(net.policy, observation._replace(confidence=None), time_s, starts)[1]
    np.testing.assert_allclose(np.stack(actions, 1), wanted.numpy(), atol=1e-6)
    assert sb3_predict.main().shape == (20, 3, 2)


def test_robomimic_names_are_steps():
    net, (observation, time_s) = Recurrent(policy(), PERIOD), episode()
    state, actions = net.get_rnn_init_state(batch_size=B, device="cpu"), []
    with torch.no_grad():
        for t in range(T):
            x = at(observation, t).vector
            action, state = net.forward_step(obs={"b": x[:, 2:], "a": x[:, :2]}, rnn_state=state)
            actions.append(action)
    wanted = stepped(net.policy, observation, time_s)[1]
    torch.testing.assert_close(torch.stack(actions, 1), wanted, rtol=0, atol=1e-6)
    assert robomimic_rollout.main().shape == (20, 7)


def test_lerobot_remembers_every_tick_and_acts_once_a_chunk():
    actions, taken = lerobot_policy.main(ticks=20, chunk=5)
    assert actions.shape == (4, 2) and taken == 20
    net, (observation, time_s) = policy(), episode(batch=1)
    robot = LerobotPolicy(net, PERIOD)
    frames = [{"observation.state": observation.vector[:, t], "timestamp": time_s[:, t]} for t in range(T)]
    robot.reset()
    acted = [robot.select_action(frame) for frame in frames]
    wanted = stepped(net, observation._replace(confidence=None), time_s)[1]
    torch.testing.assert_close(torch.stack(acted, 1), wanted, rtol=0, atol=1e-6)
    robot.observe(frames[-1])
    assert robot.snapshot().counters.duplicate.item() == 1
    robot.reset(torch.tensor([True]))
    assert equal(robot.snapshot(), net.init_state(1))
    robot.reset()
    assert robot.snapshot() is None


def test_lerobot_chunks_and_losses():
    net = LerobotPolicy(policy(head=ChunkHead(2 * D, A, 4)), PERIOD)
    observation, _ = episode()
    chunk = net.predict_action_chunk({"observation.state": observation.vector[:, 0]})
    assert chunk.shape == (B, 4, A)
    one, padded = LerobotPolicy(policy(), PERIOD), torch.zeros(B, T, dtype=torch.bool)
    padded[:, 9:] = True
    action = torch.randn(B, T, A)
    batch = {"observation.state": observation.vector, "action": action, "action_is_pad": padded}
    loss, told = one(batch)
    loss.backward()
    batch["action"] = torch.where(padded[..., None], 1e6, action)
    assert one(batch)[0].item() == pytest.approx(loss.item()) and set(told) == {"loss", "written"}
    assert all(p.requires_grad for p in one.get_optim_params())


gym = pytest.importorskip("gymnasium", reason="gymnasium is not installed (extra: robot)")


class Counting(gym.Env):
    """Observations say how far the episode is, and which it is; it ends after `length` steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (S,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (A,), np.float32)

    def __init__(self, length):
        self.length, self.episode, self.t = length, -1, 0

    def seen(self):
        return np.sin(np.arange(S) + 3.1 * self.t + 7.7 * self.episode + self.length).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), 0.0, self.t == self.length, False, {}


def test_gym_observations_remember_their_episode():
    from streammem.policy.gym import MemoryObservation

    net, env, history = policy(), None, []
    env = MemoryObservation(Counting(5), net, PERIOD)
    for _ in range(2):
        seen, _ = env.reset()
        history = [seen["observation"]]
        assert env.observation_space.contains(seen)
        np.testing.assert_allclose(seen["memory"], alone(net, history), atol=1e-6)
        for _ in range(5):
            seen, *_ = env.step(np.zeros(A, dtype=np.float32))
            history.append(seen["observation"])
            np.testing.assert_allclose(seen["memory"], alone(net, history), atol=1e-6)
    with pytest.raises(ValueError, match="period_s"):
        MemoryObservation(Counting(5), net)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_gym_vectors_know_whose_episode_it_is(mode):
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    from streammem.policy.gym import VectorMemoryObservation

    lengths, net = (3, 4, 7), policy()
    envs = SyncVectorEnv([lambda n=n: Counting(n) for n in lengths], autoreset_mode=AutoresetMode[mode])
    env = VectorMemoryObservation(envs, net, PERIOD)
    seen, _ = env.reset(seed=0)
    history, number = [[x] for x in seen["observation"]], [e.episode for e in envs.envs]
    assert env.observation_space.contains(seen)
    for _ in range(20):
        for row in range(3):
            np.testing.assert_allclose(seen["memory"][row], alone(net, history[row]), atol=1e-6, err_msg=f"{row}")
        seen, _, ended, _, _ = env.step(np.zeros((3, A), dtype=np.float32))
        for row, one in enumerate(envs.envs):
            history[row] = [] if one.episode != number[row] else history[row]
            history[row].append(seen["observation"][row])
        number = [e.episode for e in envs.envs]
        if mode == "DISABLED" and ended.any():
            for row in np.flatnonzero(~ended):
                np.testing.assert_allclose(seen["memory"][row], alone(net, history[row]), atol=1e-6)
            seen, _ = env.reset(options={"reset_mask": ended.copy()})
            for row in np.flatnonzero(ended):
                history[row] = [seen["observation"][row]]
            number = [e.episode for e in envs.envs]
    assert min(number) >= 2


def test_gym_examples_run():
    from apps.examples import gym_memory

    assert gym_memory.one().shape == (32,) and gym_memory.many().shape == (3, 32)


@pytest.fixture
def ros(monkeypatch):
    """Stand-ins for what the example takes from ROS 2."""
    made = types.SimpleNamespace(timers=[], subscriptions=[], sent=[])

    class Node:
        def __init__(self, name):
            self.name = name

        def create_publisher(self, kind, topic, depth):
            return types.SimpleNamespace(publish=lambda message: made.sent.append(message.data))

        def create_subscription(self, kind, topic, callback, qos):
            made.subscriptions.append(callback)

        def create_timer(self, period_s, callback):
            made.timers.append((period_s, callback))

        def on_activate(self, state):
            return "success"

    parts = {
        "rclpy": {},
        "rclpy.lifecycle": {
            "LifecycleNode": Node,
            "TransitionCallbackReturn": types.SimpleNamespace(SUCCESS="success"),
        },
        "rclpy.qos": {"qos_profile_sensor_data": None},
        "sensor_msgs": {},
        "sensor_msgs.msg": {"JointState": object},
        "std_msgs": {},
        "std_msgs.msg": {"Float64MultiArray": lambda data: types.SimpleNamespace(data=data)},
    }
    for name, names in parts.items():
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    sys.modules.pop("apps.examples.ros2_node", None)


def test_the_ros_node_writes_on_arrival_and_acts_on_a_timer(ros):
    from apps.examples import ros2_node

    node = ros2_node.MemoryNode()
    assert node.on_configure(None) == "success" and node.on_activate(None) == "success"
    (period_s, act), sensed = ros.timers[0], ros.subscriptions[0]
    assert period_s == pytest.approx(1 / 25)
    g = torch.Generator().manual_seed(0)
    for i in (0, 1, 2, 2, 4):
        stamp = types.SimpleNamespace(sec=5, nanosec=i * 10_000_000)
        header = types.SimpleNamespace(stamp=stamp)
        sensed(types.SimpleNamespace(header=header, position=torch.randn(7, generator=g).tolist()))
    act()
    counters = node.loop.counters()
    assert counters["taken"] == [4] and counters["duplicate"] == [1]
    assert ros.sent == [node.loop.act()[0].tolist()] and tree.nbytes(node.loop.snapshot()) < 10_000
