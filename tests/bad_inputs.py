"""Bad input by kind, for every test that hands it in: what a user does, and what must come of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from streammem.errors import ConfigError, ShapeError, SourceError


class BadInput(NamedTuple):
    """A fault: how it changes good arguments of `frame_from`, and the error, or the reason of the masked frame."""

    name: str
    change: Callable[[dict], dict]
    expected: type[Exception] | str


def good_inputs(height: int = 24, width: int = 32) -> dict:
    """Arguments of `frame_from` that nothing is wrong with: depth in millimetres, an identity pose."""
    random = np.random.default_rng(0)
    return {
        "image": random.integers(0, 256, (height, width, 3), dtype=np.uint8),
        "depth": random.integers(1000, 3000, (height, width)).astype(np.uint16),
        "intrinsics": np.array([[0.9 * width, 0, width / 2], [0, 0.9 * width, height / 2], [0, 0, 1]]),
        "world_from_camera": np.eye(4),
        "time_s": 1.0,
        "depth_scale": "millimetres",
    }


def _put(**values: Any) -> Callable[[dict], dict]:
    """The good arguments with some replaced; a function is given the good value."""
    return lambda good: {**good, **{k: v(good[k]) if callable(v) else v for k, v in values.items()}}


def _at(index, value) -> Callable[[np.ndarray], np.ndarray]:
    """A copy, in floats, with one entry replaced."""

    def change(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64)
        x[index] = value
        return x

    return change


def _all(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.full(x.shape, value, np.float32)


def _floats(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 255


MIRRORED = np.diag([1.0, 1.0, -1.0, 1.0])
SCALED = np.diag([1.1, 1.1, 1.1, 1.0])
TRANSPOSED = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0.5, 0.2, 0.1, 1]])

BAD_INPUTS = [
    # wrong by construction: wrong for every frame, so it raises
    BadInput("image without rows", _put(image=lambda x: x[:0]), ShapeError),
    BadInput("image in one dimension", _put(image=lambda x: x.ravel()), ShapeError),
    BadInput("image with alpha", _put(image=lambda x: np.concatenate([x, x[..., :1]], -1)), ShapeError),
    BadInput("image of wide integers", _put(image=lambda x: x.astype(np.int64)), SourceError),
    BadInput("image of floats to 255", _put(image=lambda x: x.astype(np.float32)), SourceError),
    BadInput("image of floats from -1", _put(image=lambda x: _floats(x) * 2 - 1), SourceError),
    BadInput("image that is a text", _put(image=lambda x: "frame.png"), SourceError),
    BadInput("depth in three channels", _put(depth=lambda x: np.stack([x] * 3, -1)), ShapeError),
    BadInput("depth of integers without a unit", _put(depth_scale=None), SourceError),
    BadInput("depth in an unknown unit", _put(depth_scale="inches"), ConfigError),
    BadInput("depth scale of zero", _put(depth_scale=0.0), ConfigError),
    BadInput("depth of half the size", _put(depth=lambda x: x[::2, ::2]), ShapeError),
    BadInput("depth of another view", _put(depth=lambda x: x[:, ::2], resample="depth_to_colour"), ShapeError),
    BadInput("unknown way to resample", _put(resample="guess"), ConfigError),
    BadInput("intrinsics of 3x4", _put(intrinsics=lambda x: np.eye(3, 4)), ShapeError),
    BadInput("intrinsics with a negative focal length", _put(intrinsics=_at((0, 0), -500.0)), SourceError),
    BadInput("intrinsics with NaN", _put(intrinsics=_at((0, 2), np.nan)), SourceError),
    BadInput("intrinsics written column by column", _put(intrinsics=lambda x: x.T), SourceError),
    BadInput("pose of 3x4", _put(world_from_camera=lambda x: x[:3]), ShapeError),
    BadInput("pose with a scale", _put(world_from_camera=SCALED), SourceError),
    BadInput("pose that mirrors", _put(world_from_camera=MIRRORED), SourceError),
    BadInput("pose written column by column", _put(world_from_camera=TRANSPOSED), SourceError),
    # wrong values of one frame: they cost this frame
    BadInput("depth of zeros", _put(depth=lambda x: 0 * x), "no valid depth"),
    BadInput("depth of 65535", _put(depth=lambda x: 0 * x + 65535), "no valid depth"),
    BadInput("depth of NaN", _put(depth=_all(np.nan)), "no valid depth"),
    BadInput("depth of Inf", _put(depth=_all(np.inf)), "no valid depth"),
    BadInput("depth below zero", _put(depth=_all(-1000.0)), "no valid depth"),
    BadInput("depth beyond the range", _put(max_depth_m=0.5, depth=lambda x: x), "no valid depth"),
    BadInput("pose with one NaN", _put(world_from_camera=_at((1, 3), np.nan)), "pose is not finite"),
    BadInput("pose with Inf", _put(world_from_camera=_at((0, 3), np.inf)), "pose is not finite"),
    BadInput("image with one NaN", _put(image=lambda x: _at((3, 4, 0), np.nan)(_floats(x))), "image is not finite"),
    BadInput("image with one 1e30", _put(image=lambda x: _at((3, 4, 0), 1e30)(_floats(x))), "image is out of range"),
    BadInput("time of NaN", _put(time_s=np.nan), "time is not finite"),
]
