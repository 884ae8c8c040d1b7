"""The values that flow: frames and tokens in, readouts out.

Letters of shapes, everywhere: `B` streams, `T` frames, `N` tokens of a frame, `H` heads, `K` key width, `V` value
width, `D` model width, `P` points, `h w` image rows and columns.
"""

from typing import NamedTuple

from torch import Tensor


class Gates(NamedTuple):
    """Rates of one write, made from the frame itself."""

    lr: Tensor  # step size of each token, [..., N, 1]
    retention: Tensor  # share of the old memory kept, in [0, 1]; 1 keeps all. [..., 1, 1], or [..., K, 1] for a matrix
    momentum: Tensor  # share of the last update kept, in [0, 1). [..., 1, 1]
    erase: Tensor | tuple = ()  # for rules that remove at a rate of their own, [..., N, K] or [..., N, 1]; (): at lr


class Tokens(NamedTuple):
    """One frame as a memory sees it: N tokens that are written at once."""

    query: Tensor  # [..., N, K]
    key: Tensor  # [..., N, K]
    value: Tensor  # [..., N, V]
    gates: Gates


class Frame(NamedTuple):
    """One instant of B camera streams.

    Pixel (u, v) is the ray through ((u - cx) / fx, (v - cy) / fy, 1): integer coordinates are pixel centres. Camera
    axes are OpenCV's: x right, y down, z forward. A field that a camera never brings is None; a value that is missing
    for one frame is invalid in place (depth 0, a pose of NaN), so that the structure of a stream never changes.
    """

    image: Tensor  # [B, 3, h, w] float32, in [-1, 1]
    depth: Tensor | None  # [B, h, w] float32, metres along the optical axis; 0 where unknown
    intrinsics: Tensor | None  # [B, 3, 3] float32, pixels
    world_from_camera: Tensor | None  # [B, 4, 4] float64, metres; NaN where this frame brings none
    time_s: Tensor  # [B] float64
    valid: Tensor  # [B] bool: may be used
    reset: Tensor  # [B] bool: the stream starts over before this frame
