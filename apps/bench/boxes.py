"""A box that was never there, rendered into a frame's depth and colour with the right occlusion."""

import numpy as np

from .protocols import NEAR_M, Shot

COLOURS = np.array([[200, 60, 40], [60, 160, 70], [50, 80, 200]], np.float64)  # of the faces across x, y, z


def cast_box(shot: Shot, centre: np.ndarray, size_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Depth [h, w] and face (0, 1, 2) of an axis-aligned cube seen from the shot's camera; 0 where a ray misses.

    The slab method: a ray is inside where it is inside all three pairs of planes.
    """
    height, width = shot.size
    v, u = np.mgrid[:height, :width]
    in_camera = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(shot.intrinsics).T  # [h, w, 3], z = 1
    rays = in_camera @ shot.pose[:3, :3].T
    with np.errstate(divide="ignore", invalid="ignore"):
        planes = (centre + np.array([[-0.5], [0.5]]) * size_m - shot.pose[:3, 3])[:, None, None] / rays
    enter, leave = planes.min(0), planes.max(0)  # [h, w, 3]
    face, depth = enter.argmax(-1), enter.max(-1)
    hit = (depth < leave.min(-1)) & (depth > NEAR_M)
    return np.where(hit, depth, 0).astype(np.float32), face


def with_box(shot: Shot, centre: np.ndarray, size_m: float) -> Shot:
    """The shot as it would be with an axis-aligned cube in the scene; unknown depth behind it becomes known."""
    depth, face = cast_box(shot, centre, size_m)
    front = (depth > 0) & ((shot.depth == 0) | (depth < shot.depth))
    shade = COLOURS[face] * (1.2 - 0.15 * np.clip(depth, 0, 4)[..., None])
    image = np.where(front[..., None], shade.clip(0, 255), shot.image).astype(np.uint8)
    return shot._replace(depth=np.where(front, depth, shot.depth), image=image)


def inside(centres: np.ndarray, size_m: float, spacing_m: float = 0.02) -> np.ndarray:
    """Points [P, 3] on a grid that some box of `centres` contained: the volume that it passed through."""
    low, high = centres.min(0) - size_m / 2, centres.max(0) + size_m / 2
    axes = [np.arange(a, b, spacing_m) + spacing_m / 2 for a, b in zip(low, high)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    held = np.zeros(len(points), bool)
    for centre in centres:
        held |= (np.abs(points - centre) < size_m / 2).all(-1)
    return points[held]


def passage(frames: list[Shot], distance_m: float, reach_m: float) -> np.ndarray:
    """Centres [T, 3] of a box that crosses the view: a straight line through the world, walked at constant speed.

    From `reach_m` left of a point `distance_m` before the first camera to the right of the same before the last.
    """
    start = frames[0].pose @ np.array([-reach_m, 0, distance_m, 1])
    end = frames[-1].pose @ np.array([reach_m, 0, distance_m, 1])
    along = np.linspace(0, 1, len(frames))[:, None]
    return ((1 - along) * start + along * end)[:, :3]
