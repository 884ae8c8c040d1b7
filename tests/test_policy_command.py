"""streammem policy: an episode played in the loop, ended and gone on with, told in a film and a report; cartridges."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from conftest import ROOT
from PIL import Image

from apps import cli, policy_film, policy_picture, policy_video
from apps.policy_report import histogram
from apps.policy_world import LiveSettings, World
from streammem import config, store, tree
from streammem.errors import CheckpointError, ConfigError
from streammem.policy import cartridge
from streammem.policy.encoders import Observation
from streammem.policy.tasks import arm, trained
from streammem.policy.tasks.recall import Recall, RecallTask
from streammem.policy.tasks.trained import Recipe
from streammem.policy.tasks.view import Camera

SHORT = ["--arm", "kinematic", "--items", "2", "--history", "60", "--fast", "queries=1"]
LENGTH = 60 + 35


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A policy that was never trained; what it does is of no account here."""
    torch.manual_seed(0)
    path, recipe = tmp_path_factory.mktemp("policy") / "policy.safetensors", Recipe()
    trained.save(path, recipe.made(), recipe, "nobody")
    return str(path)


def play(weights, out, *more, film="none"):
    return cli.main(["policy", "--policy", weights, *SHORT, "--film", film, "--out", str(out), *more])


def test_an_episode_is_played_and_told(weights, tmp_path, capsys):
    assert play(weights, tmp_path / "a", film="auto") == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert f"{LENGTH:6}  asked 1 of 1" in rows[-1] and rows[-1].rstrip().endswith("/1") and "p99.9" in said
    told = config.read(tmp_path / "a" / "run.yaml")
    assert told["run"]["ticks"] == LENGTH == told["run"]["latency_ms"]["tick"]["count"]
    assert told["run"]["observations"]["taken"] == LENGTH and len(told["run"]["answers"]) == 1
    assert config.build(LiveSettings, told["settings"], "").history == 60
    lines = (tmp_path / "a" / "episode.tsv").read_text().splitlines()
    assert len(lines) == 1 + LENGTH and lines[1].startswith("0\tteach\t0\t")
    report = (tmp_path / "a" / "report.html").read_text()
    assert report.count("data:image/jpeg") >= 4 and "<svg" in report and "missed by" in report
    assert "http" not in report.split("<details>")[0] and "data:video/mp4" in report or "data:image/gif" in report


def test_the_memory_is_what_was_written_and_the_actions_those_of_the_policy(weights, tmp_path):
    """Against a loop of our own over the same task."""
    play(weights, tmp_path / "a")
    net, episode = trained.load(weights), Recall(RecallTask(items=2, delay=20, queries=1), 1, 0)
    seen, state, actions = episode.reset(), net.init_state(1), []
    with torch.no_grad():
        while not episode.done:
            observation = Observation(seen.observation, confidence=seen.confidence)
            state, action = net.step(state, observation, seen.time_s)
            actions.append(action[0])
            seen = episode.step(action)
    rows = [line.split("\t") for line in (tmp_path / "a" / "episode.tsv").read_text().splitlines()[1:]]
    played = torch.tensor([[float(x) for x in row[3:]] for row in rows])
    assert torch.equal(played, torch.stack(actions))
    stored = store.load(tmp_path / "a" / "state.safetensors", schema=1)
    assert torch.equal(stored.tensors["state.memory.memory.dual"], state.memory.memory.dual)


