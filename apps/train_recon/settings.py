"""What a training run of the network can be told; configs/train/tiny_recon.yaml holds ours."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from streammem.errors import ConfigError
from streammem.recon.config import ReconConfig

from .data import DataSettings


@dataclass(frozen=True)
class Stage:
    """A part of the curriculum.

    kind: what is learnt from what. "places": the encoder alone, where in the room each pixel's point is; "room": the
    whole network, single views, with one camera of the room as the world's axes; "scattered": sequences of views from
    anywhere, in the axes of the first; "walk": stretches of walks, likewise. The first three want one known room.
    """

    steps: int
    batch: int
    frames: int  # of each sequence
    kind: Literal["places", "room", "scattered", "walk"] = "walk"
    rate: float = 1e-3  # of AdamW at its beginning; it goes as a cosine to the next stage's, the last stage's to 0


KINDS = get_args(Stage.__dataclass_fields__["kind"].type)


@dataclass(frozen=True)
class ReconTrainSettings:
    """One training run.

    Raises: ConfigError where the numbers make no sense.
    """

    model: ReconConfig = field(default_factory=ReconConfig)
    data: DataSettings = field(default_factory=DataSettings)
    start: str | None = None  # a file of weights to begin with, None: from nothing
    shut: bool = False  # the pose memory is never written, so that what is remembered is in the state that rules gate
    stages: tuple[Stage, ...] = (Stage(100, 8, 4),)
    warm_up: int = 100  # steps at every stage's beginning over which the rate rises to what it should be
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
        if not (self.clip > 0 and self.warm_up >= 0 and self.noise >= 0 and self.weight_decay >= 0):
            raise ConfigError("clip is wanted above 0; warm_up, noise and weight_decay at least 0")
        for stage in self.stages:
            if stage.kind not in KINDS or stage.rate <= 0:
                raise ConfigError(f"{stage} has a kind other than {', '.join(KINDS)}, or a rate that is not above 0")
            if stage.kind in ("places", "room") and stage.frames != 1:
                raise ConfigError(f"{stage} takes {stage.frames} frames; wanted 1: {stage.kind} is of single views")
            if stage.kind != "walk" and not self.data.known:
                raise ConfigError(f"{stage} wants data.known: nothing else says where in a room a view is from")
        if min(self.evaluate_every, self.evaluate_on) < 1:
            raise ConfigError("evaluate_every and evaluate_on are wanted at least 1")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    def stage(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        return self.stages[self.place(step)[0]]

    def place(self, step: int) -> tuple[int, int]:
        """The index of the stage that a step belongs to, and the step within it."""
        for index, stage in enumerate(self.stages):
            if step < stage.steps:
                return index, step
            step -= stage.steps
        return len(self.stages) - 1, self.stages[-1].steps
