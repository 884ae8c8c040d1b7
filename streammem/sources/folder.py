"""Folders of pictures: 7-Scenes, and colour, depth and poses side by side."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from streammem.errors import SourceError
from streammem.geometry import motion_from_quaternion
from streammem.sources.recording import Entry, Recording, camera_matrix, read_numbers

# The first pattern that finds files wins.
COLOUR = ("frame-*.color.*", "raw_imgs/*", "results/frame*", "colour/*", "color/*", "rgb/*", "images/*", "image/*")
DEPTH = ("frame-*.depth.*", "depth_imgs/*", "results/depth*", "depth/*", "depths/*")
POSES = ("frame-*.pose.txt", "poses/*.txt", "pose/*.txt")
POSE_LISTS = ("truth_cam_poses.txt", "poses.txt", "trajectory.txt", "trajectory.tum", "traj.txt")
INTRINSICS = ("camera-intrinsics.txt", "intrinsics.txt", "intrinsic/intrinsic_color.txt", "K.txt")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff")


class Folder(Recording):
    """Frames from a folder of pictures, paired by the numbers in their names, in their order.

    Looked for, under `path`: colour pictures in `COLOUR`, depth in `DEPTH`, one 4x4 pose (camera to world) a file in
    `POSES` or one pose a line in `POSE_LISTS` (TUM lines, or 12 or 16 numbers), intrinsics in `INTRINSICS`. Depth and
    poses may be absent.

    depth_scale, max_depth_m, resample: as in `door.frame_from`.
    intrinsics: instead of the file: fx fy cx cy, a matrix, or a name in `recording.CAMERAS`.
    rate_hz: the time of a frame is the stamp of its TUM line, or else the number in its name over this rate.
    every, limit: take every n-th frame, and at most so many.
    """

    def __init__(
        self,
        path: str | Path,
        depth_scale: str | float = "millimetres",
        intrinsics=None,
        every: int = 1,
        limit: int | None = None,
        rate_hz: float = 30.0,
        max_depth_m: float | None = None,
        resample: str = "refuse",
    ):
        folder = Path(path)
        colour = numbered(_files(folder, COLOUR, PICTURES))
        if not colour:
            raise SourceError(_nothing(folder))
        depth = numbered(_files(folder, DEPTH, PICTURES))
        if depth and not colour.keys() & depth.keys():
            names = f"{min(colour.values()).name} and {min(depth.values()).name}"
            raise SourceError(f"{folder}: colour and depth share no number in their names ({names}): pair them by name")
        poses, stamps = _poses(folder, list(colour))
        entries = [
            Entry(file, depth.get(key), poses.get(key), stamps.get(key, _time(key, order, rate_hz)))
            for order, (key, file) in enumerate(colour.items())
        ]
        K = _intrinsics(folder, intrinsics, bool(depth))
        conventions = {"depth_scale": depth_scale, "max_depth_m": max_depth_m, "resample": resample}
        super().__init__(folder.name, entries[::every][:limit], K, conventions)


def _files(folder: Path, patterns: Iterable[str], suffixes: tuple[str, ...]) -> list[Path]:
    for pattern in patterns:
        found = [file for file in folder.glob(pattern) if file.suffix.lower() in suffixes]
        if found:
            return found
    return []


def numbered(files: list[Path]) -> dict[tuple[int, ...], Path]:
    """Files by the numbers in their names, in the order of the numbers: 2 before 10."""
    numbered = {tuple(int(digits) for digits in re.findall(r"\d+", file.stem)): file for file in files}
    if len(numbered) < len(files) or () in numbered:
        names = ", ".join(sorted(file.name for file in files)[:3])
        raise SourceError(f"{files[0].parent}: names do not tell frames apart by their numbers ({names}, ...)")
    return dict(sorted(numbered.items()))


def _time(key: tuple[int, ...], order: int, rate_hz: float) -> float:
    plain = len(key) == 1 and key[0] < 10**7  # longer numbers are stamps of an unknown unit
    return (key[0] if plain else order) / rate_hz


def _poses(folder: Path, keys: list) -> tuple[dict, dict]:
    """Poses [4, 4] and time stamps by the numbers of the frame; both may lack frames, or be empty."""
    files = numbered(_files(folder, POSES, (".txt",)))
    if files:
        return {key: _matrices(read_numbers(file).reshape(1, -1), file)[0] for key, file in files.items()}, {}
    lists = [folder / name for name in POSE_LISTS if (folder / name).is_file()]
    if not lists:
        return {}, {}
    rows = read_numbers(lists[0])
    if len(rows) != len(keys):
        raise SourceError(f"{lists[0]} has {len(rows)} poses for {len(keys)} pictures; wanted one a picture, in order")
    stamps = rows[:, 0].tolist() if rows.shape[1] == 8 else []
    return dict(zip(keys, _matrices(rows, lists[0]))), dict(zip(keys, stamps))


def _matrices(rows: np.ndarray, path: Path) -> np.ndarray:
    """Poses [rows, 4, 4] from rows of 8 (time, translation, quaternion x y z w), 12 or 16 numbers."""
    columns = rows.shape[1]
    if columns == 8:
        values = torch.from_numpy(rows)
        return motion_from_quaternion(values[:, 1:4], values[:, 4:8]).numpy()
    if columns not in (12, 16):
        raise SourceError(f"{path} has {columns} numbers a pose; wanted 8 (TUM), 12 or 16 (a matrix)")
    matrices = np.tile(np.eye(4), (len(rows), 1, 1))
    matrices[:, : columns // 4] = rows.reshape(len(rows), -1, 4)
    return matrices


def _intrinsics(folder: Path, given, needed: bool) -> np.ndarray | None:
    if given is not None:
        return camera_matrix(given)
    for name in INTRINSICS:
        if (folder / name).is_file():
            return camera_matrix(read_numbers(folder / name))
    if needed:
        looked = ", ".join(INTRINSICS)
        raise SourceError(f"{folder} has depth but no intrinsics ({looked}); pass intrinsics=(fx, fy, cx, cy)")
    return None


def _nothing(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder; wanted one with pictures in {', '.join(COLOUR)}"
    if (folder / "rgb.txt").is_file():
        return f"{folder} holds rgb.txt: read it as a TUM recording (tum:{folder})"
    inside = ", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "nothing"
    return f"{folder} has no colour pictures; looked for {', '.join(COLOUR)}; found {inside}"
