"""Where anybody's pictures become frames: every convention is stated, every fault is said or counted.

Two kinds of fault. What is wrong by construction (shapes, units, a matrix that is no pose) is wrong for every frame:
it raises. What is wrong with the values of one frame costs that frame: `valid` is False and `counters` says why.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from streammem.errors import ConfigError, ShapeError, SourceError
from streammem.geometry import orthonormalise, rigid_error, scale_intrinsics
from streammem.types import Frame

DEPTH_SCALES = {"millimetres": 1000.0, "tum": 5000.0, "metres": 1.0}  # units per metre
RESAMPLE = ("refuse", "depth_to_colour", "colour_to_depth")
SATURATED = 65535  # what 16-bit depth cameras write for "too far"
RIGID_TOLERANCE = 0.01  # recorded poses are off by up to 1e-3


@dataclass
class Door:
    """The conventions of one camera, said once: `door(image, depth, intrinsics, pose, time_s)` gives frames.

    The first frame sets the fields and the image size of the stream; a later frame of another size, or without a
    field that the first one had, is masked and counted.
    """

    depth_scale: str | float | None = None  # as in `frame_from`
    max_depth_m: float | None = None
    resample: str = "refuse"
    counters: Counter = field(default_factory=Counter)
    blank: Frame | None = None  # a masked frame of this stream's structure, known after the first one

    def __call__(self, image, depth=None, intrinsics=None, world_from_camera=None, time_s: float = 0.0) -> Frame:
        frame = frame_from(
            image, depth, intrinsics, world_from_camera, time_s,
            depth_scale=self.depth_scale, max_depth_m=self.max_depth_m, resample=self.resample, counters=self.counters,
        )  # fmt: skip
        if self.blank is None:
            self.blank = _blank(frame)
        for new, old, name in zip(frame, self.blank, Frame._fields):
            if (new is None) != (old is None) or (new is not None and new.shape != old.shape):
                return self.masked(f"{name} changed size", float(frame.time_s))
        return frame

    def masked(self, reason: str, time_s: float) -> Frame:
        """A frame that did not arrive: nothing in it, valid False, counted under `reason`."""
        if self.blank is None:
            raise SourceError(f"the first frame cannot be read ({reason}): the size of the stream is not known")
        self.counters[f"invalid: {reason}"] += 1
        return self.blank._replace(time_s=torch.full_like(self.blank.time_s, time_s))


def frame_from(
    image,
    depth=None,
    intrinsics=None,
    world_from_camera=None,
    time_s: float = 0.0,
    *,
    depth_scale: str | float | None = None,
    max_depth_m: float | None = None,
    resample: str = "refuse",
    counters: Counter | None = None,
) -> Frame:
    """One frame (B = 1) from what a camera gives, in numpy, torch or lists.

    image: RGB, [h, w, 3] or [3, h, w] (grey: [h, w]); uint8, or floats in [0, 1].
    depth: [h, w] along the optical axis; 0, negative, NaN, Inf and 65535 mean unknown, and so does more than
        `max_depth_m`. `depth_scale` is "millimetres", "tum" (5000 a metre), "metres" or a number of units per metre;
        integers need it, floats are metres without it.
    intrinsics: [3, 3] in pixels of `image`, pixel centres at integer coordinates, no skew.
    world_from_camera: [4, 4] in metres, OpenCV camera axes; made exactly rigid. All NaN: this frame has no pose.
    resample: what to do when colour and depth, aligned to one view, differ in size: "refuse", "depth_to_colour"
        (nearest), or "colour_to_depth" (area; the intrinsics follow).
    counters: counts "invalid: REASON" for masked frames and "unposed".

    Raises: ShapeError, SourceError, ConfigError for what is wrong by construction. A single frame's values (no valid
        depth, a pose or an image that is not finite, a time that is not) give `valid` False and zeros or NaN in place.
    """
    if resample not in RESAMPLE:
        raise ConfigError(f"resample is {resample!r}; wanted one of {', '.join(RESAMPLE)}")
    reasons = []
    colour = _image(image, reasons)  # [1, 3, h, w]
    metres = None if depth is None else _depth(depth, depth_scale, max_depth_m, reasons).to(colour.device)  # [1, h, w]
    lens = None if intrinsics is None else _intrinsics(intrinsics).to(colour.device)  # [1, 3, 3]
    pose = None if world_from_camera is None else _pose(world_from_camera, reasons).to(colour.device)  # [1, 4, 4]
    if metres is not None and metres.shape[-2:] != colour.shape[-2:]:
        colour, metres, lens = _one_size(colour, metres, lens, resample)
    if not np.isfinite(time_s):
        reasons.append("time is not finite")
        time_s = 0.0
    counters = Counter() if counters is None else counters
    counters.update(f"invalid: {reason}" for reason in reasons)
    if pose is not None and not reasons and bool(pose.isnan().any()):
        counters["unposed"] += 1
    flags = torch.tensor([[not reasons], [False]], device=colour.device)
    time = torch.tensor([float(time_s)], dtype=torch.float64, device=colour.device)
    return Frame(colour, metres, lens, pose, time, valid=flags[0], reset=flags[1])


def units_per_metre(depth_scale: str | float) -> float:
    """The number of depth units in a metre, from a preset's name or a number."""
    if isinstance(depth_scale, str):
        if depth_scale not in DEPTH_SCALES:
            raise ConfigError(f"depth_scale is {depth_scale!r}; wanted {', '.join(DEPTH_SCALES)} or units per metre")
        return DEPTH_SCALES[depth_scale]
    if not (np.isfinite(depth_scale) and depth_scale > 0):
        raise ConfigError(f"depth_scale is {depth_scale}; wanted a positive number of units per metre")
    return float(depth_scale)


