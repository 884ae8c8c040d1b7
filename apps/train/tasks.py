"""Sequence tasks that a memory is trained on: infinite streams of batches, the i-th of a seed always the same."""

import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError


class Batch(NamedTuple):
    """What is shown, what should be said, and where something should be said."""

    inputs: Tensor  # [B, T] int64 symbols, or [B, T, channels] float32
    targets: Tensor  # [B, T] int64 classes, or [B, T, outputs] float32
    asked: Tensor  # [B, T] bool


class Task(abc.ABC):
    """A distribution of sequences. Its fields are the task's settings, by name in configs."""

    echoes = False  # whether an input tells the answer of the token before it: tokens must then be seen one by one

    @property
    @abc.abstractmethod
    def symbols(self) -> int:
        """How many symbols the inputs have; 0 where they are numbers."""

    @property
    @abc.abstractmethod
    def outputs(self) -> int:
        """How many classes an answer has, or how many numbers."""

    @property
    def channels(self) -> int:
        """How many numbers an input has, where it is no symbol."""
        return 0

    @abc.abstractmethod
    def draw(self, g: torch.Generator, batch: int) -> Batch:
        """Draws one batch."""

    def levels(self) -> dict[str, "Task"]:
        """What a trained model is judged on, by name. Default: the task itself."""
        return {"all": self}


SEEDS, INDICES = 1 << 11, 1 << 20  # that a stream can tell apart


def stream(task: Task, batch: int, seed: int, start: int = 0, unseen: bool = False) -> Iterator[Batch]:
    """Yields batches `start`, `start + 1` ... of a seed, each from a generator of its own.

    unseen: another world, with no generator in common, to judge a model in that was trained in the first.
    """
    for index in range(start, INDICES):
        yield task.draw(torch.Generator().manual_seed(_mixed(unseen << 31 | seed << 20 | index)), batch)


@dataclass(frozen=True)
class Recall(Task):
    """Multi-query associative recall: pairs are shown once, then each key is asked for once.

        k_1 v_1 k_2 v_2 ... k_n v_n  then blanks, and each k_i at a random place among them; answer there: v_i

    vocabulary: how many key symbols there are, and how many value symbols; 0 to V - 1 are keys, V to 2 V - 1 values,
    2 V is blank. The answer is the value's number, 0 to V - 1. pairs: fewest and most; a batch has one number of them.
    length: T. writes: how often each key is written, in shuffled order, each time with another random value; the last
    one is the answer.

    Raises: ConfigError where the pairs do not fit.
    Source: Arora et al. 2023, arXiv:2312.04927.
    Differs: keys are asked for at uniform places, not at a power law of distances.
    """

    vocabulary: int = 64
    pairs: tuple[int, int] = (16, 64)
    length: int = 256
    writes: int = 1

    def __post_init__(self):
        least, most = self.pairs
        room = self.length // (2 * self.writes + 1) if self.writes > 0 else 0
        if not 1 <= least <= most <= min(self.vocabulary, room):
            wanted = f"1 <= fewest <= most <= {min(self.vocabulary, room)}"
            raise ConfigError(
                f"pairs are {self.pairs} with {self.vocabulary} keys, {self.writes} writes each and {self.length} "
                f"places; wanted {wanted}: a pair takes 2 places a write and 1 to be asked for"
            )

    @property
    def symbols(self) -> int:
        return 2 * self.vocabulary + 1

    @property
    def outputs(self) -> int:
        return self.vocabulary

    def draw(self, g, batch):
        count = int(torch.randint(self.pairs[0], self.pairs[1] + 1, (), generator=g))
        turns = count * self.writes
        keys = _shuffled(g, batch, self.vocabulary)[:, :count]
        order = _shuffled(g, batch, turns) % count  # [B, turns], which pair is written
        values = torch.randint(self.vocabulary, (batch, turns), generator=g)
        turn = torch.arange(turns).expand(batch, -1)
        last = torch.zeros(batch, count, dtype=torch.int64).scatter_reduce(1, order, turn, "amax")
        inputs = torch.full((batch, self.length), 2 * self.vocabulary)
        inputs[:, 0 : 2 * turns : 2] = keys.gather(1, order)
        inputs[:, 1 : 2 * turns : 2] = self.vocabulary + values
        places = 2 * turns + _shuffled(g, batch, self.length - 2 * turns)[:, :count]
        targets = torch.zeros_like(inputs).scatter(1, places, values.gather(1, last))
        asked = torch.zeros_like(inputs, dtype=torch.bool).scatter(1, places, True)
        return Batch(inputs.scatter(1, places, keys), targets, asked)

    def levels(self):
        """The fewest pairs, twice as many, and so on to the most."""
        counts, count = [], self.pairs[0]
        while count < self.pairs[1]:
            counts.append(count)
            count *= 2
        return {f"{n} pairs": replace(self, pairs=(n, n)) for n in (*counts, self.pairs[1])}


