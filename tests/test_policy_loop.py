"""ControlLoop: time that a test tells, deadlines, states that survive, threads."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from conftest import ROOT
from test_policy import B, S, at, episode, equal, policy, stepped

from streammem import tree
from streammem.errors import CheckpointError, ConfigError, ShapeError
from streammem.policy.encoders import Observation
from streammem.policy.loop import ControlLoop
from streammem.policy.shared import Shared
from streammem.policy.timing import Estimate, LeapingTime, Pace, SystemTime, Window


class ToldTime:
    """A clock that goes on only when somebody sleeps, works, or looks at it (by a nanosecond)."""

    def __init__(self):
        self.at, self.sleeps = 0.0, []

    def now(self):
        self.at += 1e-9
        return self.at

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.at += seconds


class Robot:
    """Plays an episode; sensing takes what it is told to."""

    def __init__(self, clock=None, slow=None, steps=60):
        self.observation, self.time_s = episode(steps, 1)
        self.clock, self.slow, self.tick, self.sent, self.when = clock, slow or {}, 0, [], []

    def sense(self):
        t, self.tick = self.tick, self.tick + 1
        if self.clock is not None:
            self.clock.at += self.slow.get(t, 0.0)
        return at(self.observation, t), float(self.time_s[0, t])

    def send(self, action):
        self.sent.append(action.clone())
        if self.clock is not None:
            self.when.append(self.clock.at)


def wanted(steps=60):
    observation, time_s = episode(steps, 1)
    return stepped(policy(), observation, time_s)[1][0]


def test_the_loop_gives_the_actions_of_the_steps_on_time():
    clock = ToldTime()
    loop, robot = ControlLoop(policy(), 25.0, time=clock), Robot(clock)
    report = loop.run(robot.sense, robot.send, ticks=60)
    assert torch.equal(torch.cat(robot.sent), wanted())
    np.testing.assert_allclose(robot.when, 0.04 * np.arange(60), atol=1e-6)
    assert report.ticks.done == 60 and report.ticks.missed == 0 and report.tick.max_ms < 1e-2
    assert loop.counters()["taken"] == [60]


def test_a_pace_sleeps_then_spins():
    clock = ToldTime()
    clock.now = lambda: clock.at  # exact, and spinning takes no time: let it
    pace = Pace(100.0, clock, spin_s=0.002)
    pace.wait()
    looks = iter([0.0, 0.0082, 0.0091, 0.0101])
    clock.now = lambda: next(looks)
    assert pace.wait() == (pytest.approx(0.01), 0) and clock.sleeps == [pytest.approx(0.008)]
    assert next(looks, None) is None  # it looked until the tick was due, and no more


def test_ticks_that_are_over_are_left_out_and_counted():
    clock = ToldTime()
    loop, robot = ControlLoop(policy(), 25.0, time=clock), Robot(clock, {5: 0.13})
    report = loop.run(robot.sense, robot.send, ticks=10)
    assert report.ticks.missed == 1 + 2 and report.ticks.done == 10  # its own, and two that could not begin
    np.testing.assert_allclose(np.array(robot.when[7:]) % 0.04, 0, atol=1e-6)  # in phase again


def test_hold_sends_the_last_action_again():
    clock = ToldTime()
    loop, robot = ControlLoop(policy(), 25.0, deadline="hold", time=clock), Robot(clock, {5: 0.05})
    report = loop.run(robot.sense, robot.send, ticks=10)
    sent, right = torch.cat(robot.sent), wanted()[:10]
    assert report.ticks.held == report.ticks.missed == 1
    assert torch.equal(sent[5], right[4])
    kept = [i for i in range(10) if i != 5]
    assert torch.equal(sent[kept], right[kept])


def test_a_loop_that_is_always_late_still_moves():
    clock = ToldTime()
    loop, robot = ControlLoop(policy(), 25.0, time=clock), Robot(clock, dict.fromkeys(range(10), 0.05))
    loop.run(robot.sense, robot.send, ticks=10)
    assert torch.equal(torch.cat(robot.sent)[1:], wanted()[:9])


def test_skip_write_acts_and_writes_nothing():
    clock = ToldTime()
    loop, robot = ControlLoop(policy(), 25.0, deadline="skip_write", time=clock), Robot(clock, {5: 0.041})
    report = loop.run(robot.sense, robot.send, ticks=10)
    assert report.ticks.skipped == 1 and report.ticks.held == 0 and loop.counters()["taken"] == [9]
    observation, time_s = episode(60, 1)
    state, _ = stepped(policy(), tree.map(lambda a: a[:, :5], observation), time_s[:, :5])
    with torch.no_grad():
        assert torch.equal(robot.sent[5], policy().act(state, at(observation, 5)))


def test_shed_leaves_out_optional_work_only():
    clock, drawn = ToldTime(), []

    def picture():
        drawn.append(clock.at)
        clock.at += 0.03

    loop = ControlLoop(policy(), 25.0, deadline="shed", time=clock)
    robot = Robot(clock, {5: 0.02, 6: 0.02})
    report = loop.run(robot.sense, robot.send, ticks=10, optional=picture)
    assert report.ticks.shed == 2 and len(drawn) == 8 and report.ticks.missed == 0
    assert torch.equal(torch.cat(robot.sent), wanted()[:10])


def test_one_slow_time_does_not_leave_work_out_for_ever():
    estimate = Estimate()
    estimate.add(1.0)
    for _ in range(50):
        estimate.fade()
    assert estimate.seconds < 0.01


def test_warming_up_leaves_everything_as_it_was():
    loop, robot = ControlLoop(policy(), 25.0, time=ToldTime()), Robot()
    before, seen = loop.snapshot(), robot.sense()[0]
    loop.warm_up(seen, 5)
    assert equal(loop.snapshot(), before) and loop.report().observe.count == 0
    assert loop.report().ticks == ControlLoop(policy(), 25.0).report().ticks


def test_statistics_are_those_of_the_window():
    window, rng = Window(1000), np.random.default_rng(0)
    window.add(9.0)  # a spike before, which the window forgets
    seconds = rng.exponential(1e-3, 1000)
    for x in seconds:
        window.add(x)
    told = window.latency()
    assert told[1:] == pytest.approx(tuple(1e3 * np.percentile(seconds, [50, 99, 99.9, 100])))
    assert told.count == 1000 and np.isnan(Window(3).latency().p50_ms)


def test_streams_start_over_by_mask():
    loop, (observation, time_s) = ControlLoop(policy(), 25.0, batch=B), episode()
    for t in range(5):
        loop.observe(at(observation, t), time_s[:, t])
    before = loop.snapshot()
    loop.reset(torch.tensor([False, True, False]))
    assert equal(loop.snapshot(), policy().reset(before, torch.tensor([False, True, False])))
    with pytest.raises(ShapeError, match="mask"):
        loop.reset(torch.ones(2, dtype=torch.bool))
    loop.reset()
    assert equal(loop.snapshot(), policy().init_state(B))


def test_a_fork_goes_its_own_way():
    loop, robot = ControlLoop(policy(), 25.0, time=ToldTime()), Robot()
    loop.run(robot.sense, robot.send, ticks=20)
    before, fork = loop.snapshot(), loop.fork()
    assert torch.equal(fork.act(), loop.act())
    seen, _ = robot.sense()
    fork.observe(seen, 99.0)
    assert equal(loop.snapshot(), before) and not equal(fork.snapshot(), before)
    loop.restore(fork.snapshot())
    assert torch.equal(loop.act(), fork.act())
    with pytest.raises(ShapeError):
        loop.restore(ControlLoop(policy(), 25.0, batch=2).snapshot())


def test_an_episode_goes_on_from_a_file(tmp_path):
    loop, robot = ControlLoop(policy(), 25.0, time=ToldTime()), Robot()
    loop.run(robot.sense, robot.send, ticks=23)
    loop.save(tmp_path / "live")
    other = ControlLoop(policy(), 25.0, time=ToldTime())
    other.load(tmp_path / "live")
    assert equal(other.snapshot(), loop.snapshot())
    other.run(robot.sense, robot.send, ticks=37)
    assert torch.equal(torch.cat(robot.sent), wanted())
    stranger = ControlLoop(policy("delta"), 25.0)
    before = stranger.snapshot()
    with pytest.raises(CheckpointError):
        stranger.load(tmp_path / "live")
    assert equal(stranger.snapshot(), before)


KILLED = """
import sys, torch
sys.path[:0] = [{tests!r}, {root!r}]
from test_policy_loop import ControlLoop, Robot, ToldTime, policy
torch.manual_seed(0)
loop, robot = ControlLoop(policy(), 25.0, time=ToldTime()), Robot(steps=4000)
for t in range(4000):
    loop.run(robot.sense, robot.send, ticks=1)
    loop.save({path!r})
    print(t, flush=True)