def _tensor(x, name: str) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    array = np.array(x)  # a copy: what a decoder hands out may be read-only
    if array.dtype.kind not in "uif":
        raise SourceError(f"{name} has type {array.dtype}; wanted numbers (numpy, torch or nested lists)")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


def _image(image, reasons: list[str]) -> Tensor:
    x = _tensor(image, "image")
    if x.ndim == 2:
        x = x[..., None].expand(*x.shape, 3)
    if x.ndim == 4 and x.shape[0] == 1:
        x = x[0]
    if x.ndim != 3 or x.numel() == 0 or 3 not in (x.shape[0], x.shape[-1]):
        hint = ": drop the alpha channel" if x.ndim == 3 and 4 in (x.shape[0], x.shape[-1]) else ""
        raise ShapeError(f"image is {list(x.shape)}; wanted [h, w, 3] or [3, h, w]{hint}")
    x = x.permute(2, 0, 1) if x.shape[-1] == 3 else x
    if x.dtype == torch.uint8:
        return (x.to(torch.float32) / 127.5 - 1)[None].contiguous()
    if not x.is_floating_point():
        raise SourceError(f"image is {x.dtype}; wanted uint8, or floats in [0, 1]")
    x = x.to(torch.float32)
    outside = float(((x < -0.05) | (x > 1.05)).float().mean())
    if outside > 0.01:
        raise SourceError(
            f"image runs from {float(x.nan_to_num().min()):.3g} to {float(x.nan_to_num().max()):.3g}; wanted uint8, or "
            "floats in [0, 1]: divide by 255, or map [-1, 1] by (image + 1) / 2"
        )
    if not bool(x.isfinite().all()):
        reasons.append("image is not finite")
    elif outside > 0:
        reasons.append("image is out of range")
    return (x.nan_to_num().clamp(0, 1) * 2 - 1)[None].contiguous()


