"""What a user would pick today: the maps that ours is compared with, each as a `protocols.Method`."""

import numpy as np

from .protocols import FAR_M, Shot

DEPTH_SCALE = 1000.0  # Open3D reads millimetres


class Floor:
    """The previous frame's depth, warped into the present camera: what the last frame alone knows.

    Each pixel lands on a square of `splat` pixels; the nearest wins. One pixel is the most accurate, two cover more.
    """

    def __init__(self, splat: int = 1) -> None:
        self.splat = splat
        self.last: Shot | None = None

    def write(self, shot: Shot) -> None:
        self.last = shot

    def render(self, shot: Shot) -> np.ndarray:
        if self.last is None:
            return np.zeros(shot.size, np.float32)
        return warp(self.last, shot, self.splat)


def warp(source: Shot, target: Shot, splat: int = 1) -> np.ndarray:
    """Depth of `source` seen from `target`'s camera, by a z-buffer; 0 where no pixel lands."""
    height, width = target.size
    v, u = np.nonzero(source.depth > 0)
    z = source.depth[v, u].astype(np.float64)
    rays = np.linalg.inv(source.intrinsics) @ np.stack([u, v, np.ones_like(u)])  # [3, P]
    target_from_source = np.linalg.inv(target.pose) @ source.pose
    points = target_from_source[:3, :3] @ (rays * z) + target_from_source[:3, 3:]  # [3, P]
    points = points[:, points[2] > 0]
    x, y = (target.intrinsics @ points)[:2] / points[2]
    buffer = np.full(height * width, np.inf)
    offset = (splat - 1) / 2
    for dv in range(splat):
        for du in range(splat):
            col, row = np.rint(x + du - offset).astype(int), np.rint(y + dv - offset).astype(int)
            inside = (col >= 0) & (col < width) & (row >= 0) & (row < height)
            np.minimum.at(buffer, row[inside] * width + col[inside], points[2, inside])
    return np.where(np.isinf(buffer), 0, buffer).reshape(height, width).astype(np.float32)


class Frozen(Floor):
    """The first frame's depth, warped: never learns."""

    def write(self, shot: Shot) -> None:
        self.last = self.last or shot


class Open3D:
    """Open3D's VoxelBlockGrid with colour; its mesh is rendered by RaycastingScene.

    Both put the centre of pixel i at i + 0.5 (the integration truncates, `create_rays_pinhole` adds the half), while a
    recording puts it at i, so half a pixel is added to the principal point in both. In one alone it is a bias: 1.3 mm
    in the median on a steep plane, against 0.5 mm with both.
    """

    def __init__(self, voxel_size_m: float = 0.02, truncation: float = 4.0, blocks: int = 8000, seen: float = 1.0):
        import open3d as o3d

        self.o3d = o3d
        self.voxel_size_m, self.truncation, self.seen = voxel_size_m, truncation, seen
        self.grid = o3d.t.geometry.VoxelBlockGrid(
            ("tsdf", "weight", "color"), (o3d.core.float32,) * 3, ((1,), (1,), (3,)), voxel_size_m, 16, blocks
        )
        self.scene = None

    def camera(self, shot: Shot) -> tuple:
        """Intrinsics with Open3D's pixel centres, and camera_from_world."""
        intrinsics = shot.intrinsics.copy()
        intrinsics[:2, 2] += 0.5
        return self.o3d.core.Tensor(intrinsics), self.o3d.core.Tensor(np.linalg.inv(shot.pose))

    def prepare(self, shot: Shot) -> tuple:
        """The shot as Open3D wants it: depth image, colour image, intrinsics, camera_from_world."""
        image, tensor = self.o3d.t.geometry.Image, self.o3d.core.Tensor
        depth = image(tensor(np.rint(shot.depth * DEPTH_SCALE).astype(np.uint16)))
        return depth, image(tensor(shot.image)), *self.camera(shot)

    def touched(self, prepared: tuple):
        """Coordinates of the blocks the frame sees."""
        depth, _, *camera = prepared
        return self.grid.compute_unique_block_coordinates(depth, *camera, DEPTH_SCALE, FAR_M, self.truncation)

    def integrate(self, prepared: tuple) -> None:
        """Touch the blocks the frame sees and average it in: the part that is timed."""
        self.grid.integrate(self.touched(prepared), *prepared, DEPTH_SCALE, FAR_M, self.truncation)
        self.scene = None

    def write(self, shot: Shot) -> None:
        self.integrate(self.prepare(shot))

    def mesh(self):
        """The triangles of the map where it was seen at least `seen` times."""
        return self.grid.extract_triangle_mesh(weight_threshold=self.seen)

    def render(self, shot: Shot) -> np.ndarray:
        if self.scene is None:
            self.scene = self.o3d.t.geometry.RaycastingScene()
            self.scene.add_triangles(self.mesh())
        height, width = shot.size
        rays = self.scene.create_rays_pinhole(*self.camera(shot), width, height)
        depth = self.scene.cast_rays(rays)["t_hit"].numpy()
        return np.where(np.isfinite(depth), depth, 0).astype(np.float32)

    def occupied(self, points: np.ndarray) -> np.ndarray:
        """Which points [P, 3] have a seen voxel nearest to them, within half a voxel of a surface or behind it."""
        active = self.grid.hashmap().active_buf_indices()
        centres, slots = (x.numpy() for x in self.grid.voxel_coordinates_and_flattened_indices(active))
        value, weight = (self.grid.attribute(x).reshape((-1,)).numpy()[slots] for x in ("tsdf", "weight"))
        full = (weight >= self.seen) & (value * self.truncation < 0.5)
        low = np.rint(centres.min(0) / self.voxel_size_m).astype(int)
        shape = np.rint(centres.max(0) / self.voxel_size_m).astype(int) - low + 1
        solid = np.zeros(shape, bool)
        solid[tuple((np.rint(centres[full] / self.voxel_size_m).astype(int) - low).T)] = True
        index = np.rint(points / self.voxel_size_m).astype(int) - low
        within = ((index >= 0) & (index < shape)).all(-1)
        return within & solid[tuple(np.where(within[:, None], index, 0).T)]

    def raycast(self, prepared: tuple, size: tuple[int, int]):
        """Open3D's own ray cast of the grid from a prepared shot: depth, normal, colour."""
        channels = ["depth", "normal", "color"]
        blocks = self.touched(prepared)
        return self.grid.ray_cast(blocks, *prepared[2:], size[1], size[0], channels, DEPTH_SCALE, 0.1, FAR_M, self.seen)
