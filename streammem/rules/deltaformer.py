import abc
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.chunk import triangular
from streammem.chunk.rows import apart, by_frame, by_token, in_a_row, products
from streammem.chunk.triangular import Held
from streammem.errors import ConfigError, NoKernel
from streammem.memory.rule import Rule
from streammem.types import Tokens


class Kernel(abc.ABC):
    """Likeness of keys."""

    @abc.abstractmethod
    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """Likeness of every a [..., N, K] with every b [..., S, K]: [..., N, S]."""


@dataclass(frozen=True)
class Linear(Kernel):
    """a . b."""

    def __call__(self, a, b):
        return a @ b.mT


@dataclass(frozen=True)
class Exp(Kernel):
    """exp(-sharpness |a - b|^2 / 2): of unit keys, exp(sharpness (cos - 1)). 1 on itself, so that nothing overflows."""

    sharpness: float = 16.0

    def __post_init__(self):
        if not self.sharpness > 0:
            raise ConfigError(f"the sharpness of Exp is {self.sharpness}; wanted a number above 0")

    def __call__(self, a, b):
        return torch.exp(-0.5 * self.sharpness * apart(a, b))


class Dictionary(NamedTuple):
    """Keys with their coefficients, over an initial linear memory."""

    memory: Tensor  # [..., K, V], M_0
    key: Tensor  # [..., slots, K]
    coefficient: Tensor  # [..., slots, V], u
    written: Tensor  # [..., slots, 1], number of the token that wrote it last; 0 where the slot is free


