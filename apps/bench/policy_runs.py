"""The policies that the bench compares: what each is, how it is trained, and the runs that are kept."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from streammem import config
from streammem.errors import CheckpointError
from streammem.policy.tasks.trained import Recipe

from ..arguments import found
from ..stop import Stop
from ..train_policy import CHECKPOINT, train
from ..train_policy.model import Contender
from ..train_policy.settings import PolicySettings, PolicyTrainSettings, Stage
from ..train_policy.trainer import PolicyTrainer

PLAIN = {"doublings": 0, "write_cost": 0.0, "gate_rate": 1.0, "threshold_ramp": (0.0, 0.0)}
SHORT = Stage(800)  # 1 to 8 items, delays of 10 to 100: no sequence is longer than 365 steps


class Run(NamedTuple):
    """How a policy comes about.

    policy: what it is; None as the config says. base: the config in configs/train. first: only its first stage.
    differs: other settings of the run.
    """

    policy: PolicySettings | None = None
    base: str = "policy"
    first: bool = False
    differs: dict = {}

    def settings(self, mode: str, seed: int, longer: float, simulated: float) -> PolicyTrainSettings:
        """The run; longer: times the steps of every stage. simulated: share of the demonstrations, to place.

        To weigh there is one kind of arm, see policy_weigh.yaml, which stands for policy.yaml there.
        """
        weigh = mode == "weigh"
        base, simulated = ("policy_weigh" if weigh and self.base == "policy" else self.base), simulated * (not weigh)
        run = config.load(PolicyTrainSettings, found(base, "train"))
        stages = self.differs.get("stages", run.stages[:1] if self.first else run.stages)
        stages = tuple(replace(x, steps=max(1, round(longer * x.steps)), simulated=simulated) for x in stages)
        options = self.differs | {"mode": mode, "seed": seed, "stages": stages, "policy": self.policy or run.policy}
        return replace(run, **options, evaluate_every=10**6, evaluate_delay=(50,))


def given(rule: str, chunk: int | None = 64, gate: str = "given", **options) -> Run:
    """Another rule or gate in the episodes of policy.yaml."""
    return Run(PolicySettings(recipe=Recipe(rule, gate=gate, key=48, **options), chunk=chunk), differs=PLAIN)


def learned(gate: str, chunk: int | None = 64, options: dict | None = None, **differs) -> Run:
    """Another way to a learned gate, in the first stage of policy_learned.yaml; no trick but a write cost."""
    policy = PolicySettings(recipe=Recipe("delta", gate=gate, gate_options=options or {}, key=48), chunk=chunk)
    plain = {"doublings": 0, "threshold_ramp": (0.0, 0.0)}
    return Run(policy, "policy_learned", True, plain | differs)


def baseline(**policy) -> Run:
    """Not ours: in episodes of few things."""
    return Run(PolicySettings(**policy), differs=PLAIN | {"stages": (SHORT,)})


RAMP = (0.5, 0.6)
POLICIES: dict[str, Run] = {
    "delta": Run(),
    "learned gate": Run(base="policy_learned"),
    "delta, given gate": given("delta"),
    "delta, confirmed gate": given("delta", gate="confirmed"),
    "gated_delta": given("gated_delta"),
    "kalman": given("kalman", None, rule_options={"observation_variance": 0.01}),
    "mesa": given("mesa", rule_options={"ridge": 0.01}),
    "titans": given("titans", None, most=0.05),
    "yaad": given("yaad", None, most=0.05),
    "soft gate": learned("soft", write_cost=0.0),
    "soft gate, write cost": learned("soft"),
    "hard gate": learned("hard"),
    "hard concrete gate": learned("hard_concrete"),
    "evidence gate": learned("evidence"),
    "surprise gate": learned("surprise", None),
    "soft gate, work repeated": learned("soft", doublings=7),
    "hard concrete gate, work repeated": learned("hard_concrete", doublings=7),
    "soft then hard gate": learned("hard", options={"through": False}, threshold_ramp=RAMP),
    "soft then hard gate, seen through, work repeated": learned("hard", threshold_ramp=RAMP, doublings=7),
    "soft then hard gate, work repeated": learned("hard", options={"through": False}, threshold_ramp=RAMP, doublings=7),
    "memoryless": baseline(kind="memoryless"),
    "8 frames": baseline(kind="stack", frames=8),
    "GRU": baseline(kind="gru"),
    "window 64": baseline(kind="attention", slots=64, layers=2),
    "window 256": baseline(kind="attention", slots=256, layers=2),
    "window 1024": baseline(kind="attention", slots=1024, layers=2),
    "full context": baseline(kind="attention", slots=8192),
    "64 frames, given gate": baseline(kind="stack", gate="given", frames=64),
    "GRU, given gate": baseline(kind="gru", gate="given"),
    "event buffer": baseline(kind="attention", gate="given", slots=256),
}
BASELINES = tuple(name for name, run in POLICIES.items() if run.policy and run.policy.kind != "memory")


def what(name: str) -> PolicySettings:
    """What a policy is."""
    return POLICIES[name].settings("place", 0, 1.0, 0.0).policy


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


def seeds(name: str, mode: str, count: int, longer: float, simulated: float, out: Path) -> Iterator[Contender]:
    """The policy of each seed."""
    for seed in range(count):
        place = out / "policy" / f"{name.replace(', ', '-').replace(' ', '_')}-{mode}-{seed}"
        yield trained(POLICIES[name].settings(mode, seed, longer, simulated), place)
