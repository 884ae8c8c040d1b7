"""Features of keys: what a linear memory over them can hold grows from K to the number of features."""

import abc
from dataclasses import dataclass
from math import comb, factorial

import torch
from torch import Tensor

from streammem.errors import ConfigError


class Features(abc.ABC):
    """A fixed function of keys and queries."""

    @abc.abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Features of x [..., N, K]: [..., N, width(K)]."""

    @abc.abstractmethod
    def width(self, key: int) -> int:
        """Number of features of keys of width `key`: the rows that a memory over them has."""


@dataclass(frozen=True)
class Polynomial(Features):
    """All monomials up to degree 1 or 2, each once, such that <f(x), f(y)> = sum_i c_i (x . y)^i.

    coefficients: c_i; the default is the truncated exponential, 1 / i!.

    Source: the polynomial features of Atlas, Behrouz et al. 2025, arXiv:2505.23735.
    Differs: degrees above 2 are left to `Powers`; the coefficients are values and not learned.
    """

    degree: int = 2
    coefficients: tuple[float, ...] = (1.0, 1.0, 0.5)

    def __post_init__(self):
        if self.degree not in (1, 2):
            raise ConfigError(f"the degree of Polynomial is {self.degree}; wanted 1 or 2 (see Powers)")
        if len(self.coefficients) <= self.degree or min(self.coefficients) < 0:
            raise ConfigError(
                f"Polynomial has coefficients {self.coefficients}; wanted {self.degree + 1}, none negative"
            )

    def __call__(self, x):
        scale = [c**0.5 for c in self.coefficients]
        parts = [torch.full_like(x[..., :1], scale[0]), scale[1] * x]
        if self.degree == 2:
            first, second = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
            twice = 1 + (2**0.5 - 1) * (first != second).to(x.dtype)  # x_i x_j stands for x_j x_i too
            parts.append(scale[2] * twice * x[..., first] * x[..., second])
        return torch.cat(parts, -1)

    def width(self, key):
        return comb(key + self.degree, self.degree)


@dataclass(frozen=True)
class Powers(Features):
    """Tensor powers of x up to a degree, scaled so that <f(x), f(y)> = sum_i (x . y)^i / i!: exp(x . y), cut off.

    Source: the infinite features of DeepTransformers and Dot, Behrouz et al. 2025, arXiv:2505.23735.
    """

    degree: int

    def __post_init__(self):
        if self.degree < 0:
            raise ConfigError(f"the degree of Powers is {self.degree}; wanted at least 0")

    def __call__(self, x):
        power = torch.ones_like(x[..., :1])
        parts = [power]
        for i in range(1, self.degree + 1):
            power = (power[..., :, None] * x[..., None, :]).flatten(-2)
            parts.append(power * factorial(i) ** -0.5)
        return torch.cat(parts, -1)

    def width(self, key):
        return sum(key**i for i in range(self.degree + 1))