@dataclass(frozen=True)
class DeltaFormer(Rule):
    """Delta rule in the feature space of a kernel, over a bounded dictionary.

        u_t = lr_t (v_t - k_t M_0 - sum_{i<t} kernel(k_t, k_i) u_i)
        M_t = the dictionary with (k_t, u_t);  o = q M_0 + sum_i kernel(q, k_i) u_i

    normalised: the form of the public kernel, u_t = v_t - k_t M_0 - lr_t sum_{i<t} softmax_i u_i and a softmax read,
    with softmax over the kernel. It subtracts an average even where no key is near: with few writes it recalls
    badly.

    slots: size of the dictionary. merge: a key whose cosine with one in it is above this takes the place of that one
    and what it read there, so that overwriting needs no room and stays exact; None never merges. Where there is no room
    the least recently written slot is given up.

    Shapes: memory [..., K, V] is M_0; one write takes N tokens, one after the other. Retention decays u. Chunk form
    exact without `merge`, by a triangular solve.
    Raises: ConfigError where a field makes no sense.
    Source: DeltaFormer 2025, arXiv:2505.19488; the unnormalised form and the dictionary are ours.
    Differs: bounded; keys stand for the paper's separate w. A token of zero rate is no token, in both forms.
    """

    kernel: Kernel = Exp()
    slots: int = 64
    merge: float | None = 0.999
    normalised: bool = False

    def __post_init__(self):
        if self.slots < 1 or (self.merge is not None and not 0 < self.merge <= 1):
            raise ConfigError(f"{self} makes no sense; wanted slots >= 1 and merge in (0, 1], or None")
        if self.normalised and self.merge is not None:
            raise ConfigError(f"{self} merges, which its softmax would not notice; wanted merge=None")

    def init(self, weights: Tensor) -> Dictionary:
        held = (*weights.shape[:-2], self.slots)
        key, coefficient = (weights.new_zeros(*held, width) for width in weights.shape[-2:])
        return Dictionary(weights, key, coefficient, weights.new_zeros(*held, 1, dtype=torch.float64))

    def write(self, state: Dictionary, key, value, gates) -> Dictionary:
        retention = gates.retention
        state = state._replace(memory=retention * state.memory, coefficient=retention * state.coefficient)
        for n in range(key.shape[-2]):
            one = slice(n, n + 1)
            state = self._write(state, key[..., one, :], value[..., one, :], gates.lr[..., one, :])
        return state

    def read(self, state: Dictionary, query) -> Tensor:
        return query @ state.memory + self._likeness(state, query) @ state.coefficient

    def _likeness(self, state: Dictionary, x) -> Tensor:
        """Kernel, or softmax, of x [..., N, K] over the slots in use: [..., N, slots]."""
        used = (state.written > 0.5).mT
        likeness = self.kernel(x, state.key)
        if not self.normalised:
            return likeness * used
        return _softmax(_scores(self.kernel, likeness), used)

    def _write(self, state: Dictionary, key, value, lr) -> Dictionary:
        """One token: key [..., 1, K], value [..., 1, V], lr [..., 1, 1]."""
        likeness = self._likeness(state, key)  # [..., 1, slots]
        target, before = value - key @ state.memory, likeness @ state.coefficient
        u = target - lr * before if self.normalised else lr * (target - before)
        slot, merged = self._place(state, key)
        taken = (torch.arange(self.slots, device=key.device)[:, None] == slot) & (lr > 0)  # [..., slots, 1]
        # The new key says at itself what the old one said there.
        old = likeness.mT * state.coefficient / self.kernel(key, key) if self.merge is not None else 0
        u = torch.where(merged, u + old, u)
        now = state.written.amax(-2, keepdim=True) + 1
        return Dictionary(
            state.memory,
            torch.where(taken, key, state.key),
            torch.where(taken, u, state.coefficient),
            torch.where(taken, now, state.written),
        )

    def _place(self, state: Dictionary, key) -> tuple[Tensor, Tensor]:
        """The slot that a token takes, [..., 1, 1], and whether it merges with what is there."""
        free = state.written.argmin(-2, keepdim=True)
        if self.merge is None:
            return free, torch.zeros_like(free, dtype=torch.bool)
        unit, held = (torch.nn.functional.normalize(a, dim=-1) for a in (key, state.key))
        cosine = torch.where(state.written > 0.5, held @ unit.mT, -2.0)  # [..., slots, 1]
        best, near = cosine.max(-2, keepdim=True)
        return torch.where(best > self.merge, near, free), best > self.merge

    def sequence(self, state: Dictionary, x: Tokens, chunk: int, by_token: bool = False):
        """Chunks of frames at once, each by one triangular solve; tokens of a frame one after the other, as always.

        Raises: NoKernel where keys merge: which do is only known one by one.
        """
        if self.merge is not None:
            raise NoKernel(f"{self} merges keys one by one; wanted merge=None, or chunk=None, which steps")
        readouts = []
        for start in range(0, len(x.key), chunk):
            state, out = self._chunk(state, tree.map(lambda a, s=start: a[s : s + chunk], x))
            readouts.append(out)
        return state, torch.cat(readouts)

    def _chunk(self, state: Dictionary, x: Tokens) -> tuple[Dictionary, Tensor]:
        tokens = x.key.shape[-2]
        query, key, value, lr = (in_a_row(a) for a in (x.query, x.key, x.value, x.gates.lr))  # [..., C, .]
        kept, fade = products(in_a_row(x.gates.retention))  # [..., T, 1], [..., T, T]
        kept, fade = by_token(kept, tokens), by_token(by_token(fade, tokens).mT, tokens).mT
        count, number = triangular.numbered(lr, state.written)
        keys, numbers = torch.cat([state.key, key], -2), torch.cat([state.written, number], -2)
        before = torch.cat([state.written.amax(-2, keepdim=True), count[..., :-1, :]], -2)
        mix = self._mixture(key, keys, before, numbers) * self._fading(kept, fade)  # [..., C, slots + C]
        old = mix[..., : self.slots] @ state.coefficient
        u = triangular.coefficients(
            value - kept * (key @ state.memory), lr, old, mix[..., self.slots :], self.normalised
        )
        coefficient = torch.cat([state.coefficient, u], -2)
        # A query sees all tokens of its frame.
        after = by_token(count[..., tokens - 1 :: tokens, :], tokens)
        seen = self._mixture(query, keys, after, numbers) * self._fading(kept, fade)
        out = kept * (query @ state.memory) + seen @ coefficient
        faded = self._fading(kept, fade)[..., -1:, :].mT * coefficient
        held = triangular.newest(Held(keys, faded, numbers), count[..., -1:, :], self.slots)
        return Dictionary(kept[..., -1:, :] * state.memory, *held), by_frame(out, tokens)

    def _mixture(self, x: Tensor, keys: Tensor, count: Tensor, numbers: Tensor) -> Tensor:
        """What each x takes of the coefficient of each key, when `count` tokens have been written."""
        used = triangular.visible(count, numbers, self.slots)
        likeness = self.kernel(x, keys)
        return _softmax(_scores(self.kernel, likeness), used) if self.normalised else likeness * used

    def _fading(self, kept: Tensor, fade: Tensor) -> Tensor:
        """What retention leaves of coefficients held and new, [..., C, slots + C]."""
        return torch.cat([kept.expand(*kept.shape[:-1], self.slots), fade], -1)


def _scores(kernel: Kernel, likeness: Tensor) -> Tensor:
    """Logits whose softmax is the normalised kernel."""
    return likeness if isinstance(kernel, Linear) else likeness.clamp_min(torch.finfo(likeness.dtype).tiny).log()


def _softmax(scores: Tensor, used: Tensor) -> Tensor:
    """Softmax over what is used; zeros where nothing is."""
    best = torch.where(used, scores, torch.finfo(scores.dtype).min).amax(-1, keepdim=True)
    e = (scores - best).clamp_max(0).exp() * used
    return e / e.sum(-1, keepdim=True).clamp_min(torch.finfo(e.dtype).tiny)
