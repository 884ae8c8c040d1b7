"""Covariances of a linear memory: what rules that know how sure they are have in common.

The weight of a token is its precision, 1 / r. It multiplies and never divides: a token of zero weight is no token,
with a finite gradient. Covariances and the systems that are solved are float64 whatever the memory is: near-duplicate
tokens that are nearly certain cost float32 the positivity of P, and the step then runs away.
"""

import torch
from torch import Tensor

from streammem.errors import ConfigError

WIDE = torch.float64


def check(rule) -> None:
    """Refuses a filter whose numbers make no sense.

    Raises: ConfigError where r, q, the prior variance, its bound or the threshold of Huber cannot be.
    """
    if not (rule.observation_variance > 0 and rule.process_variance >= 0 and rule.prior_variance > 0):
        raise ConfigError(f"{rule} has a variance that makes no sense; wanted r > 0, q >= 0, prior > 0")
    if not rule.max_variance >= rule.prior_variance:
        raise ConfigError(f"{rule} starts above its bound; wanted max_variance >= prior_variance")
    if rule.huber is not None and not rule.huber > 0:
        raise ConfigError(f"huber of {rule} is {rule.huber}; wanted a number above 0, or None")


def prior(weights: Tensor, variance: float) -> Tensor:
    """Covariance `variance` I of memory rows: [..., K, V] -> [..., K, K]."""
    eye = torch.eye(weights.shape[-2], dtype=WIDE, device=weights.device)
    return (variance * eye).expand(*weights.shape[:-2], -1, -1).clone()


def gain(spread: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Kalman gain of N tokens at once, and the same before its last factor.

        white = P k^T (I + W k P k^T)^{-1};  gain = white W

    Shapes: spread = k P [..., N, K], key [..., N, K], weight [..., N, 1]; both results [..., K, N].
    """
    eye = torch.eye(key.shape[-2], dtype=key.dtype, device=key.device)
    system = eye + (spread @ key.mT) * weight.mT  # [..., N, N]
    # solve_ex: the checked solve makes the host wait for the device. Solved for the gain and not for an inverse:
    # white is as small as the noise, and an inverse would bring errors as large as one.
    white = torch.linalg.solve_ex(system, spread)[0].mT
    return white * weight.mT, white


def condition(p: Tensor, spread: Tensor, key: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gain of N tokens, and the covariance after they were seen, in Joseph's form; spread = k P.

        P <- (I - G k) P (I - G k)^T + G R G^T

    Multiplied out so that no product of two K x K matrices is left: H = P - G k P;  P <- H + (G R - H k^T) G^T. As in
    Joseph's form an error of the gain enters squared.
    """
    g, white = gain(spread, key, weight)  # white = G R
    half = p - g @ spread
    return g, half + (white - half @ key.mT) @ g.mT


def aged(p: Tensor, retention: Tensor, variance: float) -> Tensor:
    """P one frame later: a P a^T + variance I, for retention a, [..., 1, 1] or [..., K, 1]."""
    p = (retention * retention.mT) * p
    if variance:
        p.diagonal(dim1=-2, dim2=-1).add_(variance)
    return p


def bounded(p: Tensor, most: float) -> Tensor:
    """P made exactly symmetric, and scaled from both sides so that no variance exceeds `most`.

    A direction that is never seen would grow without end; scaling its rows and columns leaves the others alone and
    keeps P positive.
    """
    variance = p.diagonal(dim1=-2, dim2=-1)  # [..., K]
    scale = (variance / most).clamp_min(1).rsqrt()
    # The half of the mean goes with the scale, one pass less; this order keeps it exactly symmetric.
    return (p + p.mT) * (0.5 * scale[..., :, None] * scale[..., None, :])


def expected(spread: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Variance s = k P k^T + 1 / w of each innovation, from spread = k P; [..., N, 1]. For w = 0 as if w = 1."""
    safe = torch.where(weight > 0, weight, torch.ones_like(weight))
    return (spread * key).sum(-1, keepdim=True) + 1 / safe


def trust(error: Tensor, s: Tensor, threshold: float) -> Tensor:
    """Share of its weight that each token keeps under Huber's loss on the innovation, [..., N, 1].

    share = min(1, threshold sqrt(s) / |e|)
    """
    squared = error.square().sum(-1, keepdim=True).clamp_min(torch.finfo(error.dtype).tiny ** 0.5)
    return (threshold**2 * s / squared).clamp_max(1).sqrt()