def _depth(depth, depth_scale, max_depth_m: float | None, reasons: list[str]) -> Tensor:
    x = _tensor(depth, "depth")
    shape = list(x.shape)
    if x.ndim == 3 and 1 in (shape[0], shape[-1]):
        x = x[0] if shape[0] == 1 else x[..., 0]
    if x.ndim != 2 or x.numel() == 0:
        raise ShapeError(f"depth is {shape}; wanted [h, w]")
    if depth_scale is None and not x.is_floating_point():
        raise SourceError(
            f"depth is {x.dtype} and its unit is not given; say depth_scale='millimetres', 'tum' (5000 a metre), "
            "'metres', or a number of units per metre"
        )
    raw = x.to(torch.float32)
    metres = raw / units_per_metre("metres" if depth_scale is None else depth_scale)
    known = raw.isfinite() & (raw > 0) & (raw != SATURATED)
    if max_depth_m is not None:
        known &= metres <= max_depth_m
    if not bool(known.any()):
        reasons.append("no valid depth")
    return torch.where(known, metres, 0.0)[None]


def _intrinsics(intrinsics) -> Tensor:
    K = _tensor(intrinsics, "intrinsics").to(torch.float32)
    if K.ndim == 3 and K.shape[0] == 1:
        K = K[0]
    if K.shape != (3, 3):
        raise ShapeError(f"intrinsics are {list(K.shape)}; wanted [3, 3]: [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]")
    if not bool(K.isfinite().all()) or K[0, 0] <= 0 or K[1, 1] <= 0:
        raise SourceError(f"intrinsics have focal lengths {K[0, 0]:.6g} and {K[1, 1]:.6g}; wanted positive pixels")
    rest = K.clone()
    rest[0, 0] = rest[1, 1] = rest[0, 2] = rest[1, 2] = 0
    rest[2, 2] -= 1
    if bool((rest.abs() > 1e-3).any()):
        raise SourceError(f"intrinsics are {K.tolist()}; wanted [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] without skew")
    return K[None].clone()


def _pose(world_from_camera, reasons: list[str]) -> Tensor:
    T = _tensor(world_from_camera, "world_from_camera").to(torch.float64)
    if T.ndim == 3 and T.shape[0] == 1:
        T = T[0]
    if T.shape != (4, 4):
        hint = ": append the row 0 0 0 1" if T.shape == (3, 4) else ""
        raise ShapeError(f"world_from_camera is {list(T.shape)}; wanted [4, 4]{hint}")
    if not bool(T.isfinite().all()):
        if not bool(T.isnan().all()):
            reasons.append("pose is not finite")
        return torch.full_like(T, torch.nan)[None]
    off = float(rigid_error(T))
    if off > RIGID_TOLERANCE:
        moved = bool((T[:3, 3] == 0).all()) and float(rigid_error(T.mT)) <= RIGID_TOLERANCE
        hint = "; its transpose is rigid: the matrix is written column by column" if moved else ""
        raise SourceError(
            f"world_from_camera is off a rigid motion by {off:.2g}; wanted at most {RIGID_TOLERANCE}{hint}"
        )
    return orthonormalise(T)[None]


def _one_size(colour: Tensor, depth: Tensor, lens: Tensor | None, resample: str):
    (h, w), (dh, dw) = colour.shape[-2:], depth.shape[-2:]
    sizes = f"image is {w}x{h} and depth is {dw}x{dh}"
    if abs(w * dh / (h * dw) - 1) > 0.02:
        raise ShapeError(f"{sizes}: not one view; register the depth to the colour camera first")
    if resample == "refuse":
        raise ShapeError(
            f"{sizes}; wanted one size: resample='depth_to_colour' or 'colour_to_depth' if they are aligned"
        )
    if resample == "depth_to_colour":
        return colour, F.interpolate(depth[None], (h, w), mode="nearest-exact")[0], lens
    lens = None if lens is None else scale_intrinsics(lens, dw / w, dh / h)
    return F.interpolate(colour, (dh, dw), mode="area"), depth, lens


def _blank(frame: Frame) -> Frame:
    def empty(x: Tensor | None) -> Tensor | None:
        return None if x is None else torch.zeros_like(x)

    pose = None if frame.world_from_camera is None else torch.full_like(frame.world_from_camera, torch.nan)
    return Frame(*map(empty, frame))._replace(intrinsics=frame.intrinsics, world_from_camera=pose)
