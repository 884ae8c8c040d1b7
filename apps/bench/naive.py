"""Truncated signed distance fusion in a dense numpy array: what the textbook says, with nothing done for speed."""

import numpy as np

from .protocols import FAR_M, NEAR_M, Shot


class Naive:
    """A running average of truncated signed distances in a cube of voxels before a first camera.

    D <- (W D + d) / (W + 1);  W <- W + 1   where d > -truncation

    Source: Curless and Levoy 1996, SIGGRAPH.
    """

    def __init__(
        self, first: np.ndarray, voxel_size_m: float = 0.02, extent_m: float = 3.6, truncation_m: float = 0.08
    ):
        count, self.truncation_m = int(extent_m / voxel_size_m), truncation_m
        centre = (first @ np.array([0, 0, extent_m / 2, 1]))[:3]
        axis = ((np.arange(count) + 0.5) * voxel_size_m - extent_m / 2).astype(np.float32)
        grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
        self.points = grid + centre.astype(np.float32)  # [P, 3]
        self.distance = np.zeros(len(grid), np.float32)
        self.weight = np.zeros(len(grid), np.float32)

    def write(self, shot: Shot) -> None:
        camera_from_world = np.linalg.inv(shot.pose).astype(np.float32)
        x, y, z = (self.points @ camera_from_world[:3, :3].T + camera_from_world[:3, 3]).T
        k, (height, width) = shot.intrinsics.astype(np.float32), shot.size
        ahead = z > NEAR_M
        safe = np.where(ahead, z, np.inf)
        u = np.rint(k[0, 0] * x / safe + k[0, 2]).astype(np.int32)
        v = np.rint(k[1, 1] * y / safe + k[1, 2]).astype(np.int32)
        inside = ahead & (u >= 0) & (u < width) & (v >= 0) & (v < height)
        depth = np.where(inside, shot.depth[np.where(inside, v, 0), np.where(inside, u, 0)], 0)
        gap = depth - z
        seen = (depth > 0) & (depth < FAR_M) & (gap > -self.truncation_m)
        value, weight = np.minimum(gap[seen], self.truncation_m), self.weight[seen]
        self.distance[seen] = (weight * self.distance[seen] + value) / (weight + 1)
        self.weight[seen] = weight + 1
