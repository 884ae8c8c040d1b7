"""What is wrong with a stream, said in words after its first frames, before anything is learnt from them."""

import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import ConfigError, SourceError
from streammem.geometry import inverse_rigid, project, transform, unproject
from streammem.types import Frame

SIZE = 80  # rows or so that depth maps are thinned to for the comparison of poses
WORST = 0.1  # residuals, as shares of the depth, count no more than this
BETTER = 0.6  # another reading is believed when it leaves less than this share of the residual,
LEAST = 0.004  # and this much less of the depth
SHARED = 0.5  # pairs of frames that share less than this are not compared


class Finding(NamedTuple):
    """One thing that looks wrong."""

    kind: str
    message: str
    severity: str  # "severe": learning from it would be learning nonsense; "warning": worth a look


class FirstFramesCheck:
    """Frames passed on unchanged after the first `first` of them were looked at.

    check: "raise" (severe findings are a SourceError), "warn" (all are left in `findings`), or "off".
    """

    def __init__(self, frames: Iterable[Frame], first: int = 12, check: str = "raise"):
        if check not in ("raise", "warn", "off"):
            raise ConfigError(f"check is {check!r}; wanted raise, warn or off")
        self.frames, self.first, self.check = frames, first, check
        self.findings: list[Finding] = []

    def __iter__(self) -> Iterator[Frame]:
        frames = iter(self.frames)
        if self.check == "off":
            return frames
        seen = list(islice(frames, self.first))
        self.findings = check_frames(seen)
        severe = [finding.message for finding in self.findings if finding.severity == "severe"]
        if severe and self.check == "raise":
            raise SourceError("; ".join(severe) + " (check='warn' goes on all the same)")
        return chain(seen, frames)


def check_frames(frames: list[Frame]) -> list[Finding]:
    """What looks wrong in the first frames of a stream; looks at the values of stream 0 from the host."""
    if not frames:
        return [Finding("empty", "the source has no frames", "severe")]
    findings = [*_times(frames), *_intrinsics(frames[0])]
    depths = [frame.depth[0] for frame in frames if frame.depth is not None]
    if depths:
        findings += _depth_range(depths)
    posed = [frame for frame in frames if frame.world_from_camera is not None and bool(frame.valid[0])]
    posed = [frame for frame in posed if bool(frame.world_from_camera[0].isfinite().all())]
    if len(posed) > 1:
        findings += _still(posed) + _steps(posed)
        usable = depths and frames[0].intrinsics is not None and not any(f.severity == "severe" for f in findings)
        findings += _agreement(posed) if usable else []
    return findings


def _times(frames: list[Frame]) -> list[Finding]:
    times = [float(frame.time_s[0]) for frame in frames if bool(frame.valid[0])]
    for i, (before, now) in enumerate(zip(times, times[1:]), 1):
        if now < before:
            return [Finding("time", f"time runs backwards: {now:.6f} s follows {before:.6f} s at frame {i}", "severe")]
        if now == before:
            return [
                Finding("time", f"time stands still: frame {i} has the stamp of the one before, {now:.6f} s", "severe")
            ]
    return []


def _intrinsics(frame: Frame) -> list[Finding]:
    if frame.intrinsics is None:
        return []
    K, (h, w) = frame.intrinsics[0], frame.image.shape[-2:]
    fx, fy, cx, cy = (float(K[i, j]) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2)))
    if max(abs(cx / w - 0.5), abs(cy / h - 0.5)) > 0.2:
        made_for = f"about {2 * cx:.0f}x{2 * cy:.0f}"
        return [Finding("intrinsics", f"intrinsics are for {made_for} pixels, the image is {w}x{h}", "severe")]
    if not 0.25 < fx / w < 8 or not 0.7 < fx / fy < 1.4:
        text = f"focal lengths {fx:.4g} and {fy:.4g} are odd for an image of {w}x{h} pixels"
        return [Finding("intrinsics", text, "warning")]
    return []


