"""Symmetric positive systems that are only known by what they do to a vector; one system for each row.

Both methods run a fixed number of iterations: nothing looks at the device from the host. Gradients are implicit: one
more solve with the same system, whatever the number of iterations. An operator is a plain function
(x, *parameters) -> A x, so that a compiler can follow it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Effort(NamedTuple):
    """How far to go."""

    iterations: int
    tolerance: float  # of the residual, in shares of b; 0 goes as far as the type can tell


def conjugate_gradient(operator: Callable, parameters: tuple, b: Tensor, low, high, effort: Effort) -> Tensor:
    """x of A x = b by conjugate gradients, rows [..., N, K]; the bounds of the eigenvalues are not used."""
    return counted(operator, parameters, b, effort)[0]


def counted(operator: Callable, parameters: tuple, b: Tensor, effort: Effort) -> tuple[Tensor, Tensor]:
    """Conjugate gradients: x, and the iterations that each row took, [..., N, 1].

    A row whose residual is below the tolerance is finished, and stays.
    """
    x, r, p, used = torch.zeros_like(b), b, b, torch.zeros_like(b[..., :1])
    square = r.square().sum(-1, keepdim=True)
    goal = max(effort.tolerance, torch.finfo(b.dtype).eps) ** 2 * square
    for _ in range(effort.iterations):
        going = square > goal
        ap = operator(p, *parameters)
        curvature = (p * ap).sum(-1, keepdim=True)
        step = torch.where(going, square / torch.where(going, curvature, 1), 0)
        x, r = x + step * p, r - step * ap
        new = r.square().sum(-1, keepdim=True)
        p = r + torch.where(going, new / torch.where(going, square, 1), 0) * p
        square, used = torch.where(going, new, square), used + going
    return x, used


def chebyshev(operator: Callable, parameters: tuple, b: Tensor, low: Tensor, high: Tensor, effort: Effort) -> Tensor:
    """x of A x = b by Chebyshev's iteration, the eigenvalues of A between low and high [..., N or 1, 1].

        x_{j+1} = w_{j+1} (x_j + 2 / (high + low) (b - A x_j) - x_{j-1}) + x_{j-1},  w_{j+1} = 4 / (4 - rho^2 w_j)

    A fixed polynomial of A, and so linear in b; the tolerance is not used.
    """
    rate, rho = 2 / (high + low), (high - low) / (high + low)
    before, x, w = torch.zeros_like(b), rate * b, torch.full_like(rho, 2.0)
    for _ in range(effort.iterations - 1):
        w = 4 / (4 - rho.square() * w)
        before, x = x, w * (x + rate * (b - operator(x, *parameters)) - before) + before
    return x


def solved(solver: Callable, operator: Callable, parameters: tuple, b: Tensor, low, high, effort: Effort) -> Tensor:
    """x of A(parameters) x = b, with the implicit gradient where one is asked for."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (b, *parameters)):
        return Implicit.apply(solver, operator, *effort, low, high, b, *parameters)
    return solver(operator, parameters, b, low, high, effort)


class Implicit(torch.autograd.Function):
    """x of A(parameters) x = b, and one more solve for its gradient.

    apply(solver, operator, iterations, tolerance, low, high, b, *parameters)
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(solver, operator, iterations, tolerance, low, high, b, *parameters):
        return solver(operator, parameters, b, low, high, Effort(iterations, tolerance))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.solver, ctx.operator, ctx.iterations, ctx.tolerance, low, high, _, *parameters = inputs
        ctx.save_for_backward(low, high, output, *parameters)

    @staticmethod
    def backward(ctx, cotangent):
        low, high, x, *parameters = ctx.saved_tensors
        dual = ctx.solver(ctx.operator, parameters, cotangent, low, high, Effort(ctx.iterations, ctx.tolerance))
        _, pullback = torch.func.vjp(lambda *ps: ctx.operator(x, *ps), *parameters)
        return None, None, None, None, None, None, dual, *pullback(-dual)
