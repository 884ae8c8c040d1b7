"""Training: tasks against their definitions, resumed runs against uninterrupted ones, and that something is learnt."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from conftest import ROOT

from apps import CONFIGS, cli, train
from apps.bench import mqar
from apps.bench.workload import Mqar
from apps.train.model import SequenceModel
from apps.train.settings import ModelSettings, RuleSettings, TrainSettings
from apps.train.tasks import TASKS, Copying, Overwrite, Recall, Regression, SelectiveCopying, _mixed, stream
from apps.train.trainer import Trainer, score
from apps.training import cosine
from streammem import config
from streammem.errors import CheckpointError
from streammem.rules import RULES

SMALL = "options={vocabulary: 8, pairs: [2, 4], length: 16}"
TINY = [SMALL, "steps=6", "batch=4", "evaluate_every=2", "evaluate_on=8", "warm_up=2"]


def drawn(task, index=0, batch=5):
    return next(stream(task, batch, 3, index))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("task", [Recall(8, (3, 5), 30), Overwrite(8, (2, 4), 45, 4), Recall(6, (6, 6), 18)])
def test_recall_asks_each_key_once_for_its_last_value(task):
    for index in range(6):
        inputs, targets, asked = drawn(task, index)
        for row, wanted, where in zip(inputs.tolist(), targets.tolist(), asked.tolist()):
            latest, at = {}, 0
            while row[at] < 8 and at + 1 < len(row) and 8 <= row[at + 1] < 16 if task.vocabulary == 8 else at < 12:
                latest[row[at]] = row[at + 1] - task.vocabulary
                at += 2
            assert task.pairs[0] <= len(latest) <= task.pairs[1] and at == 2 * task.writes * len(latest)
            rest = {t: row[t] for t in range(at, len(row)) if row[t] != 2 * task.vocabulary}
            assert sorted(rest.values()) == sorted(latest) and [t for t, x in enumerate(where) if x] == sorted(rest)
            assert all(wanted[t] == latest[key] for t, key in rest.items())


def test_levels_of_recall_double():
    assert list(Recall(64, (16, 64)).levels()) == ["16 pairs", "32 pairs", "64 pairs"]
    assert [t.pairs for t in Recall(64, (5, 12)).levels().values()] == [(5, 5), (10, 10), (12, 12)]


def test_regression_answers_with_what_is_shown_next():
    task = Regression(4, 2000, drift=0.0, noise=0.1)
    inputs, targets, asked = drawn(task)
    assert inputs.shape == (5, 2000, 5) and asked.all()
    assert torch.equal(inputs[:, 1:, 4], targets[:, :-1, 0]) and (inputs[:, 0, 4] == 0).all()
    fit = torch.linalg.lstsq(inputs[..., :4], targets).solution
    assert torch.allclose(fit.norm(dim=1), torch.ones(5, 1), atol=0.05)
    assert (targets - inputs[..., :4] @ fit).std().item() == pytest.approx(0.1, rel=0.05)
    moving = drawn(Regression(4, 2000, drift=0.1, noise=0.0))
    fit = torch.linalg.lstsq(moving.inputs[..., :4], moving.targets).solution
    assert (moving.targets - moving.inputs[..., :4] @ fit).std() > 0.2


@pytest.mark.parametrize("task", [Copying(5, 7), SelectiveCopying(5, 7, 20)])
def test_copying_says_the_string_again(task):
    places = task.places or task.count
    inputs, targets, asked = drawn(task)
    assert inputs.shape == (5, places + task.count) and (inputs[:, places] == 6).all()
    for row, wanted, where in zip(inputs, targets, asked):
        string = row[:places][row[:places] < 5]
        assert len(string) == 7 and torch.equal(wanted[where], string) and torch.equal(row[places + 1 :], string[:-1])
        assert torch.equal(where.nonzero()[:, 0], torch.arange(places, places + 7))


@pytest.mark.parametrize("name", TASKS)
def test_a_stream_starts_anywhere_and_never_repeats(name):
    task = TASKS[name]()
    first = list(itertools.islice(stream(task, 3, 1), 4))
    assert all(same(a, b) for a, b in zip(first[2:], stream(task, 3, 1, 2)))
    others = [first[1], next(stream(task, 3, 2)), next(stream(task, 3, 1, unseen=True))]
    assert not any(same(first[0], other) for other in others)


def test_generators_are_never_shared():
    """A generator takes 32 bits of its seed: all streams and their batches have to fit in there."""
    mixed = {
        _mixed(u << 31 | seed << 20 | i) for u in (0, 1) for seed in (0, 1, 2047) for i in (*range(500), 2**20 - 1)
    }
    assert len(mixed) == 2 * 3 * 501 and max(mixed) < 2**32


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_trained(name):
    torch.manual_seed(1)
    task = Recall(4, (2, 2), 8)
    model = SequenceModel(ModelSettings(RuleSettings(name), width=8, key=4, value=4, hidden=4), task)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for batch in itertools.islice(stream(task, 3, 0), 3):
        said = model(batch.inputs)
        assert said.shape == (3, 8, 4)
        loss = torch.nn.functional.cross_entropy(said[batch.asked], batch.targets[batch.asked])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert all(p.isfinite().all() for p in model.parameters())
    assert model.embed.weight.grad.abs().max() > 0


def settings(*overrides):
    return config.load(TrainSettings, None, [*TINY, *overrides])


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole = Trainer(settings())
    for _ in range(6):
        whole.advance()
    for stop in (1, 4):
        part = Trainer(settings())
        for _ in range(stop):
            part.advance()
        part.save(tmp_path / "c")
        torch.manual_seed(99)
        other = Trainer(settings())
        other.load(tmp_path / "c")
        for _ in range(6 - stop):
            other.advance()
        assert all(
            torch.equal(a, b) for a, b in zip(whole.model.state_dict().values(), other.model.state_dict().values())
        )
        assert other.evaluate() == whole.evaluate() and other.losses[-1] == whole.losses[-1] and other.done


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    Trainer(settings()).save(tmp_path / "c")
    with pytest.raises(CheckpointError, match="seed was 0, is 1; wanted the same settings"):
        Trainer(settings("seed=1")).load(tmp_path / "c")
    with pytest.raises(CheckpointError, match="no such file"):
        Trainer(settings()).load(tmp_path / "absent")


def test_a_tiny_task_is_learnt():
    tiny = ["options={vocabulary: 8, pairs: [2, 4], length: 16}", "steps=250", "batch=32", "rate=0.01"]
    small = ["model={width: 32, key: 16, value: 16, chunk: 16}", "evaluate_on=64", "warm_up=10"]
    trainer = Trainer(config.load(TrainSettings, None, [*tiny, *small]))
    assert max(trainer.evaluate().values()) < 0.4
    first = trainer.advance()
    while not trainer.done:
        last = trainer.advance()
    assert min(trainer.evaluate().values()) > 0.95 and last < 0.2 * first


def test_a_score_of_numbers_is_the_share_of_variance_explained():
    task = Regression(2, 10, 0.0, 0.0)

    class Oracle(torch.nn.Module):
        def __init__(self, wrong):
            super().__init__()
            self.wrong = torch.nn.Parameter(torch.tensor(wrong))

        def forward(self, inputs):
            return torch.cat([inputs[:, 1:, 2:], torch.zeros(len(inputs), 1, 1)], 1) * self.wrong

    assert score(Oracle(1.0), task, 64, 0) > 0.85 and score(Oracle(0.0), task, 64, 0) == 0


def test_the_rate_rises_and_falls():
    rates = [cosine(step, 10, 2) for step in range(10)]
    assert rates[1] == max(rates) == 1 and rates[0] == 1 / 2 and 0 < rates[9] < 0.1
    assert cosine(10, 10, 2, 0.01) == pytest.approx(0.01) and cosine(6, 10, 2, 0.01) == pytest.approx(0.505)


def test_the_command_writes_a_run_and_goes_on_with_it(tmp_path, capsys):
    out, text = tmp_path / "run", "\n".join(x.replace("=", ": ", 1) for x in TINY)
    (tmp_path / "tiny.yaml").write_text(text)
    command = ["train", str(tmp_path / "tiny.yaml"), "--out", str(out)]
    assert cli.main(command) == 0
    assert {x.name for x in out.iterdir()} == {"checkpoint.safetensors", "curve.svg", "run.yaml"}
    said = capsys.readouterr().err
    assert "gated_delta on recall" in said and "2 pairs" in said and "4 pairs" in said
    about = config.read(out / "run.yaml")
    assert about["run"]["step"] == 6 and set(about["run"]["scores"]) == {"2 pairs", "4 pairs"}
    assert "<polyline" in (out / "curve.svg").read_text()
    assert cli.main(command) == 2 and "holds a run" in capsys.readouterr().err
    assert cli.main(["train", "--out", str(out), "--resume"]) == 0
    assert cli.main([*command, "--overwrite", "--quiet"]) == 0


def test_errors_say_what_is_wanted(tmp_path, capsys):
    cases = {
        "task=nothing": "no task 'nothing'; known: recall",
        "model.rule.name=deltaa": "no rule 'deltaa'; known: frozen",
        "model.rule.options.speed=1": "speed is no option of gated_delta",
        "options.pairs=[1, 99]": "pairs are (1, 99)",
        "options.colour=1": "no key 'colour'",
        "steps=0": "steps is 0; wanted at least 1",
        "model.frame=3": "sequences have 256 tokens and frames 3",
        "model={rule: {name: titans}, chunk: 8}": "has no exact chunk form; wanted",
    }
    for text, said in cases.items():
        assert (
            cli.main(["train", "recall", text, "steps=1" if "steps" not in text else text, f"--out={tmp_path}/x"]) == 2
        )
        assert said in capsys.readouterr().err
    assert cli.main(["train", "copying", "model.frame=2"]) == 2 and "wanted 1: a frame sees" in capsys.readouterr().err
    assert cli.main(["train", "nowhere"]) == 2 and "nowhere: no such file" in capsys.readouterr().err
    assert cli.main(["train", "--resume"]) == 2 and "--resume without --out" in capsys.readouterr().err
    assert cli.main(["train"]) == 2


def test_a_signal_ends_it_with_everything_written(tmp_path):
    command = [
        sys.executable,
        "-m",
        "apps.cli",
        "train",
        "recall",
        "batch=2",
        "evaluate_every=1000",
        f"--out={tmp_path}",
    ]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not (tmp_path / "run.yaml").exists():
        time.sleep(0.05)
    time.sleep(1.0)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[1].decode()
    assert run.returncode == 143 and "everything is written; --resume goes on" in said
    about = config.read(tmp_path / "run.yaml")["run"]
    other = Trainer(config.build(TrainSettings, config.read(tmp_path / "run.yaml")["settings"], "run"))
    other.load(tmp_path / train.CHECKPOINT)
    assert other.step == about["step"] > 0


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_a_config_that_makes_a_model(task):
    path = CONFIGS / "train" / f"{task}.yaml"
    made = config.load(TrainSettings, path)
    assert made.task == task
    trainer = Trainer(config.load(TrainSettings, path, ["batch=2"]))
    assert trainer.advance() > 0 and json.dumps(config.plain(made))


def test_the_bench_trains_once_and_reads_from_then_on(tmp_path):
    size = Mqar(seeds=1, steps=2, batch=2, keys=(4,))
    run = replace(mqar.settings("delta", 4, 0, size), options=json.loads('{"vocabulary": 8, "pairs": [2, 4]}'))
    first = mqar.trained(run, tmp_path)
    stamp = (tmp_path / train.CHECKPOINT).stat().st_mtime_ns
    assert mqar.trained(run, tmp_path) == first and set(first) == {"2 pairs", "4 pairs"}
    assert stamp == (tmp_path / train.CHECKPOINT).stat().st_mtime_ns
    assert mqar.trained(replace(run, seed=1), tmp_path) != first


def test_every_model_of_the_bench_is_one_that_runs():
    for name in mqar.MODELS:
        trainer = Trainer(replace(mqar.settings(name, 8, 0, Mqar()), batch=2))
        assert trainer.advance() > 0
