"""What the rows of the catalogue are judged on: widths, initial memories, frames."""

import torch

from streammem import tree
from streammem.memory.architecture import (
    AffineWeights,
    BiasedMLPWeights,
    MLPWeights,
    ResidualWeights,
    SwiGLUWeights,
)
from streammem.memory.features import Polynomial
from streammem.rules.log_linear import LevelWeights
from streammem.types import Gates, Tokens

K, V, HIDDEN, N, T, B = 6, 5, 7, 4, 9, 3

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def matrix(batch, g):
    return 0.3 * torch.randn(batch, K, V, generator=g, dtype=torch.float64)


def mlp(batch, g):
    w1 = 0.3 * torch.randn(batch, K, HIDDEN, generator=g, dtype=torch.float64)
    return MLPWeights(w1, 0.3 * torch.randn(batch, HIDDEN, V, generator=g, dtype=torch.float64))


def simplex(batch, g):
    return matrix(batch, g).softmax(-2)


def levelled(batch, g):
    share = 0.5 + torch.rand(batch, 3, 1, 1, generator=g, dtype=torch.float64)
    return LevelWeights(matrix(batch, g), share)


def normal(batch, g, *shape):
    return 0.3 * torch.randn(batch, *shape, generator=g, dtype=torch.float64)


def away_from_zero(batch, g):
    """The mirror map has an infinite slope at zero."""
    return tree.map(lambda w: w + 0.2 * w.sign(), mlp(batch, g))


def simplices(batch, g):
    return tree.map(lambda w: 2 * w.softmax(-2), mlp(batch, g))


def gated(batch, g):
    return SwiGLUWeights(normal(batch, g, K, HIDDEN), normal(batch, g, K, HIDDEN), normal(batch, g, HIDDEN, V))


def large(batch, g):
    """Weights beside which an orthogonal step is small."""
    return tree.map(lambda w: 6 * w, gated(batch, g))


def chained(batch, g):
    return mlp(batch, g), MLPWeights(normal(batch, g, V, HIDDEN), normal(batch, g, HIDDEN, V))


def residual_mlp(batch, g):
    return MLPWeights(normal(batch, g, K, HIDDEN), normal(batch, g, HIDDEN, K))


def learned_norm(inner):
    """Weights of an affine map or an MLP with biases, K = V, and of the norm around them."""

    def weights(batch, g):
        sizes = {AffineWeights: ((K, K), (1, K)), BiasedMLPWeights: ((K, HIDDEN), (1, HIDDEN), (HIDDEN, K), (1, K))}
        inside = inner(*(normal(batch, g, *size) for size in sizes[inner]))
        return ResidualWeights(inside, 1 + normal(batch, g, 1, K), normal(batch, g, 1, K))

    return weights


def over_features(batch, g):
    return normal(batch, g, Polynomial().width(K), V)


def square(frames):
    """Frames whose values are as wide as their keys."""
    return [f._replace(value=torch.cat([f.value, f.query[..., : K - V]], -1)) for f in frames]


def slow(frames):
    """Frames at a thirtieth of the rate."""
    return [f._replace(gates=f.gates._replace(lr=f.gates.lr / 30)) for f in frames]


def plain(frames):
    return frames


def by_channel(lr=1, retention=1, erase=None):
    """Frames whose gates have these widths."""

    def widened(frames):
        g = torch.Generator().manual_seed(1)

        def uniform(like, *shape):
            return torch.rand(*shape, generator=g, dtype=torch.float64).to(like.dtype)

        def one(f):
            batch, n = f.key.shape[:2]
            wide = f.gates._replace(
                lr=f.gates.lr * (0.5 + uniform(f.key, batch, n, lr)),
                retention=f.gates.retention - 0.2 * uniform(f.key, batch, retention, 1),
                erase=() if erase is None else 0.05 + 0.1 * uniform(f.key, batch, n, erase),
            )
            return f._replace(gates=wide)

        return [one(f) for f in frames]

    return widened


def data(batch: int = B, seed: int = 0, dtype=torch.float64) -> tuple[list[Tokens], torch.Generator]:
    """T random frames, and the generator to draw the initial memory from."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    def uniform(*shape):
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    def frame():
        lr, one = 0.05 + 0.1 * uniform(batch, N, 1), (batch, 1, 1)
        gates = Gates(lr, 0.8 + 0.2 * uniform(*one), 0.9 * uniform(*one))
        return Tokens(normal(batch, N, K), normal(batch, N, K), normal(batch, N, V), gates)

    return [tree.map(lambda a: a.to(dtype), frame()) for _ in range(T)], g
