"""What a training run of the network can be told; configs/train/tiny_recon.yaml holds ours."""

from dataclasses import dataclass, field

from streammem.errors import ConfigError
from streammem.recon.config import ReconConfig

from .data import DataSettings


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum."""

    steps: int
    batch: int
    frames: int  # of each sequence


@dataclass(frozen=True)
class ReconTrainSettings:
    """One training run.

    Raises: ConfigError where the numbers make no sense.
    """

    model: ReconConfig = field(default_factory=ReconConfig)
    data: DataSettings = field(default_factory=DataSettings)
    start: str | None = None  # a file of weights to begin with, None: from nothing
    stages: tuple[Stage, ...] = (Stage(100, 8, 4),)
    rate: float = 1e-3  # of AdamW, at its highest
    warm_up: int = 100  # steps to it; from there it falls as a cosine to 0
    weight_decay: float = 0.05
    clip: float = 1.0  # norm of the gradient, at most
    shown: int = 2  # frames of a sequence whose maps are compared; poses are all
    noise: float = 0.02  # standard deviation added to images in [-1, 1]
    evaluate_every: int = 100  # steps, on rooms that are not trained on; the checkpoint is written then
    evaluate_on: int = 32  # sequences of data.frames frames
    seed: int = 0

    def __post_init__(self):
        if not self.stages or any(min(s.steps, s.batch, s.frames) < 1 for s in self.stages) or self.shown < 1:
            raise ConfigError("stages are missing or empty; wanted steps, batch and frames of at least 1 each")
        longest = max(s.frames for s in self.stages)
        if longest > self.data.frames:
            raise ConfigError(f"a stage takes {longest} frames, data.frames is {self.data.frames}; wanted no more")
        if not (self.rate > 0 and self.clip > 0 and self.warm_up >= 0 and self.noise >= 0 and self.weight_decay >= 0):
            raise ConfigError("rate and clip are wanted above 0; warm_up, noise and weight_decay at least 0")
        if min(self.evaluate_every, self.evaluate_on) < 1:
            raise ConfigError("evaluate_every and evaluate_on are wanted at least 1")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        for stage in self.stages:
            if step < stage.steps:
                return stage
            step -= stage.steps
        return self.stages[-1]