def _depth_range(depths: list[Tensor]) -> list[Finding]:
    known = [depth[depth > 0] for depth in depths]
    empty = sum(k.numel() == 0 for k in known)
    if empty == len(known):
        return [Finding("depth", f"none of the first {empty} frames has a valid depth", "severe")]
    findings = []
    if empty:
        text = f"{empty} of the first {len(known)} frames have no valid depth"
        findings.append(Finding("depth", text, "warning"))
    median = float(torch.cat(known).median())
    if median > 60:
        unit = "millimetres (depth_scale='millimetres') or in 5000 a metre ('tum')"
        text = f"median depth is {median:.4g} m: is it in {unit}?"
        findings.append(Finding("depth_scale", text, "severe"))
    elif median < 0.05:
        text = f"median depth is {median:.4g} m: was it in metres already (depth_scale='metres')?"
        findings.append(Finding("depth_scale", text, "severe"))
    return findings


def _still(frames: list[Frame]) -> list[Finding]:
    poses = torch.stack([frame.world_from_camera[0] for frame in frames])
    if float((poses - poses[0]).abs().max()) > 1e-9:
        return []
    a, b = frames[0].image[0], frames[-1].image[0]
    changed = float(((a - b).abs().amax(0) > 0.1).float().mean()) if a.shape == b.shape else 0.0
    if changed < 0.3:
        return []
    return [Finding("still_poses", f"all poses are equal while {changed:.0%} of the image changes", "warning")]


def _steps(frames: list[Frame]) -> list[Finding]:
    centres = torch.stack([frame.world_from_camera[0, :3, 3] for frame in frames])
    step = float((centres[1:] - centres[:-1]).norm(dim=-1).median())
    if step < 10:
        return []
    return [Finding("pose_units", f"the camera moves {step:.4g} m from frame to frame: are poses in metres?", "severe")]


def _agreement(frames: list[Frame]) -> list[Finding]:
    """Whether depth maps agree better when poses are read backwards, or the depth in another unit."""
    given = _disagreement(frames, inverted=False, scale=1.0)
    others = {
        "pose_direction": (True, 1.0, "poses look inverted (camera_from_world): pass their inverse"),
        "depth_scale": (
            False,
            0.2,
            "depth is 5 times too large for the poses: is it 5000 a metre ('tum')?",
        ),
        "depth_scale ": (False, 5.0, "depth is 5 times too small for the poses: is it in millimetres?"),
    }
    for kind, (inverted, scale, words) in others.items():
        other = _disagreement(frames, inverted, scale)
        if other < BETTER * given and given - other > LEAST:
            text = f"{words} (depth maps disagree by {given:.1%} as given, by {other:.1%} so)"
            return [Finding(kind.strip(), text, "severe")]
    return []


def _disagreement(frames: list[Frame], inverted: bool, scale: float) -> float:
    """Mean residual between depth maps, of frames that follow each other and of the first with all others."""
    pairs = {(0, i) for i in range(1, len(frames))} | {(i, i + 1) for i in range(len(frames) - 1)}
    residuals = [_residual(frames[i], frames[j], inverted, scale) for i, j in pairs]
    residuals = [residual for residual in residuals if residual is not None]
    return sum(residuals) / len(residuals) if residuals else WORST


def _residual(one: Frame, other: Frame, inverted: bool, scale: float) -> float | None:
    """Mean residual, as a share of the depth, of one frame's points seen in another; None where few are seen."""
    thin = max(1, math.ceil(one.depth.shape[-2] / SIZE))
    depth = one.depth[0, ::thin, ::thin] * scale
    K = one.intrinsics[0] / one.intrinsics.new_tensor([[thin], [thin], [1]])  # every `thin`-th pixel centre
    points = unproject(depth, K)[depth > 0]  # [P, 3]
    poses = one.world_from_camera[0], other.world_from_camera[0]
    here, there = map(inverse_rigid, poses) if inverted else poses
    u, v, z = project(transform(inverse_rigid(there) @ here, points), other.intrinsics[0])
    h, w = other.depth.shape[-2:]
    u, v = u.nan_to_num(-1, -1, -1).round(), v.nan_to_num(-1, -1, -1).round()
    inside = (z > 0) & (u >= 0) & (u < w) & (v >= 0) & (v < h)
    seen = other.depth[0, v[inside].long(), u[inside].long()] * scale
    residual = ((z[inside] - seen).abs() / z[inside]).clamp(max=WORST)[seen > 0]
    return float(residual.mean()) if residual.numel() > SHARED * points.shape[0] > 0 else None