def test_ended_by_a_signal_it_writes_everything_and_goes_on_as_if_nothing_had_happened(weights, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    words = [sys.executable, "-m", "apps.cli", "policy", "--policy", weights, "--arm", "kinematic", "--items", "2"]
    words += ["--history", "120", "queries=1", "dropped=0.2"]
    slow = [*words, "--out", str(one), "--film", "none"]
    with subprocess.Popen(slow, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if "taught 2 of 2" in line:
                break
        time.sleep(0.5)
        os.kill(child.pid, signal.SIGTERM)
        said = child.communicate()[0]
    assert child.returncode == 143 and "SIGTERM at tick" in said
    assert {x.name for x in one.iterdir()} == {"episode.tsv", "report.html", "run.yaml", "state.safetensors"}
    before = config.read(one / "run.yaml")["run"]["ticks"]
    assert 40 < before < 155
    assert cli.main(["policy", "--resume", "--out", str(one), "--film", "none", "--quiet"]) == 0
    assert cli.main([*words[3:], "--out", str(two), "--film", "none", "--quiet", "--fast"]) == 0
    assert (one / "episode.tsv").read_text() == (two / "episode.tsv").read_text()
    a, b = (store.load(x / "state.safetensors", schema=1).tensors for x in (one, two))
    assert all(torch.equal(torch.nan_to_num(a[name]), torch.nan_to_num(b[name])) for name in b)


@pytest.mark.slow
def test_killed_in_mid_episode_it_goes_on_as_if_nothing_had_happened(weights, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["policy", "--policy", weights, *SHORT, "--history", "3000", "--film", "none", "--quiet", "--out"]
    with subprocess.Popen([sys.executable, "-m", "apps.cli", *words, str(one)], cwd=ROOT) as child:
        while not (state := one / "state.safetensors").exists() or saved(state) < 500:
            time.sleep(0.05)
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL and saved(state) < 3000
    assert cli.main(["policy", "--resume", "--out", str(one), "--film", "none", "--quiet"]) == 0
    assert cli.main([*words, str(two)]) == 0
    assert (one / "episode.tsv").read_text() == (two / "episode.tsv").read_text()


def saved(state):
    """Ticks that a state knows of."""
    return json.loads(store.load(state, schema=1).notes["live"])["ticks"]


def test_what_cannot_be_is_refused(weights, tmp_path, capsys):
    assert play(weights, tmp_path / "a") == 0
    wrong = {
        "holds an episode": ["--out", str(tmp_path / "a")],
        "holds no episode": ["--out", str(tmp_path / "b"), "--resume"],
        "need 120 steps": ["--history", "20"],
        "below 1": ["dropped=1.0"],
        "no such file": ["--policy", "nothing"],
        "without other settings": ["--out", str(tmp_path / "a"), "--resume", "--seed", "3"],
    }
    for words, options in wrong.items():
        assert cli.main(["policy", *options]) == 2
        assert words in capsys.readouterr().err


def test_a_cartridge_gives_the_same_actions_bit_for_bit(weights, tmp_path):
    net, path, g = trained.load(weights), tmp_path / "c", torch.Generator().manual_seed(0)
    state = net.init_state(3)
    with torch.no_grad():
        for t in range(30):
            seen = Observation(torch.randn(3, 43, generator=g), confidence=torch.ones(3))
            state = net.observe(state, seen, torch.full((3,), 0.04 * t, dtype=torch.float64))
        cartridge.save(path, net, state, row=1, notes={"said": "by hand"})
        taken = cartridge.load(path, trained.load(weights), batch=2)
        query = Observation(torch.randn(3, 43, generator=g), confidence=torch.zeros(3))
        there = net.act(state, query)[1]
        two = tree.map(
            lambda x: x[:1].expand(2, *x.shape[1:]) if x is not None else x, tree.map(lambda x: x[1:2], query)
        )
        here = trained.load(weights).act(taken.state, two)
        nothing = net.act(net.init_state(2), two)
    assert torch.equal(here[0], there) and torch.equal(here[1], there) and not torch.equal(here, nothing)
    assert taken.notes["said"] == "by hand" and taken.state.counters.taken.tolist() == [0, 0]
    assert taken.state.clock.newest_s.tolist() == [-torch.inf] * 2


def test_a_foreign_cartridge_is_refused(weights, tmp_path):
    net = trained.load(weights)
    cartridge.save(tmp_path / "c", net, net.init_state(1))
    with torch.no_grad():
        next(net.parameters()).add_(1e-6)
    with pytest.raises(CheckpointError, match="fingerprint"):
        cartridge.load(tmp_path / "c", net)
    with pytest.raises(CheckpointError, match="rule"):
        cartridge.load(tmp_path / "c", Recipe("kalman").made())
    with pytest.raises(CheckpointError, match="no cartridge"):
        cartridge.notes(weights)


def test_a_robot_goes_on_from_the_lessons_of_another(weights, tmp_path, capsys):
    assert play(weights, tmp_path / "a", "--save-cartridge", str(tmp_path / "c")) == 0
    assert cli.main(["policy", "--policy", weights, "--cartridge", str(tmp_path / "c"), "--arm", "kinematic",
                     "--history", "50", "--fast", "--film", "none", "--out", str(tmp_path / "b")]) == 0  # fmt: skip
    a, b = (config.read(tmp_path / x / "run.yaml") for x in "ab")
    assert b["settings"]["items"] == 2 and b["run"]["observations"]["taken"] == 50 - 40 + 3 * 35
    first = (tmp_path / "b" / "episode.tsv").read_text().splitlines()[1]
    assert first.startswith("40\twork\t0\t")
    torch.manual_seed(1)
    recipe = Recipe()
    trained.save(tmp_path / "other", recipe.made(), recipe, "nobody")
    words = ["policy", "--policy", str(tmp_path / "other"), "--cartridge", str(tmp_path / "c"), "--out", "x"]
    assert cli.main(words) == 2 and "fingerprint" in capsys.readouterr().err
    assert a["settings"]["seed"] == b["settings"]["seed"]


def test_frames_that_are_dropped_stand_still_with_their_time():
    world, same = World(LiveSettings(arm="kinematic", dropped=0.5)), 0
    before = world.sense()
    for _ in range(200):
        world.move(torch.zeros(1, 3))
        now = world.sense()
        stood = now[1] == before[1]
        assert stood == torch.equal(now[0].vector, before[0].vector)
        same, before = same + stood, now
    assert 70 < same < 130


def test_marks_show_only_what_was_taught_and_where_it_belongs():
    world = World(LiveSettings(arm="kinematic", items=3, history=80, queries=2))
    counts = []
    while not world.done:
        world.move(world.episode.expert())
        shown = world.shot(False).shown
        counts.append(sum(mark.kind == "slot" for mark in shown.marks))
        if shown.ended:
            assert shown.marks[-1].kind == "right" and "missed by" in shown.words
            assert any(np.allclose(mark.place, shown.marks[-1].place) for mark in shown.marks[:-1])
    assert counts[:19] == [0] * 19 and counts[19:39] == [1] * 20 and counts[59:] == [3] * (len(counts) - 59)
    assert [x.right for x in world.told.verdicts()] == [True, True]


@pytest.mark.parametrize("mode, words", [("search", "second visit"), ("imitate", "a new situation"), ("weigh", "tag")])
def test_every_task_is_told(mode, words):
    world = World(LiveSettings(mode, arm="kinematic", items=2, history=300, queries=2))
    parts, told = [], []
    while not world.done:
        world.move(world.episode.expert())
        shown = world.shot(False).shown
        parts += [shown.part] if parts[-1:] != [shown.part] else []
        told += [shown.words] if shown.ended else []
    assert parts[-1] == "query" or mode == "search"
    assert "work" in parts and len(told) >= 2
    verdicts = world.told.verdicts()
    assert len(verdicts) == 2 and all(x.right for x in verdicts) and words in verdicts[-1].asked


def test_the_camera_puts_what_is_to_the_right_there_and_what_is_nearer_lower():
    camera = Camera()
    right, up, back = camera.axes
    assert np.allclose(camera.axes @ camera.axes.T, np.eye(3)) and right[2] == 0 and up[2] > 0
    (x, y), depth = camera.project(np.array(camera.target), 480, 640)
    assert (x, y) == pytest.approx((320, 240)) and depth == pytest.approx(
        np.linalg.norm(np.subtract(camera.eye, camera.target))
    )
    (x1, y1), _ = camera.project(camera.target + 0.1 * right, 480, 640)
    (_, y2), _ = camera.project(camera.target + 0.1 * up, 480, 640)
    assert x1 > x and y1 == pytest.approx(y) and y2 < y
    top = camera.target + up * depth * np.tan(np.radians(camera.field_deg / 2))
    assert camera.project(top, 480, 640)[0][1] == pytest.approx(0, abs=1e-6)


def test_lines_draw_the_arm_where_it_is():
    joints = torch.tensor(arm.HOME)
    camera = Camera()
    drawn = policy_picture.Drawn(camera)
    picture, empty = drawn.take(joints), np.asarray(drawn._empty.resize((640, 480), Image.Resampling.BOX))
    points = arm.skeleton(joints)
    assert torch.allclose(points[-1], arm.forward(joints)[0]) and torch.equal(points[0], torch.zeros(3))
    pixels, _ = camera.project(points[1:].numpy(), 480, 640)
    for x, y in pixels.round().astype(int):
        assert np.abs(picture[y, x].astype(int) - empty[y, x]).max() > 8
    assert np.abs(picture[:60].astype(int) - empty[:60]).max() == 0  # and not where it is not


@pytest.mark.parametrize("lacks", [(), ("imageio_ffmpeg",), ("imageio_ffmpeg", "cv2")])
def test_films_are_written_with_what_there_is(lacks, tmp_path, monkeypatch):
    find = policy_video.importlib.util.find_spec
    monkeypatch.setattr(policy_video.importlib.util, "find_spec", lambda name: None if name in lacks else find(name))
    pictures = [np.full((480, 640, 3), 20 * i, np.uint8) for i in range(10)]
    path = policy_video.write_film(tmp_path, iter(pictures), 25)
    assert path.stat().st_size > 500
    if path.suffix == ".gif":
        with Image.open(path) as film:
            assert film.n_frames == 5 and film.info["duration"] == 80 and film.size == (320, 240)
    else:
        assert path.read_bytes()[4:8] == b"ftyp"
    with pytest.raises(ConfigError):
        policy_video.write_film(tmp_path, iter(()), 25)


def test_without_graphics_the_film_is_drawn_by_lines(monkeypatch, capsys):
    def broken(world):
        raise RuntimeError("no GL")

    monkeypatch.setattr(policy_film, "Simulated", broken)
    run = type("Run", (), {"world": type("W", (), {"arm": "mujoco", "zero": 0.0}), "say": staticmethod(print)})
    assert isinstance(policy_film._backdrop(run, Camera(), "auto"), policy_picture.Drawn)
    assert "cannot render" in capsys.readouterr().out


def test_a_histogram_counts_every_tick():
    drawing = histogram(np.array([0.5] * 90 + [5.0] * 9 + [40.0]))
    assert drawing.count("<rect") == 48 and "90 in the highest bar" in drawing and "40 ms" in drawing
    assert "<svg" in histogram(np.array([0.5]))
