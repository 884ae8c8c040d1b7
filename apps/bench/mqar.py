"""Multi-query associative recall: one small model for each rule, trained alike, and how many pairs it recalls.

Runs are kept in the folder of the bench and gone on with: a bench that was interrupted trains nothing twice.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, pstdev
from time import time

import torch

from streammem.errors import CheckpointError

from ..stop import Stop
from ..train import CHECKPOINT, train
from ..train.model import SequenceModel
from ..train.settings import ModelSettings, RuleSettings, TrainSettings
from ..train.tasks import Recall, stream
from ..train.trainer import Trainer
from .case import Case, Setup
from .figure import Measured, at_least, at_most
from .workload import Mqar

AGREES = 1e-6  # of the scores of a model that steps and one that takes chunks, in float64
CHUNK = 64
MODELS = {  # of each rule; a rate is divided by the tokens of a frame, hence the high ones
    "hebbian": ModelSettings(RuleSettings("hebbian"), chunk=CHUNK),
    "delta": ModelSettings(RuleSettings("delta"), chunk=CHUNK),
    "gated_delta": ModelSettings(RuleSettings("gated_delta"), chunk=CHUNK),
    "mesa": ModelSettings(RuleSettings("mesa", {"ridge": 0.1, "iterations": 16}), chunk=CHUNK),
    "kalman": ModelSettings(RuleSettings("kalman", {"observation_variance": 0.1}), frame=16, most=16.0),
    "titans": ModelSettings(RuleSettings("titans", {"memory": "matrix"}), frame=8, most=2.0),
}


def settings(name: str, seed: int, size: Mqar) -> TrainSettings:
    """The run of a rule: all alike but for the rule and how its tokens are grouped."""
    model = replace(MODELS[name], key=size.key, value=size.key)
    every = max(1, size.steps // 10)
    return TrainSettings(
        "recall", model=model, steps=size.steps, batch=size.batch, rate=size.rate, evaluate_every=every, seed=seed
    )


def parity(setup: Setup) -> str | None:
    """A model that takes chunks says what it says step by step, where a solver is given the time to finish."""
    task, size = Recall(), setup.workload.mqar
    inputs = next(stream(task, 2, 0)).inputs
    for name in (name for name, model in MODELS.items() if model.chunk):
        torch.manual_seed(0)
        model = SequenceModel(replace(_finished(MODELS[name]), key=size.key, value=size.key), task).double()
        with torch.no_grad():
            fast = model(inputs)
            model.settings = replace(model.settings, chunk=None)
            apart = float((fast - model(inputs)).abs().max())
        if not apart <= AGREES:
            return f"chunks of {name} are {apart:.1e} from its steps"
    return None


def measure(setup: Setup) -> Iterator[Measured]:
    """Accuracy by rule and number of pairs: mean over the seeds, beside their standard deviation."""
    size = setup.workload.mqar
    held = size == Mqar()  # a shorter run is not held to what the whole one reaches
    for name in MODELS:
        started, scores = time(), []
        for seed in range(size.seeds):
            scores.append(trained(settings(name, seed, size), setup.out / "mqar" / f"{name}-{seed}"))
        for level in scores[0]:
            found = [score[level] for score in scores]
            target = _target(name, level) if held else None
            yield Measured(f"{name}, {level}", "", mean(found), pstdev(found), f"sd of {size.seeds} seeds", target)
        yield Measured(f"{name}, this time", "s", time() - started)


def trained(run: TrainSettings, out: Path) -> dict[str, float]:
    """Scores at the end of a run, which is begun, gone on with, or only read; one of other settings is begun anew."""
    trainer = Trainer(run)
    try:
        trainer.load(out / CHECKPOINT)
    except CheckpointError:
        trainer = Trainer(run)
    out.mkdir(parents=True, exist_ok=True)
    with Stop() as stop:
        train(trainer, out, stop, quiet=True)
    if stop.signal:
        raise KeyboardInterrupt
    return trainer.scores[-1][1]


def _finished(model: ModelSettings) -> ModelSettings:
    """With twice as many iterations as there are channels: conjugate gradients cut short magnify rounding."""
    if "iterations" not in model.rule.options:
        return model
    return replace(model, rule=replace(model.rule, options=model.rule.options | {"iterations": 2 * model.key}))


def _target(name: str, level: str):
    pairs = int(level.split()[0])
    if name == "hebbian":
        return at_most(0.95, "< 0.95: falls short") if pairs == 64 else None
    return at_least(0.95) if pairs <= 16 else None


MQAR = Case(parity, measure)
