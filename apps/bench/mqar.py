"""Multi-query associative recall: one small model for each rule, trained alike, and how many pairs it recalls.

Runs are kept in the folder of the bench and gone on with: a bench that was interrupted trains nothing twice.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean

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

LONGER = ("hebbian", "titans")  # which 500 steps do not see to the end: trained for twice as many, too
RUNS = {name: (name, 1) for name in MODELS} | {f"{name}, twice the steps": (name, 2) for name in LONGER}


def settings(name: str, key: int, seed: int, size: Mqar, longer: int = 1) -> TrainSettings:
    """The run of a rule at a width of keys and values: all alike but for the rule and how its tokens are grouped."""
    model, steps = replace(MODELS[name], key=key, value=key), size.steps * longer
    task = {"pairs": (4, 64)}  # few pairs are learnt first, and lead to many
    sizes = {"steps": steps, "batch": size.batch, "rate": size.rate, "evaluate_every": max(1, steps // 2)}
    return TrainSettings("recall", task, model=model, seed=seed, **sizes)


def parity(setup: Setup) -> str | None:
    """A model that takes chunks says what it says step by step, where a solver is given the time to finish."""
    task = Recall()
    inputs = next(stream(task, 2, 0)).inputs
    for name in (name for name, model in MODELS.items() if model.chunk):
        torch.manual_seed(0)
        model = SequenceModel(_finished(MODELS[name]), task).double()
        with torch.no_grad():
            fast = model(inputs)
            model.settings = replace(model.settings, chunk=None)
            apart = float((fast - model(inputs)).abs().max())
        if not apart <= AGREES:
            return f"chunks of {name} are {apart:.1e} from its steps"
    return None


def measure(setup: Setup) -> Iterator[Measured]:
    """Accuracy by width, rule and number of pairs: mean over the seeds, beside their lowest."""
    size, found = setup.workload.mqar, {}
    held = size == Mqar()  # a shorter run is not held to what the whole one reaches
    for seed in range(size.seeds):
        for key in size.keys:
            for run, (name, longer) in RUNS.items():
                out = setup.out / "mqar" / f"{name}-x{longer}-{key}-{seed}"
                for level, score in trained(settings(name, key, seed, size, longer), out).items():
                    found.setdefault((key, run, level), []).append(score)
    for (key, name, level), scores in found.items():
        target = _target(name, key, int(level.split()[0])) if held else None
        label = f"lowest of {size.seeds} seeds"
        yield Measured(f"width {key}, {name}, {level}", "", mean(scores), min(scores), label, target)


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


def _target(name: str, key: int, pairs: int):
    """As many pairs as the memory has keys are recalled; by a Hebbian one, which mixes them up, not in as many steps.

    What has its figure at twice the steps is held to it there.
    """
    if name == "hebbian":
        return at_most(0.95, "< 0.95: falls short") if pairs >= key else None
    if name in LONGER or name.startswith("hebbian"):
        return None
    return at_least(0.95) if pairs <= key else None


MQAR = Case(parity, measure)
