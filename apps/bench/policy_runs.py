"""The policies that the bench compares: what each is, how it is trained, and the runs that are kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from streammem.errors import CheckpointError
from streammem.policy.tasks.trained import Recipe

from ..stop import Stop
from ..train_policy import CHECKPOINT, train
from ..train_policy.model import Contender
from ..train_policy.settings import PolicySettings, PolicyTrainSettings, Stage
from ..train_policy.trainer import PolicyTrainer

CHUNK = 64
SHORT = Stage(800)  # 1 to 8 items, delays of 10 to 100: no sequence is longer than 365 steps
MANY = (replace(SHORT, steps=600), Stage(600, items=(6, 22), delay=(10, 60), segment=1024))
COST = {"write_cost": 0.003, "gate_rate": 3.0}
REPEATED = COST | {"doublings": 7}  # work as if of up to 12,800 steps


def ours(rule: str = "delta", gate: str = "given", chunk: int | None = CHUNK, **options) -> PolicySettings:
    """A memory policy."""
    return PolicySettings(recipe=Recipe(rule, gate=gate, **options), chunk=chunk)


POLICIES: dict[str, tuple[PolicySettings, dict]] = {  # name: (what it is, what differs in its training)
    "delta": (ours(), {}),
    "gated_delta": (ours("gated_delta"), {}),
    "kalman": (ours("kalman", chunk=None, rule_options={"observation_variance": 0.01}), {}),
    "mesa": (ours("mesa", rule_options={"ridge": 0.01}), {}),
    "titans": (ours("titans", chunk=None, most=0.05), {}),
    "yaad": (ours("yaad", chunk=None, most=0.5), {}),
    "delta, many items": (ours(), {"stages": MANY}),
    "kalman, many items": (ours("kalman", chunk=None, rule_options={"observation_variance": 0.01}), {"stages": MANY}),
    "soft gate": (ours(gate="soft"), {}),
    "hard gate": (ours(gate="hard"), COST),
    "hard concrete gate": (ours(gate="hard_concrete"), COST),
    "evidence gate": (ours(gate="evidence"), COST),
    "soft gate, work repeated": (ours(gate="soft"), REPEATED),
    "hard gate, work repeated": (ours(gate="hard", gate_options={"threshold": 0.05}), REPEATED),
    "hard concrete gate, work repeated": (ours(gate="hard_concrete"), REPEATED),
    "memoryless": (PolicySettings("memoryless"), {}),
    "8 frames": (PolicySettings("stack", frames=8), {}),
    "GRU": (PolicySettings("gru"), {}),
    "window 64": (PolicySettings("attention", slots=64, layers=2), {}),
    "window 256": (PolicySettings("attention", slots=256, layers=2), {}),
    "window 1024": (PolicySettings("attention", slots=1024, layers=2), {}),
    "full context": (PolicySettings("attention", slots=8192), {}),
    "64 frames, given gate": (PolicySettings("stack", gate="given", frames=64), {}),
    "GRU, given gate": (PolicySettings("gru", gate="given"), {}),
    "event buffer": (PolicySettings("attention", gate="given", slots=256), {}),
}
BASELINES = tuple(name for name, (told, _) in POLICIES.items() if told.kind != "memory")


def settings(name: str, mode: str, seed: int, longer: float) -> PolicyTrainSettings:
    """The run of a policy; longer: times the steps of every stage."""
    policy, differs = POLICIES[name]
    stages = tuple(
        replace(stage, steps=max(1, round(longer * stage.steps))) for stage in differs.get("stages", (SHORT,))
    )
    rest = {key: value for key, value in differs.items() if key != "stages"}
    return PolicyTrainSettings(policy, mode, stages, evaluate_every=10**6, evaluate_delay=(50,), seed=seed, **rest)


def trained(run: PolicyTrainSettings, out: Path) -> Contender:
    """The policy at the end of a run, which is begun, gone on with, or only read; one of other settings begins anew."""
    trainer = PolicyTrainer(run)
    try:
        trainer.load(out / CHECKPOINT)
    except CheckpointError:
        trainer = PolicyTrainer(run)
    if not trainer.done:
        out.mkdir(parents=True, exist_ok=True)
        with Stop() as stop:
            train(trainer, out, stop)
        if stop.signal:
            raise KeyboardInterrupt
    return trainer.model.eval()


def seeds(name: str, mode: str, count: int, longer: float, out: Path) -> Iterator[Contender]:
    """The policy of each seed."""
    for seed in range(count):
        place = out / "policy" / f"{name.replace(', ', '-').replace(' ', '_')}-{mode}-{seed}"
        yield trained(settings(name, mode, seed, longer), place)
