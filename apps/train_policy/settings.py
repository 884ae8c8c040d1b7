"""What a training run of a policy can be told; configs/train/*policy*.yaml hold ours."""

from dataclasses import dataclass, field
from typing import Literal

from streammem.errors import ConfigError
from streammem.policy.gate import GATES
from streammem.policy.tasks.trained import Recipe

SEEDS, GROUPS, STAGES = 1 << 12, 1 << 10, 1 << 8  # at most; a random generator keeps 32 bits of what it is seeded with


@dataclass(frozen=True)
class PolicySettings:
    """What acts. kind: our memory, or a baseline; each reads the settings that are its own.

    gate: of a baseline, by name; none keeps all. given is the confidence that comes with the observation.

    Raises: ConfigError for sizes that make no sense, or an unknown gate.
    """

    kind: Literal["memory", "memoryless", "stack", "gru", "attention"] = "memory"
    recipe: Recipe = field(default_factory=Recipe)
    chunk: int | None = 64  # steps of a memory at once, where its rule has a chunk form
    gate: str = "none"
    frames: int = 8  # of a stack
    slots: int = 256  # of attention: what it can look back to
    layers: int = 1  # of attention

    def __post_init__(self):
        for name in ("frames", "slots", "layers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; wanted at least 1")
        if self.gate != "none" and self.gate not in GATES:
            raise ConfigError(f"no gate {self.gate!r}; known: none, {', '.join(GATES)}")


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum: episodes that are recorded for it, and how long it lasts.

    groups: how many recordings of `batch` episodes each, every one with its own number of items and delay. changed: at
    most that share of the items is taught again. false_confidence: as in `RecallTask`. simulated: share of the groups
    that are recorded with the arm in MuJoCo, which needs the extra [robot]; the others with its kinematics.
    """

    steps: int
    groups: int = 30
    items: tuple[int, int] = (1, 8)  # fewest and most
    delay: tuple[int, int] = (10, 100)  # shortest and longest, steps
    changed: float = 0.0
    false_confidence: float = 0.0
    simulated: float = 0.0
    segment: int = 512  # steps through which gradients go; the state goes on
    batch: int = 16

    def __post_init__(self):
        if min(self.steps, self.groups, self.segment, self.batch) < 1:
            raise ConfigError(f"{self} makes no sense; wanted at least 1 step, group, batch and segment")
        if self.groups > GROUPS or not (0 <= self.changed <= 1 and 0 <= self.simulated <= 1):
            raise ConfigError(f"{self} makes no sense; wanted at most {GROUPS} groups; changed, simulated from 0 to 1")
        for name, least in (("items", 1), ("delay", 0)):
            low, high = getattr(self, name)
            if not least <= low <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; wanted {least} <= lowest <= highest")


@dataclass(frozen=True)
class PolicyTrainSettings:
    """One training run.

    Raises: ConfigError where the numbers make no sense.
    """

    policy: PolicySettings = field(default_factory=PolicySettings)
    mode: Literal["place", "weigh", "search", "imitate"] = "place"
    stages: tuple[Stage, ...] = (Stage(800),)
    recorded: int = 64  # episodes of a group
    rate: float = 3e-3  # of AdamW, at its highest
    warm_up: int = 30  # steps to it; from there it falls as a cosine to a hundredth
    weight_decay: float = 1e-4
    clip: float = 1.0  # norm of the gradient, at most
    gate_rate: float = 1.0  # times the learning rate, of what is learned in the gate
    write_cost: float = 0.0  # of a gate's mean -log(1 - openness)
    cost_ramp: tuple[float, float] = (0.2, 0.4)  # shares of the run at which the cost begins, and is whole
    doublings: int = 0  # in training the work is done 2^doublings times, see `repeat`
    doublings_ramp: tuple[float, float] = (0.1, 0.4)  # shares of the run at which that begins, and is whole
    threshold_ramp: tuple[float, float] = (0.0, 0.0)  # and of a hard gate's threshold; (0, 0): always whole
    evaluate_every: int = 200  # steps; the checkpoint is written then
    evaluate_on: int = 64  # episodes, at each delay of
    evaluate_delay: tuple[int, ...] = (50, 500)
    seed: int = 0

    def __post_init__(self):
        if not (0 <= self.seed < SEEDS and len(self.stages) <= STAGES):
            told = f"seed is {self.seed}, {len(self.stages)} stages"
            raise ConfigError(f"{told}; wanted 0 to {SEEDS - 1}, and at most {STAGES}")
        if not self.stages or any(stage.batch > self.recorded for stage in self.stages):
            raise ConfigError(f"stages take more than the {self.recorded} episodes of a group; wanted no more")
        if not (self.rate > 0 and self.clip > 0 and self.warm_up >= 0 and self.weight_decay >= 0):
            raise ConfigError("rate and clip are wanted above 0; warm_up and weight_decay at least 0")
        for name in ("cost_ramp", "doublings_ramp"):
            start, whole = getattr(self, name)
            if not 0 <= start < whole <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; wanted 0 <= begin < whole <= 1")
        if not (self.threshold_ramp == (0, 0) or 0 <= self.threshold_ramp[0] < self.threshold_ramp[1] <= 1):
            raise ConfigError(f"threshold_ramp is {self.threshold_ramp}; wanted 0 <= begin < whole <= 1, or [0, 0]")
        if self.threshold_ramp != (0, 0) and (self.policy.kind != "memory" or self.policy.recipe.gate != "hard"):
            raise ConfigError(f"threshold_ramp is {self.threshold_ramp} and the gate not hard; wanted [0, 0]")
        if not (self.write_cost >= 0 and self.doublings >= 0 and self.gate_rate > 0):
            raise ConfigError("wanted write_cost and doublings of at least 0, gate_rate above 0")
        if self.doublings and self.policy.kind != "memory":
            raise ConfigError(f"doublings is {self.doublings} for {self.policy.kind}; wanted 0: only a memory can")
        if min(self.evaluate_every, self.evaluate_on) < 1:
            raise ConfigError("evaluate_every and evaluate_on are wanted at least 1")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> int:
        """Which stage a step belongs to."""
        for i, stage in enumerate(self.stages):
            if step < stage.steps:
                return i
            step -= stage.steps
        return len(self.stages) - 1

    def write_cost_at(self, step: int) -> float:
        """What a write costs at that step: nothing at first, or nothing is ever learned; then more and more."""
        return self.write_cost * self._along(step, self.cost_ramp)

    def doublings_at(self, step: int) -> int:
        """How often the work is doubled at that step: a curriculum over the delay."""
        return round(self.doublings * self._along(step, self.doublings_ramp))

    def threshold_at(self, step: int) -> float:
        """Share of the threshold that holds at that step: the gate is soft at first, then hard."""
        return 1.0 if self.threshold_ramp == (0, 0) else self._along(step, self.threshold_ramp)

    def _along(self, step: int, ramp: tuple[float, float]) -> float:
        """0 before the ramp, 1 after it, linear between."""
        return min(1.0, max(0.0, (step / self.steps - ramp[0]) / (ramp[1] - ramp[0])))
