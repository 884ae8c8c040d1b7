"""The protocols of map quality: what is written, what is rendered, and how a rendering is scored.

A method is any object with `write(shot)` and `render(shot) -> depth [h, w] m, 0 where nothing is known`; `render` may
look at the pose and the camera of the shot it is given, never at its depth or image.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch

from streammem.geometry import motion_from_quaternion
from streammem.metrics import DepthError as Score
from streammem.metrics import average, depth_error

NEAR_M, FAR_M = 0.1, 3.5  # the range a depth is scored in
KITCHEN = "redkitchen"
CABINET = "tum_fr3_cabinet"
KITCHEN_HZ = 30.0  # of the original numbering, of which every third frame is here; the recording has no times


class Shot(NamedTuple):
    """One frame of a recording as plain arrays, so that every peer can read it."""

    depth: np.ndarray  # [h, w] float32, metres, 0 where unknown
    image: np.ndarray  # [h, w, 3] uint8
    pose: np.ndarray  # [4, 4] float64, world_from_camera
    intrinsics: np.ndarray  # [3, 3] float64, pixel centres at integers
    time_s: float = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the depth image."""
        return self.depth.shape


class Method(Protocol):
    """What a protocol needs of a map."""

    def write(self, shot: Shot) -> None:
        """Learn from one frame."""

    def render(self, shot: Shot) -> np.ndarray:
        """Depth [h, w] in metres of the map seen from the shot's pose, 0 where nothing is known."""


def rigid(pose: np.ndarray) -> np.ndarray:
    """The pose [4, 4] with the nearest rotation in place of its own."""
    u, _, vt = np.linalg.svd(pose[:3, :3])
    exact = pose.copy()
    exact[:3, :3] = u @ vt
    return exact


def recordings() -> Path:
    """Where recordings lie beside a checkout."""
    return Path(__file__).resolve().parents[3] / "shared" / "data"


@lru_cache(maxsize=2)
def load_kitchen(data: Path | None = None, limit: int | None = None) -> tuple[Shot, ...]:
    """The frames of 7-Scenes RedKitchen; the sensor's 65535 is unknown depth."""
    folder = (data or recordings()) / KITCHEN
    intrinsics = np.loadtxt(folder / "camera-intrinsics.txt")
    names = sorted(path.name.removesuffix(".pose.txt") for path in folder.glob("*.pose.txt"))[:limit]
    return tuple(_read(folder, name, intrinsics) for name in names)


@lru_cache(maxsize=1)
def load_cabinet(data: Path | None = None, limit: int | None = None) -> tuple[Shot, ...]:
    """The frames of TUM RGB-D freiburg3_cabinet: few and far apart."""
    folder = (data or recordings()) / CABINET
    table = torch.from_numpy(np.loadtxt(folder / "truth_cam_poses.txt")[:limit])
    poses = motion_from_quaternion(table[:, 1:4], table[:, 4:]).numpy()
    intrinsics = np.array([[535.4, 0, 320.1], [0, 539.2, 247.6], [0, 0, 1]])
    return tuple(
        Shot(
            _depth(folder / "depth_imgs" / f"{i:04d}_depth_raw.png", 5000),
            _image(folder / "raw_imgs" / f"{i:04d}_rgb_raw.jpg"),
            pose,
            intrinsics,
            float(table[i, 0]),
        )
        for i, pose in enumerate(poses)
    )


def _read(folder: Path, name: str, intrinsics: np.ndarray) -> Shot:
    pose = rigid(np.loadtxt(folder / f"{name}.pose.txt"))  # the recording's rotations are off by up to 4e-4
    depth, image = _depth(folder / f"{name}.depth.png", 1000), _image(folder / f"{name}.color.jpg")
    return Shot(depth, image, pose, intrinsics, int(name.split("-")[1]) / KITCHEN_HZ)


def _depth(path: Path, steps_per_metre: float) -> np.ndarray:
    steps = _image(path)[..., 0]
    return np.where(steps == 65535, 0, steps).astype(np.float32) / steps_per_metre


def _image(path: Path) -> np.ndarray:
    import open3d as o3d

    return o3d.t.io.read_image(str(path)).as_tensor().numpy()


def score(rendered: np.ndarray, depth: np.ndarray) -> Score:
    """One rendering against the sensor's depth in 0.1-3.5 m; errors are NaN where nothing is rendered."""
    return depth_error(torch.from_numpy(rendered), torch.from_numpy(depth), NEAR_M, FAR_M)


def held_out(frames: int) -> range:
    """Every tenth frame, the fifth first: what hindsight renders and never writes."""
    return range(5, frames, 10)


def streamed(frames: int, warm_up: int = 30) -> range:
    """Every fifth frame from the thirtieth on: what streaming scores."""
    return range(warm_up, frames, 5)


def hindsight(method: Method, frames: Sequence[Shot], clean: Sequence[Shot] | None = None) -> Score:
    """Write every frame but every tenth, then render those from the final map, scored against `clean` if given."""
    held = held_out(len(frames))
    for index, shot in enumerate(frames):
        if index not in held:
            method.write(shot)
    truth = frames if clean is None else clean
    return average(score(method.render(truth[i]), truth[i].depth) for i in held)


def streaming(
    method: Method, frames: Sequence[Shot], warm_up: int = 30, watch: Callable[[int, Score], None] | None = None
) -> Score:
    """Render frame t from the state before t is written, compare, write; scored every fifth frame from warm_up on."""
    scored, scores = streamed(len(frames), warm_up), []
    for index, shot in enumerate(frames):
        if index in scored:
            scores.append(score(method.render(shot), shot.depth))
            if watch is not None:
                watch(index, scores[-1])
        method.write(shot)
    return average(scores)
