"""Sequences of random rooms, rendered once and kept on the disk."""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import trange

from streammem.errors import ConfigError
from streammem.sources.rooms import WALKS, RandomRoom

STRIDE = 4  # frames at most between two that are drawn
LEAST_RAD = 0.4  # that some wanderers never turn further than
UNSEEN = 1_000_000  # seeds from here on are for tests


@dataclass(frozen=True)
class DataSettings:
    """What is rendered.

    Raises: ConfigError where a count is below 1, or the walks' share is none.
    """

    sequences: int = 3000
    frames: int = 16
    height: int = 48
    width: int = 64
    wandering: float = 0.6  # share of sequences whose camera wanders; the others go round
    known: bool = False  # all in the room of `synthetic`, instead of each in a room of its own
    ahead_rad: float | None = None  # walks alone whose camera never turns further from the x axis; None: all
    seed: int = 0  # of the first sequence

    def __post_init__(self):
        if min(self.sequences, self.frames, self.height, self.width) < 1 or not 0 <= self.wandering <= 1:
            raise ConfigError(f"data are {self}; wanted counts of at least 1 and a share within 0..1")
        if self.ahead_rad is not None and self.wandering < 1:
            raise ConfigError(f"data are {self}; wanted wandering: 1, as who goes round does not look ahead")


class Clips(NamedTuple):
    """Sequences side by side."""

    image: Tensor  # [B, T, 3, h, w] float32, in [-1, 1]
    depth: Tensor  # [B, T, h, w] float32, metres
    world_from_camera: Tensor  # [B, T, 4, 4] float32
    intrinsics: Tensor  # [3, 3]


class Rooms:
    """The rendered sequences, made on first use in `folder`.

    Memory-mapped: a process holds what it reads.
    """

    def __init__(self, settings: DataSettings, folder: Path):
        self.settings = settings
        self.folder = folder / hashlib.sha256(json.dumps(asdict(settings)).encode()).hexdigest()[:12]
        if not (self.folder / "whole").is_file():
            _render(settings, self.folder)
        self.images, self.depths, self.poses = (
            np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ("image", "depth", "pose")
        )
        self.intrinsics = RandomRoom(settings.seed, settings.height, settings.width).intrinsics

    def scattered(self, g: torch.Generator, batch: int, frames: int) -> Clips:
        """Views from anywhere, side by side: nothing but a room that all share holds them together."""
        clips = self.draw(g, batch * frames, 1)
        return Clips(*(x[:, 0].unflatten(0, (batch, frames)) for x in clips[:3]), clips.intrinsics)

    def draw(self, g: torch.Generator, batch: int, frames: int) -> Clips:
        """Random sequences and random stretches of them at random strides, half of them backwards."""
        rows = torch.randint(self.settings.sequences, (batch,), generator=g).tolist()
        longest = min(STRIDE, (self.settings.frames - 1) // max(1, frames - 1))
        strides = torch.randint(1, longest + 1, (batch,), generator=g).tolist()
        spans = [stride * (frames - 1) + 1 for stride in strides]
        starts = [int(torch.randint(self.settings.frames - span + 1, (), generator=g)) for span in spans]
        backwards = (torch.rand(batch, generator=g) < 0.5).tolist()
        cuts = [slice(start, start + span, stride) for start, span, stride in zip(starts, spans, strides)]

        def picked(of: np.ndarray) -> Tensor:
            parts = [torch.from_numpy(of[row, cut].astype(np.float32)) for row, cut in zip(rows, cuts)]
            return torch.stack([part.flip(0) if back else part for part, back in zip(parts, backwards)])

        return Clips(picked(self.images) / 127.5 - 1, picked(self.depths), picked(self.poses), self.intrinsics)


def _render(settings: DataSettings, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    n, t, h, w = settings.sequences, settings.frames, settings.height, settings.width
    images, depths, poses = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, shape)
        for name, kind, shape in (
            ("image", np.uint8, (n, t, 3, h, w)),
            ("depth", np.float16, (n, t, h, w)),
            ("pose", np.float32, (n, t, 4, 4)),
        )
    )
    wandering = round(settings.wandering * n)
    walks = itertools.chain.from_iterable(
        itertools.islice(seeds(settings.seed, walk, t, settings.ahead_rad), count)
        for walk, count in zip(WALKS, (wandering, n - wandering))
    )
    for row, (seed, walk) in zip(trange(n, desc="rooms", mininterval=10), walks):
        clip = rendered(seed, t, h, w, walk, settings.known)
        images[row] = (clip.image[0] * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
        depths[row], poses[row] = clip.depth[0].numpy(), clip.world_from_camera[0].numpy()
    for array in (images, depths, poses):
        array.flush()
    (folder / "whole").touch()


def seeds(first: int, walk: str, frames: int, ahead_rad: float | None) -> Iterator[tuple[int, str]]:
    """Seeds from the first on whose walk of that kind stays within `ahead_rad` of the x axis, each with the kind.

    Raises: ConfigError where none would: who goes round does not look ahead.
    """
    if ahead_rad is not None and (walk != "wander" or ahead_rad < LEAST_RAD):
        raise ConfigError(f"ahead_rad is {ahead_rad} for walk {walk}; wanted at least {LEAST_RAD}, and wander")
    for seed in itertools.count(first):
        path = RandomRoom(seed, 1, 1, walk, known=True).path
        if ahead_rad is None or all(_turned(*path(i)) <= ahead_rad for i in range(frames)):
            yield seed, walk


def _turned(eye: np.ndarray, target: np.ndarray) -> float:
    x, y = (target - eye)[:2]
    return abs(math.atan2(y, x))


def rendered(seed: int, frames: int, height: int, width: int, walk: str, known: bool = False) -> Clips:
    """One sequence of one room, [1, T, ...]."""
    room = RandomRoom(seed, height, width, walk, known)
    views = [room.render(i) for i in range(frames)]
    return Clips(
        torch.stack([view.colour.permute(2, 0, 1) * 2 - 1 for view in views])[None],
        torch.stack([view.depth for view in views])[None],
        torch.stack([room.camera_at(i).world_from_camera for i in range(frames)])[None].float(),
        room.intrinsics,
    )
