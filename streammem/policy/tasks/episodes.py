"""Episodes on disk, and how they are streamed into training that carries its state.

The file is a plain `.npz`, all episodes one after the other along the first axis of S steps in all:

    observation [S, D] float32      action [S, A] float32, what should have been done
    confidence  [S]    float32      given confidence, 0 to 1; nobody needs to use it
    weight      [S]    float32      of the step in the loss; 0: context only, it writes but does not count
    time_s      [S]    float64      since the episode began
    start       [E + 1] int64       first step of each episode, and S
    about       text                JSON of whatever the recorder wished to say
"""

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError, SourceError
from streammem.policy.tasks.imitate import ImitateTask
from streammem.policy.tasks.recall import RecallTask
from streammem.policy.tasks.search import SearchTask

Task = RecallTask | SearchTask | ImitateTask
FIELDS = ("observation", "action", "confidence", "weight", "time_s")


class Episodes(NamedTuple):
    """Whole episodes, one after the other."""

    observation: Tensor  # [S, D]
    action: Tensor  # [S, A]
    confidence: Tensor  # [S]
    weight: Tensor  # [S]
    time_s: Tensor  # [S] float64
    start: Tensor  # [E + 1] int64

    @property
    def lengths(self) -> Tensor:
        """Steps of each, [E]."""
        return self.start.diff()

    def save(self, path, about: dict | None = None) -> None:
        """Writes the file that this module's first lines describe."""
        arrays = {name: x.numpy() for name, x in self._asdict().items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.savez_compressed(file, about=json.dumps(about or {}), **arrays)


def joined(parts: Sequence[Episodes]) -> Episodes:
    """The episodes of all of them, in order."""
    steps = [torch.cat([getattr(part, name) for part in parts]) for name in FIELDS]
    lengths = torch.cat([part.lengths for part in parts])
    return Episodes(*steps, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))


def load(path) -> Episodes:
    """Reads such a file.

    Raises: SourceError where it is missing, no such file, or its parts do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            parts = {name: torch.from_numpy(file[name]) for name in Episodes._fields}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path}: {error}; wanted an .npz with {', '.join(Episodes._fields)}") from error
    steps, start = len(parts["observation"]), parts["start"]
    whole = start.ndim == 1 and len(start) > 1 and start[0] == 0 and start[-1] == steps and (start.diff() > 0).all()
    if not whole or any(len(parts[name]) != steps for name in FIELDS):
        told = {name: list(x.shape) for name, x in parts.items()}
        raise SourceError(f"{path}: parts do not fit: {told}; wanted one length, and starts that rise from 0 to it")
    return Episodes(**parts)


def record(task: Task, episodes: int, seed: int, noise: float = 0.25, arm=None) -> Episodes:
    """Demonstrations of the expert, who is disturbed and puts it right: actions are clean, motions are not.

    noise: standard deviation of what is added to the actions, correlated over some ten steps.

    Source: noise in demonstrations, Laskey et al. 2017, arXiv:1703.09327.
    """
    recall, g = task.begun(episodes, seed, arm), torch.Generator().manual_seed(seed ^ (1 << 30))
    seen, rows, drift = recall.reset(), [], torch.zeros(episodes, 3)
    while not recall.done:
        action = recall.expert()
        weight = torch.as_tensor(seen.weight).expand(episodes)
        rows.append((seen.observation, action, seen.confidence, weight, seen.time_s))
        drift = 0.9 * drift + 0.44 * noise * torch.randn(episodes, 3, generator=g)
        seen = recall.step(action + drift)
    steps = [torch.stack(part, 1).flatten(0, 1) for part in zip(*rows)]
    return Episodes(*steps, torch.arange(episodes + 1) * len(rows))


class Segment(NamedTuple):
    """T steps of B lanes; the state goes on from segment to segment."""

    observation: Tensor  # [B, T, D]
    action: Tensor  # [B, T, A]
    confidence: Tensor  # [B, T]
    weight: Tensor  # [B, T]
    time_s: Tensor  # [B, T]
    reset: Tensor  # [B, T] bool: an episode begins at this step


@dataclass(frozen=True)
class EpisodeStream:
    """Segments of at most `steps` steps of `batch` lanes, for ever, each lane playing whole episodes.

    packed: lanes play one episode after the other without a gap, so that episodes begin in the middle of segments; else
    each turn takes `batch` episodes of one length, begins them together, and its last segment is as short as it must.
    The order depends on the seed alone.

    Raises: ConfigError where no length has `batch` episodes.
    """

    episodes: Episodes
    batch: int
    steps: int
    seed: int = 0
    packed: bool = False

    def __post_init__(self):
        if self.batch < 1 or self.steps < 1:
            raise ConfigError(f"batch is {self.batch}, steps {self.steps}; wanted at least 1")
        most = self.episodes.lengths.bincount().max().item()
        if not self.packed and most < self.batch:
            raise ConfigError(f"no length has {self.batch} episodes, at most {most}; wanted a smaller batch, or packed")

    def __iter__(self) -> Iterator[Segment]:
        g = torch.Generator().manual_seed(self.seed)
        return self._packed(g) if self.packed else self._together(g)

    def turn(self, g: torch.Generator) -> Iterator[Segment]:
        """The segments of `batch` episodes of one length, drawn by g."""
        lengths = self.episodes.lengths
        enough = lengths.bincount() >= self.batch
        able = enough[lengths].nonzero()[:, 0]
        length = lengths[able[torch.randint(len(able), (), generator=g)]]
        same = (lengths == length).nonzero()[:, 0]
        chosen = same[torch.randperm(len(same), generator=g)[: self.batch]]
        index = self.episodes.start[chosen][:, None] + torch.arange(length)
        reset = (torch.arange(length) == 0).expand(self.batch, -1)
        for at in range(0, int(length), self.steps):
            yield self._segment(index[:, at : at + self.steps], reset[:, at : at + self.steps])

    def _together(self, g: torch.Generator) -> Iterator[Segment]:
        while True:
            yield from self.turn(g)

    def _packed(self, g: torch.Generator) -> Iterator[Segment]:
        lanes = [
            self._lane(torch.Generator().manual_seed(int(torch.randint(2**31, (), generator=g))))
            for _ in range(self.batch)
        ]
        while True:
            index = torch.tensor([[next(lane) for _ in range(self.steps)] for lane in lanes])
            yield self._segment(index, torch.isin(index, self.episodes.start))

    def _lane(self, g: torch.Generator) -> Iterator[int]:
        start = self.episodes.start.tolist()
        while True:
            for i in torch.randperm(len(start) - 1, generator=g).tolist():
                yield from range(start[i], start[i + 1])

    def _segment(self, index: Tensor, reset: Tensor) -> Segment:
        return Segment(*(getattr(self.episodes, name)[index] for name in FIELDS), reset)