"""


def test_killed_in_the_middle_it_goes_on_as_if_nothing_had_happened(tmp_path):
    path = str(tmp_path / "live")
    script = KILLED.format(tests=str(ROOT / "tests"), root=str(ROOT), path=path)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) >= 25:
                os.kill(child.pid, signal.SIGKILL)
                break
    loop = ControlLoop(policy(), 25.0, time=ToldTime())
    loop.load(path)
    taken = loop.counters()["taken"][0]
    robot = Robot(steps=4000)
    robot.tick = taken
    assert taken >= 26
    loop.run(robot.sense, robot.send, ticks=20)
    observation, time_s = episode(4000, 1)
    right = stepped(policy(), tree.map(lambda a: a[:, : taken + 20], observation), time_s[:, : taken + 20])[1][0]
    assert torch.equal(torch.cat(robot.sent), right[-20:])


def test_readers_never_see_half_a_write():
    shared, stop, torn = Shared((torch.zeros(50_000), torch.zeros(50_000))), threading.Event(), []

    def read():
        buffer = (torch.zeros(50_000), torch.zeros(50_000))
        while not stop.is_set():
            shared.copy_into(buffer)
            torn.append(bool((buffer[0] != buffer[0][0]).any() or (buffer[1] != buffer[0][0]).any()))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    until = time.monotonic() + 1.5
    writes = 0
    while time.monotonic() < until:
        writes += 1
        shared.publish((torch.full((50_000,), float(writes)), torch.full((50_000,), float(writes))))
    stop.set()
    for reader in readers:
        reader.join()
    assert not any(torn) and len(torn) > 10 and writes > 10


def test_one_writes_and_many_act():
    loop, (observation, time_s) = ControlLoop(policy(), 25.0), episode(60, 1)
    _, actions = stepped(policy(), observation, time_s)
    known = torch.cat([loop.act(), actions[0]])
    stop, wrong = threading.Event(), []

    def act(reader):
        while not stop.is_set():
            wrong.append(not (reader.act() == known).all(1).any().item())

    threads = [threading.Thread(target=act, args=(loop.reader(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for t in range(60):
        loop.observe(at(observation, t), time_s[:, t])
    time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong and not any(wrong)


def test_two_writers_are_refused():
    shared = Shared(torch.zeros(3))
    with shared._writer, pytest.raises(ConfigError, match="single writer"):
        shared.publish(torch.ones(3))
    with pytest.raises(ShapeError):
        shared.publish(torch.ones(4))
    assert torch.equal(shared.front, torch.zeros(3))
    shared.publish(torch.ones(3))
    assert torch.equal(shared.front, torch.ones(3))


def test_nothing_is_kept_by_a_tick_after_warming_up():
    """The least of three passes: other threads keep things at times, but what a tick keeps every pass keeps."""
    loop, (observation, time_s) = ControlLoop(policy(), 25.0, window=100), episode(1600, 1)
    frames = [(at(observation, t), time_s[:, t]) for t in range(1600)]
    loop.warm_up(frames[0][0])
    where = sorted(leaf.data_ptr() for buffer in loop._shared._buffers for leaf in tree.leaves(buffer))
    blocks = []
    for start in range(0, 1600, 400):
        for frame in frames[start : start + 400]:
            loop.observe(*frame)
            loop.act()
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    grown = min(after - before for before, after in zip(blocks, blocks[1:]))
    with torch.profiler.profile(profile_memory=True) as profile:
        loop.observe(frames[-1][0], frames[-1][1] + 1)
    left = sum(event.self_cpu_memory_usage for event in profile.events())
    assert where == sorted(leaf.data_ptr() for buffer in loop._shared._buffers for leaf in tree.leaves(buffer))
    assert grown < 100 and left <= 0  # objects: four ticks leave less than one; tensors leave none


def test_a_real_clock_keeps_a_real_rate():
    loop, robot = ControlLoop(policy(), 100.0, deadline="shed"), Robot()
    loop.warm_up(
        robot.observation._replace(**{n: x[:, 0] for n, x in robot.observation._asdict().items() if x is not None})
    )
    start = SystemTime().now()
    report = loop.run(robot.sense, robot.send, ticks=50)
    took = SystemTime().now() - start
    assert report.ticks.done == 50 and took > 0.49 and report.tick.p50_ms > 0


def test_waiting_that_takes_no_time_changes_nothing_else():
    clock = LeapingTime()
    loop, robot, due = ControlLoop(policy(), 25.0, time=clock), Robot(), []
    start = SystemTime().now()
    report = loop.run(robot.sense, robot.send, ticks=50, optional=lambda: due.append(clock.now()))
    assert SystemTime().now() - start < 1.5 and report.ticks.done == 50  # 2 s of the robot's time
    assert torch.equal(torch.cat(robot.sent), wanted()[:50])
    assert np.diff(due).mean() == pytest.approx(0.04, rel=0.05)
    seconds = loop.durations("tick")
    assert len(seconds) == 50 and 1e3 * seconds.max() == pytest.approx(report.tick.max_ms)
    seconds[:] = 0
    assert loop.report().tick.max_ms > 0


def test_notes_come_back_with_the_episode(tmp_path):
    loop = ControlLoop(policy(), 25.0)
    loop.save(tmp_path / "live", {"said": "something"})
    assert ControlLoop(policy(), 25.0).load(tmp_path / "live") == {"said": "something"}


def test_a_loop_that_cannot_be_is_refused():
    for options in ({"rate_hz": 0.0}, {"rate_hz": 25.0, "deadline": "panic"}, {"rate_hz": 25.0, "window": 0}):
        with pytest.raises(ConfigError):
            ControlLoop(policy(), **options)
    with pytest.raises(ShapeError, match="time_s"):
        ControlLoop(policy(), 25.0, batch=2).observe(Observation(torch.zeros(2, S)), torch.zeros(3))
