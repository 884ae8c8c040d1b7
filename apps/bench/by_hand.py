"""The rules as the shortest torch that does the same: what generality is measured against."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.types import Tokens


class Step(NamedTuple):
    """A rule without the algebra: the state from the weights, and one step."""

    init: Callable
    step: Callable  # (state, tokens) -> (state, readout)


def _same(weights: Tensor) -> Tensor:
    return weights


def _with_covariance(weights: Tensor) -> tuple[Tensor, Tensor]:
    width = weights.shape[-2]
    return weights, torch.eye(width, dtype=weights.dtype).expand(*weights.shape[:-2], width, width)


def frozen(m: Tensor, x: Tokens):
    return m, x.query @ m


def last_frame(m: Tensor, x: Tokens):
    weighted = x.key.mT * x.gates.lr.mT
    ridge = 1e-3 * torch.eye(m.shape[-2], dtype=m.dtype)
    m = torch.linalg.solve_ex(weighted @ x.key + ridge, weighted @ x.value)[0]
    return m, x.query @ m


def hebbian(m: Tensor, x: Tokens):
    m = m + x.key.mT @ (x.gates.lr * x.value)
    return m, x.query @ m


def gated_hebbian(m: Tensor, x: Tokens):
    m = x.gates.retention * m + x.key.mT @ (x.gates.lr * x.value)
    return m, x.query @ m


def delta(m: Tensor, x: Tokens):
    m = m - x.key.mT @ (x.gates.lr * (x.key @ m - x.value))
    return m, x.query @ m


def gated_delta(m: Tensor, x: Tokens):
    m = x.gates.retention * m
    m = m - x.key.mT @ (x.gates.lr * (x.key @ m - x.value))
    return m, x.query @ m


def longhorn(m: Tensor, x: Tokens):
    eye = torch.eye(x.key.shape[-2], dtype=m.dtype)
    error = torch.linalg.solve_ex(eye + x.gates.lr * (x.key @ x.key.mT), x.gates.lr * (x.value - x.key @ m))[0]
    m = m + x.key.mT @ error
    return m, x.query @ m


def _condition(m: Tensor, p: Tensor, x: Tokens):
    kp = x.key @ p
    eye = torch.eye(x.key.shape[-2], dtype=m.dtype)
    gain = torch.linalg.solve_ex(eye + x.gates.lr * (kp @ x.key.mT), x.gates.lr * kp)[0].mT
    m = m + gain @ (x.value - x.key @ m)
    return (m, p - gain @ kp), x.query @ m


def rls(state: tuple[Tensor, Tensor], x: Tokens):
    return _condition(state[0], state[1] / x.gates.retention, x)


def kalman(state: tuple[Tensor, Tensor], x: Tokens):
    a = x.gates.retention
    return _condition(a * state[0], a * a * state[1], x)


def kalman_diag(state: tuple[Tensor, Tensor], x: Tokens):
    m, p = x.gates.retention * state[0], x.gates.retention**2 * state[1]
    kp = x.key * p.mT
    eye = torch.eye(x.key.shape[-2], dtype=m.dtype)
    gain = torch.linalg.solve_ex(eye + x.gates.lr * (kp @ x.key.mT), x.gates.lr * kp)[0].mT
    m = m + gain @ (x.value - x.key @ m)
    return (m, p / (1 + p * (x.gates.lr * x.key**2).sum(-2, keepdim=True).mT)), x.query @ m


def _forward(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x @ w1) @ w2


def _gradients(w, x: Tokens, bound: float):
    w1, w2 = (leaf.detach().requires_grad_() for leaf in w)
    with torch.enable_grad():
        y = _forward(w1, w2, x.key)
        return torch.autograd.grad(y, (w1, w2), x.gates.lr * (y - x.value).clamp(-bound, bound).detach())


def titans(state, x: Tokens):
    w, momentum = state
    momentum = [x.gates.momentum * s - g for s, g in zip(momentum, _gradients(w, x, float("inf")))]
    w = [x.gates.retention * a + s for a, s in zip(w, momentum)]
    return (w, momentum), _forward(*w, x.query)


def yaad(w, x: Tokens):
    w = [x.gates.retention * a - g for a, g in zip(w, _gradients(w, x, 1.0))]
    return w, _forward(*w, x.query)


def gdn2(m: Tensor, x: Tokens):
    m = x.gates.retention * m
    m = m + x.key.mT @ (x.gates.lr * x.value - (x.gates.lr * x.key) @ m)
    return m, x.query @ m


def comba(m: Tensor, x: Tokens):
    m = x.gates.retention * m
    m = m + x.key.mT @ (x.gates.lr * (x.value - 0.9 * (x.key @ m)))
    return m, (x.query - 0.02 * x.key) @ m


def rwkv7(m: Tensor, x: Tokens):
    h = torch.nn.functional.normalize(x.key, dim=-1)
    m = x.gates.retention * m - (x.gates.lr * h).mT @ (h @ m) + (x.gates.lr * x.key).mT @ x.value
    return m, x.query @ m


def delta_product(m: Tensor, x: Tokens):
    for n in range(x.key.shape[-2]):
        k = x.key[..., n : n + 1, :]
        m = m - k.mT @ (x.gates.lr[..., n : n + 1, :] * (k @ m - x.value[..., n : n + 1, :]))
    return m, x.query @ m


def gated_delta_product(m: Tensor, x: Tokens):
    return delta_product(x.gates.retention * m, x)


def nlms(m: Tensor, x: Tokens):
    system = x.key @ x.key.mT + 1e-6 * torch.eye(x.key.shape[-2], dtype=m.dtype)
    m = m + x.key.mT @ torch.linalg.solve_ex(system, x.gates.lr * (x.value - x.key @ m))[0]
    return m, x.query @ m


BY_HAND = {
    "gdn2": Step(_same, gdn2),
    "kda": Step(_same, gated_delta),
    "comba": Step(_same, comba),
    "rwkv7": Step(_same, rwkv7),
    "delta_product": Step(_same, delta_product),
    "gated_delta_product": Step(_same, gated_delta_product),
    "nlms": Step(_same, nlms),
    "frozen": Step(_same, frozen),
    "last_frame": Step(_same, last_frame),
    "hebbian": Step(_same, hebbian),
    "gated_hebbian": Step(_same, gated_hebbian),
    "delta": Step(_same, delta),
    "gated_delta": Step(_same, gated_delta),
    "longhorn": Step(_same, longhorn),
    "rls": Step(_with_covariance, rls),
    "kalman": Step(_with_covariance, kalman),
    "kalman_diag": Step(lambda w: (w, torch.ones_like(w[..., :1])), kalman_diag),
    "titans": Step(lambda w: (w, [torch.zeros_like(x) for x in w]), titans),
    "yaad": Step(_same, yaad),
}
