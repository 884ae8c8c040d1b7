"""Intrinsics of a camera that nobody measured: fitted from the points that the network sees, given, or a median."""

import abc
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import pixel_grid

STEPS = 10
LEAST = 1e-8


class LensState(NamedTuple):
    """Focal lengths that were fitted lately, NaN where none was yet; a ring."""

    focal: Tensor  # [B, n] pixels
    count: Tensor  # [B] int64, fitted since the stream started


class Lens(abc.ABC):
    """How intrinsics come about; a frozen value. (state, points) -> (state, K)."""

    def init(self, batch: int, device="cpu") -> LensState:
        """The state before the first view."""
        count = torch.zeros(batch, dtype=torch.int64, device=device)
        return LensState(torch.full((batch, self.window), torch.nan, device=device), count)

    @property
    def window(self) -> int:
        """How many focal lengths the state holds."""
        return 1

    @abc.abstractmethod
    def step(self, state: LensState, points: Tensor) -> tuple[LensState, Tensor]:
        """K [B, 3, 3] of a view whose points in its own axes are [B, h, w, 3]."""


@dataclass(frozen=True)
class Fitted(Lens):
    """Each view for itself, as the official code does."""

    def step(self, state: LensState, points: Tensor) -> tuple[LensState, Tensor]:
        focal = focal_length(points)
        return _noted(state, focal), matrix(focal, *points.shape[1:3])


@dataclass(frozen=True)
class Median(Lens):
    """The median of the last views' fits: a lens that does not zoom, seen through noise.

    Views whose points tell no focal length count for nothing.
    Raises: ConfigError for a window without a view.
    """

    views: int = 31

    def __post_init__(self):
        if self.views < 1:
            raise ConfigError(f"views is {self.views}; wanted at least 1")

    @property
    def window(self) -> int:
        return self.views

    def step(self, state: LensState, points: Tensor) -> tuple[LensState, Tensor]:
        height, width = points.shape[1:3]
        state = _noted(state, focal_length(points))
        middle = state.focal.nanmedian(-1).values
        return state, matrix(torch.where(middle.isfinite(), middle, float(max(height, width))), height, width)


@dataclass(frozen=True)
class Fixed(Lens):
    """Known intrinsics of the model's picture: fx, fy, cx, cy in pixels.

    Raises: ConfigError for focal lengths that are none.
    """

    fx: float
    fy: float
    cx: float
    cy: float

    def __post_init__(self):
        if not (self.fx > 0 and self.fy > 0 and math.isfinite(self.fx + self.fy + self.cx + self.cy)):
            raise ConfigError(f"{self}; wanted finite numbers and positive focal lengths")

    def step(self, state: LensState, points: Tensor) -> tuple[LensState, Tensor]:
        rows = [[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]]
        return state, torch.tensor(rows, dtype=points.dtype, device=points.device).expand(len(points), 3, 3)


def focal_length(points: Tensor, steps: int = STEPS) -> Tensor:
    """The focal length under which points fall on their own pixels: least absolute offsets by reweighting.

        p = pixel - (w // 2, h // 2);  s = (x, y) / z, 0 where not finite
        f = mean(s . p) / mean(s . s);  then, `steps` times:
        weight = 1 / max(|p - f s|, 1e-8);  f = mean(weight s . p) / mean(weight s . s)

    Shapes: points [B, h, w, 3] in the camera's axes; result [B] pixels, one for both axes.
    Raises: nothing; a view whose points have no rays (all on the axis, or none finite) gives NaN.
    Source: CUT3R's code, after Weiszfeld 1937; DUSt3R, Wang et al. 2024, arXiv:2312.14132, section 3.3.
    """
    height, width = points.shape[1:3]
    u, v = pixel_grid(height, width, points)
    pixel = torch.stack([(u - width // 2).expand(height, -1), (v - height // 2).expand(-1, width)], -1)  # [h, w, 2]
    ray = points[..., :2] / points[..., 2:]
    ray = torch.where(ray.isfinite().all(-1, keepdim=True), ray, 0.0)  # [B, h, w, 2]
    across, along = (ray * pixel).sum(-1), ray.square().sum(-1)  # [B, h, w]
    focal = across.mean((1, 2)) / along.mean((1, 2))
    for _ in range(steps):
        offset = (pixel - focal[:, None, None, None] * ray).norm(dim=-1)
        weight = 1 / offset.clamp(min=LEAST)
        focal = (weight * across).mean((1, 2)) / (weight * along).mean((1, 2))
    return focal


def matrix(focal: Tensor, height: int, width: int) -> Tensor:
    """K [B, 3, 3] of focal lengths [B] and the middle pixel (w // 2, h // 2) of the picture."""
    K = torch.eye(3, dtype=focal.dtype, device=focal.device).repeat(len(focal), 1, 1)
    K[:, 0, 0] = K[:, 1, 1] = focal
    K[:, 0, 2], K[:, 1, 2] = width // 2, height // 2
    return K


def _noted(state: LensState, focal: Tensor) -> LensState:
    """The ring with one more fit in it, where it is a focal length."""
    good = focal.isfinite() & (focal > 0)
    at = (state.count % state.focal.shape[1])[:, None]
    kept = torch.where(good[:, None], focal[:, None], state.focal.gather(1, at))
    return LensState(state.focal.scatter(1, at, kept), state.count + good)
