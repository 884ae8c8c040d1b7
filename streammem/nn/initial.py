"""Initial memories: what a rule's memory is before the first token, to be learned from there."""

from collections.abc import Callable

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.memory.architecture import (
    MLP,
    Affine,
    AffineWeights,
    Architecture,
    BiasedMLP,
    BiasedMLPWeights,
    Chain,
    Matrix,
    MLPWeights,
    Residual,
    ResidualWeights,
    SwiGLU,
    SwiGLUWeights,
)
from streammem.memory.retention import KL, Decay, Keep, Retention
from streammem.memory.rule import Rule


def initial(rule: Rule, heads: int, key: int, value: int, hidden: int):
    """An initial memory for `heads` heads, of the kind the rule wants: zeros where a rule can start from them.

    A matrix that decays or is kept is zero; layers of a deep memory are normal with variance 1 / inputs, biases zero,
    gains one; memories on the simplex are softmax of that. An MLP that starts from zero has a first layer of variance
    1, which suits keys of unit length, and a last one of zeros.

    Shapes: key, value, hidden: widths K, V, and of the layers between; -> weights [H, K, V], or a tuple of such.
    Raises: ConfigError where the memory is a residual and K is not V.
    """
    memory, retention = memory_of(rule), retention_of(rule)
    if _square(memory) and key != value:
        raise ConfigError(f"{rule} adds to its input, key width {key} and value width {value}; wanted equal widths")
    plain = isinstance(memory, Matrix) and isinstance(retention, Keep | Decay)

    def made(rows: int, columns: int) -> Tensor:
        if plain or rows == 1:
            return torch.zeros(heads, rows, columns)
        x = torch.randn(heads, rows, columns) / rows**0.5
        return retention.total * x.softmax(-2) if isinstance(retention, KL) else x

    weights = shaped(memory, made, key, value, hidden)
    if isinstance(memory, MLP | BiasedMLP) and isinstance(retention, Keep | Decay):
        return weights._replace(w1=key**0.5 * weights.w1, w2=torch.zeros_like(weights.w2))
    return weights


def on_simplex(rule: Rule) -> bool:
    """Whether the memory has to stay positive, with columns of one sum."""
    return isinstance(retention_of(rule), KL)


def memory_of(rule: Rule) -> Architecture:
    """The memory of the rule inside all wrappers; a rule that does not factor keeps a matrix."""
    return getattr(_inside(rule), "memory", Matrix())


def retention_of(rule: Rule) -> Retention:
    """The retention gate of the rule inside all wrappers."""
    return getattr(_inside(rule), "retention", Decay())


def shaped(memory: Architecture, made: Callable[[int, int], Tensor], key: int, value: int, hidden: int):
    """The weights of a memory, each leaf `made` from its rows and columns; a gain is one more than that."""

    def inside(part: Architecture, first: int, last: int):
        match part:
            case Affine():
                return AffineWeights(made(first, last), made(1, last))
            case MLP():
                return MLPWeights(made(first, hidden), made(hidden, last))
            case BiasedMLP():
                return BiasedMLPWeights(made(first, hidden), made(1, hidden), made(hidden, last), made(1, last))
            case SwiGLU():
                return SwiGLUWeights(made(first, hidden), made(first, hidden), made(hidden, last))
            case Residual(inner, learned_norm):
                weights = inside(inner, first, last)
                return ResidualWeights(weights, 1 + made(1, last), made(1, last)) if learned_norm else weights
            case Chain(memories):
                return tuple(inside(m, first if i == 0 else last, last) for i, m in enumerate(memories))
        return made(first, last)

    return inside(memory, key, value)


def _inside(rule: Rule) -> Rule:
    while isinstance(getattr(rule, "rule", None), Rule):
        rule = rule.rule
    return rule


def _square(memory: Architecture) -> bool:
    return isinstance(memory, Residual) or (isinstance(memory, Chain) and any(map(_square, memory.memories)))
