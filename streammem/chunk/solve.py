"""Symmetric positive systems that are only known by what they do to a vector; one system for each row.

Both methods run a fixed number of iterations: nothing looks at the device from the host. Gradients are implicit: one
more solve with the same system, whatever the number of iterations.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError


class Solver(abc.ABC):
    """How systems A x = b are solved."""

    @abc.abstractmethod
    def run(self, operator: Callable, b: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Returns x for b [..., N, K]; the eigenvalues of A lie between low and high, [..., N or 1, 1]."""


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """Conjugate gradients; a row whose residual is below `tolerance` of its b is finished and stays as it is."""

    iterations: int = 30
    tolerance: float = 0.0

    def __post_init__(self):
        if self.iterations < 1 or not self.tolerance >= 0:
            raise ConfigError(f"{self} cannot be run; wanted iterations of at least 1 and a tolerance of at least 0")

    def run(self, operator, b, low, high):
        return self.counted(operator, b)[0]

    def counted(self, operator: Callable, b: Tensor) -> tuple[Tensor, Tensor]:
        """x, and the iterations that each row took, [..., N, 1]."""
        x, r, p, used = torch.zeros_like(b), b, b, torch.zeros_like(b[..., :1])
        square = r.square().sum(-1, keepdim=True)
        goal = max(self.tolerance, torch.finfo(b.dtype).eps) ** 2 * square
        for _ in range(self.iterations):
            going = square > goal
            ap = operator(p)
            curvature = (p * ap).sum(-1, keepdim=True)
            step = torch.where(going, square / torch.where(going, curvature, 1), 0)
            x, r = x + step * p, r - step * ap
            new = r.square().sum(-1, keepdim=True)
            p = r + torch.where(going, new / torch.where(going, square, 1), 0) * p
            square, used = torch.where(going, new, square), used + going
        return x, used


@dataclass(frozen=True)
class Chebyshev(Solver):
    """Chebyshev's iteration: a fixed polynomial of A, and so linear in b and gentle to gradients of stacked layers.

    x_{j+1} = w_{j+1} (x_j + 2 / (high + low) (b - A x_j) - x_{j-1}) + x_{j-1},  w_{j+1} = 4 / (4 - rho^2 w_j)
    """

    iterations: int = 30

    def __post_init__(self):
        if self.iterations < 1:
            raise ConfigError(f"{self} cannot be run; wanted at least 1 iteration")

    def run(self, operator, b, low, high):
        rate, rho = 2 / (high + low), (high - low) / (high + low)
        before, x, w = torch.zeros_like(b), rate * b, torch.full_like(rho, 2.0)
        for _ in range(self.iterations - 1):
            w = 4 / (4 - rho.square() * w)
            before, x = x, w * (x + rate * (b - operator(x)) - before) + before
        return x


class Implicit(torch.autograd.Function):
    """x of A(parameters) x = b; the gradient is one more solve.

    apply(operator, solver, low, high, b, *parameters), operator(x, *parameters) = A x.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(operator, solver, low, high, b, *parameters):
        return solver.run(lambda x: operator(x, *parameters), b, low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.solver, low, high, _, *parameters = inputs
        ctx.save_for_backward(low, high, output, *parameters)

    @staticmethod
    def backward(ctx, cotangent):
        low, high, x, *parameters = ctx.saved_tensors
        dual = ctx.solver.run(lambda y: ctx.operator(y, *parameters), cotangent, low, high)
        _, pullback = torch.func.vjp(lambda *ps: ctx.operator(x, *ps), *parameters)
        return None, None, None, None, dual, *pullback(-dual)
