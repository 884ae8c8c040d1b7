"""Streams of one linear map that moves: drift, rotation, switches, outliers. All seeds of a stream at once."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WIDTH, STEPS = 8, 2000


class Stream(NamedTuple):
    """Tokens of a map, one a frame, and the map at each."""

    key: Tensor  # [T, S, 1, K]
    value: Tensor  # [T, S, 1, 1]
    truth: Tensor  # [T, S, K, 1]


class Recipe(NamedTuple):
    """What a stream does; lengths in units of the map, which is on the unit sphere."""

    drift: float = 0.03
    noise: float = 0.1
    condition: float = 1.0  # of the covariance of the keys, whose trace is 1
    turn_rad: float = 0.0  # steady rotation a frame, in a plane of the map
    switch: int = 0  # frames between new maps
    outliers: float = 0.0  # share of values with noise of deviation 1


RECIPES = {
    "S1 tutorial": Recipe(),
    "S2 ill-conditioned": Recipe(condition=100),
    "S3 small noise": Recipe(drift=0.01, noise=0.01),
    "S4 rotation": Recipe(drift=0, turn_rad=0.02),
    "S5 switches": Recipe(drift=0, switch=200),
    "S6 outliers": Recipe(outliers=0.05),
    "S7 both": Recipe(drift=0.01, noise=0.01, condition=100),
}


def stream(recipe: Recipe, seeds: Sequence[int], steps: int = STEPS, width: int = WIDTH) -> Stream:
    """The stream of each seed, drawn in the tutorial's order: first the map, then drift, key and noise of each step."""
    made = [_one(recipe, np.random.default_rng(seed), steps, width) for seed in seeds]
    key, value, truth = (np.stack(parts, 1) for parts in zip(*made))
    return Stream(*(torch.from_numpy(a) for a in (key[:, :, None, :], value[:, :, None, None], truth[..., None])))


def _one(recipe: Recipe, rng: np.random.Generator, steps: int, width: int):
    start = _unit(rng.normal(size=width))
    draws = rng.normal(size=(steps, 2 * width + 1))
    scale = np.geomspace(1, 1 / recipe.condition, width)
    key = draws[:, width : 2 * width] * np.sqrt(scale / scale.sum())
    truth = _moving(recipe, rng)(start, draws[:, :width])
    noise = recipe.noise * draws[:, -1]
    struck = rng.random(steps) < recipe.outliers
    noise = noise + struck * rng.normal(size=steps)
    return key, (key * truth).sum(-1) + noise, truth


def _moving(recipe: Recipe, rng: np.random.Generator) -> Callable:
    def drift(w: np.ndarray, draws: np.ndarray) -> np.ndarray:
        path = np.empty_like(draws)
        for t, draw in enumerate(draws):
            path[t] = w = _unit(w + recipe.drift * draw)
        return path

    def turn(w: np.ndarray, draws: np.ndarray) -> np.ndarray:
        other = rng.normal(size=len(w))
        other = _unit(other - (other @ w) * w)
        angle = recipe.turn_rad * np.arange(1, len(draws) + 1)[:, None]
        return np.cos(angle) * w + np.sin(angle) * other

    def switch(w: np.ndarray, draws: np.ndarray) -> np.ndarray:
        maps = [w, *(_unit(rng.normal(size=len(w))) for _ in range(len(draws) // recipe.switch))]
        return np.stack([maps[t // recipe.switch] for t in range(len(draws))])

    return turn if recipe.turn_rad else switch if recipe.switch else drift


def _unit(w: np.ndarray) -> np.ndarray:
    return w / np.linalg.norm(w)
