"""TUM RGB-D recordings, and those in its format (Bonn): three lists of stamped lines, paired by time."""

from pathlib import Path

import numpy as np
import torch

from streammem.errors import SourceError
from streammem.geometry import motion_from_quaternion
from streammem.sources.recording import CAMERAS, Entry, Recording, camera_matrix, read_numbers


class TUM(Recording):
    """Frames from `rgb.txt`, `depth.txt` and, where it exists, `groundtruth.txt`.

    Each depth picture is paired with the colour picture nearest in time, and with the pose nearest to it, both
    within `tolerance_s`; closest pairs first, no picture twice. A frame's time is that of its depth picture, which
    is what the map learns from. Stamps may be out of order, doubled or missing.

    Counters: paired; dropped (a colour picture without depth); stale (a depth picture or a doubled stamp that
    nothing uses); unposed (frames without a pose: NaN).
    intrinsics: as in `Folder`; left out, the camera's name is looked for in the path ("freiburg1" to "freiburg3").

    Differs: the benchmark's own script pairs poses with colour stamps.
    """

    def __init__(
        self,
        path: str | Path,
        tolerance_s: float = 0.02,
        intrinsics=None,
        depth_scale: str | float = "tum",
        every: int = 1,
        limit: int | None = None,
        max_depth_m: float | None = None,
    ):
        folder = Path(path)
        colour, doubled_colour = _listing(folder, "rgb.txt")
        depth, doubled_depth = _listing(folder, "depth.txt")
        pairs = associate(list(depth), list(colour), tolerance_s)
        if not pairs:
            raise SourceError(f"{folder}: no depth picture is within {tolerance_s} s of a colour picture")
        poses = _groundtruth(folder)
        nearest = dict(associate([stamp for stamp, _ in pairs], list(poses), tolerance_s, once=False))
        entries = [
            Entry(folder / colour[c], folder / depth[d], poses[nearest[d]] if d in nearest else None, d)
            for d, c in pairs
        ]
        known = {
            "paired": len(pairs),
            "dropped": len(colour) - len(pairs) + doubled_colour,
            "stale": len(depth) - len(pairs) + doubled_depth,
        }
        conventions = {"depth_scale": depth_scale, "max_depth_m": max_depth_m}
        super().__init__(folder.name, entries[::every][:limit], _camera(folder, intrinsics), conventions, known)


def associate(stamps: list[float], others: list[float], tolerance_s: float, once: bool = True) -> list:
    """Pairs (stamp, other) nearest in time and at most `tolerance_s` apart, closest first, in order of the stamps.

    `once`: no other is used twice; a stamp whose nearest are taken stays alone.
    """
    ordered = np.sort(np.asarray(others, dtype=np.float64))
    candidates = []
    for stamp in stamps:
        low, high = np.searchsorted(ordered, (stamp - tolerance_s, stamp + tolerance_s), side="left")
        high += high < len(ordered) and ordered[high] == stamp + tolerance_s
        candidates += [(abs(stamp - other), stamp, other) for other in ordered[low:high].tolist()]
    pairs, used = {}, set()
    for _, stamp, other in sorted(candidates):
        if stamp not in pairs and not (once and other in used):
            pairs[stamp] = other
            used.add(other)
    return sorted(pairs.items())


def _listing(folder: Path, name: str) -> tuple[dict[float, str], int]:
    """Picture names by stamp, the first of doubled ones, and the number of doubles."""
    if not (folder / name).is_file():
        raise SourceError(f"{folder / name} is missing; a TUM recording has rgb.txt, depth.txt, often groundtruth.txt")
    listing, doubled = {}, 0
    for number, line in enumerate((folder / name).read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            stamp, picture = float(words[0]), words[1]
        except (ValueError, IndexError) as error:
            raise SourceError(f"{folder / name}, line {number} is {line!r}; wanted: stamp file") from error
        doubled += stamp in listing
        listing.setdefault(stamp, picture)
    return listing, doubled


def _groundtruth(folder: Path) -> dict[float, np.ndarray]:
    path = folder / "groundtruth.txt"
    if not path.is_file():
        return {}
    rows = read_numbers(path)
    if rows.shape[1] != 8:
        raise SourceError(f"{path} has {rows.shape[1]} columns; wanted 8: time tx ty tz qx qy qz qw")
    values = torch.from_numpy(rows)
    return dict(zip(rows[:, 0].tolist(), motion_from_quaternion(values[:, 1:4], values[:, 4:]).numpy()))


def _camera(folder: Path, intrinsics) -> np.ndarray:
    if intrinsics is not None:
        return camera_matrix(intrinsics)
    for name in CAMERAS:
        if name in str(folder.resolve()).lower():
            return camera_matrix(name)
    raise SourceError(f"{folder} does not name its camera; pass intrinsics=(fx, fy, cx, cy), or {', '.join(CAMERAS)}")