@dataclass(frozen=True)
class Overwrite(Recall):
    """Overwrite recall: multi-query associative recall in which every key is written several times."""

    pairs: tuple[int, int] = (4, 16)
    writes: int = 4


@dataclass(frozen=True)
class Regression(Task):
    """Drifting regression: a linear map turns while its values are predicted, each before it is seen.

        w_t = unit(w_{t-1} + drift N(0, I));  x_t ~ N(0, I / width);  v_t = w_t . x_t + noise N(0, 1)
        input t: (x_t, v_{t-1});  answer: v_t

    Units: drift and noise in those of the values.
    Raises: ConfigError where a setting makes no sense.
    """

    width: int = 8
    length: int = 128
    drift: float = 0.03
    noise: float = 0.1
    echoes = True

    def __post_init__(self):
        if self.width < 1 or self.length < 1 or not (self.drift >= 0 and self.noise >= 0):
            raise ConfigError(f"{self} makes no sense; wanted width and length >= 1, drift and noise >= 0")

    @property
    def symbols(self) -> int:
        return 0

    @property
    def channels(self) -> int:
        return self.width + 1

    @property
    def outputs(self) -> int:
        return 1

    def draw(self, g, batch):
        steps = [torch.nn.functional.normalize(torch.randn(batch, self.width, generator=g), dim=-1)]
        for _ in range(self.length - 1):
            moved = steps[-1] + self.drift * torch.randn(batch, self.width, generator=g)
            steps.append(torch.nn.functional.normalize(moved, dim=-1))
        x = torch.randn(batch, self.length, self.width, generator=g) / self.width**0.5
        clean = (torch.stack(steps, 1) * x).sum(-1, keepdim=True)
        v = clean + self.noise * torch.randn(clean.shape, generator=g)
        before = torch.cat([torch.zeros_like(v[:, :1]), v[:, :-1]], 1)
        return Batch(torch.cat([x, before], -1), v, torch.ones(batch, self.length, dtype=torch.bool))


@dataclass(frozen=True)
class Copying(Task):
    """Copying: a string of random symbols, a mark, and the string again, each symbol before it is shown.

        s_1 ... s_n mark s_1 ... s_{n-1};  answers from the mark on: s_1 ... s_n

    vocabulary: symbols 0 to V - 1; V is blank, V + 1 the mark. count: n. places: of the first showing, where the
    symbols stand in order at random places among blanks; None: n, without blanks.

    Raises: ConfigError where a setting makes no sense.
    """

    vocabulary: int = 16
    count: int = 24
    places: int | None = None
    echoes = True

    def __post_init__(self):
        if self.vocabulary < 1 or not 1 <= self.count <= (self.places or self.count):
            raise ConfigError(f"{self} makes no sense; wanted vocabulary >= 1 and 1 <= count <= places")

    @property
    def symbols(self) -> int:
        return self.vocabulary + 2

    @property
    def outputs(self) -> int:
        return self.vocabulary

    def draw(self, g, batch):
        places = self.places or self.count
        string = torch.randint(self.vocabulary, (batch, self.count), generator=g)
        at = _shuffled(g, batch, places)[:, : self.count].sort(1).values
        shown = torch.full((batch, places), self.vocabulary).scatter(1, at, string)
        mark = torch.full((batch, 1), self.vocabulary + 1)
        inputs = torch.cat([shown, mark, string[:, :-1]], 1)
        targets = torch.cat([torch.zeros_like(shown), string], 1)
        return Batch(inputs, targets, torch.cat([torch.zeros_like(shown), torch.ones_like(string)], 1).bool())


@dataclass(frozen=True)
class SelectiveCopying(Copying):
    """Selective copying: copying of the symbols alone, which stand among blanks.

    Source: Gu and Dao 2023, arXiv:2312.00752.
    Differs: each symbol of the copy is shown after it was asked for.
    """

    count: int = 16
    places: int | None = 64


TASKS: dict[str, type[Task]] = {
    "recall": Recall,
    "overwrite": Overwrite,
    "regression": Regression,
    "copying": Copying,
    "selective_copying": SelectiveCopying,
}


def _mixed(x: int) -> int:
    """The number's place in a fixed order of all 32-bit numbers: neighbours come far apart, and no two together.

    A generator takes no more than 32 bits of its seed, and starts alike from seeds that are alike.

    Source: the finaliser of MurmurHash3, Appleby 2011, public domain.
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    return x ^ x >> 16


def _shuffled(g: torch.Generator, batch: int, count: int) -> Tensor:
    """0 to count - 1 in a random order for each row: [B, count]."""
    return torch.rand(batch, count, generator=g).argsort(1)
