"""Intrinsics of a camera that nobody measured: fitted from the points that the network sees, given, or a median."""

import abc
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import pixel_grid
from streammem.recon.ring import Ring, median, noted, ring

STEPS = 10
LEAST = 1e-8
SHORTEST, LONGEST = 0.2, 10.0  # focal lengths in long sides of the picture: 136 and 6 degrees of view


class Lens(abc.ABC):
    """How intrinsics come about; a frozen value. (state, points) -> (state, K). The state: the last focal lengths."""

    def init(self, batch: int, device="cpu") -> Ring:
        """The state before the first view."""
        return ring(batch, self.window, device)

    @property
    def window(self) -> int:
        """How many focal lengths the state holds."""
        return 1

    @abc.abstractmethod
    def step(self, state: Ring, points: Tensor) -> tuple[Ring, Tensor]:
        """K [B, 3, 3] of a view whose points in its own axes are [B, h, w, 3]."""


@dataclass(frozen=True)
class Fitted(Lens):
    """Each view for itself, as the official code does; a long side where the points tell no plausible one."""

    def step(self, state: Ring, points: Tensor) -> tuple[Ring, Tensor]:
        height, width = points.shape[1:3]
        focal = plausible(focal_length(points), height, width)
        return noted(state, focal), matrix(_or_guess(focal, height, width), height, width)


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

    def step(self, state: Ring, points: Tensor) -> tuple[Ring, Tensor]:
        height, width = points.shape[1:3]
        state = noted(state, plausible(focal_length(points), height, width))
        return state, matrix(_or_guess(median(state), height, width), height, width)


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

    def step(self, state: Ring, points: Tensor) -> tuple[Ring, Tensor]:
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


def plausible(focal: Tensor, height: int, width: int) -> Tensor:
    """Focal lengths [B] that a lens can have, in long sides of its picture; NaN for the others."""
    share = focal / max(height, width)
    return torch.where((share > SHORTEST) & (share < LONGEST), focal, torch.nan)


def matrix(focal: Tensor, height: int, width: int) -> Tensor:
    """K [B, 3, 3] of focal lengths [B] and the middle pixel (w // 2, h // 2) of the picture."""
    K = torch.eye(3, dtype=focal.dtype, device=focal.device).repeat(len(focal), 1, 1)
    K[:, 0, 0] = K[:, 1, 1] = focal
    K[:, 0, 2], K[:, 1, 2] = width // 2, height // 2
    return K


def _or_guess(focal: Tensor, height: int, width: int) -> Tensor:
    """A long side, some 53 degrees of view, where nothing is known."""
    return torch.where(focal.isfinite(), focal, float(max(height, width)))
