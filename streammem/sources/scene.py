"""Scenes of solids known exactly: a signed distance function, and depth and colour by exact ray intersection.

World axes: x and y along the floor, z up; gravity points along -z. Units: metres.
"""

import abc
import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from streammem.geometry import Camera
from streammem.sources.texture import Texture, paint

CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
NEAR_M = 0.05


class Rendering(NamedTuple):
    """What a perfect camera sees."""

    depth: Tensor  # [h, w], metres along the optical axis; 0 where a ray meets nothing
    colour: Tensor  # [h, w, 3], in [0, 1]
    normal: Tensor  # [h, w, 3], unit, in the world, towards the camera's side


@dataclass(frozen=True)
class Solid(abc.ABC):
    """A convex body, turned by `yaw` about its own vertical axis."""

    centre: tuple[float, float, float]  # metres
    half: tuple[float, float, float]  # half extents along its own axes, metres
    yaw: float = 0.0  # radians
    texture: Texture = field(default_factory=Texture)

    round: ClassVar[float] = 0.0  # 0: flat sides, 1: round in the plane, 2: round all over
    outward: ClassVar[float] = 1.0  # -1 for a hollow, seen from inside

    @abc.abstractmethod
    def distance(self, local: Tensor) -> Tensor:
        """Signed distance of points [..., 3] in the solid's own axes, negative inside."""

    @abc.abstractmethod
    def hit(self, origin: Tensor, ray: Tensor, half: Tensor) -> Tensor:
        """Depth [h, w] where rays [3, h, w] from origin [3, 1, 1], in its own axes, first meet it; inf: they miss."""

    def local(self, points: Tensor) -> Tensor:
        """Points [..., 3] of the world in the solid's own axes."""
        return (points - points.new_tensor(self.centre)) @ points.new_tensor(self.turn())

    def turn(self) -> list[list[float]]:
        """The rotation world_from_solid."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return [[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]


class Box(Solid):
    """A cuboid."""

    def distance(self, local):
        outside = local.abs() - local.new_tensor(self.half)
        return outside.clamp(min=0).norm(dim=-1) + outside.amax(-1).clamp(max=0)

    def hit(self, origin, ray, half):
        near, far = _slabs(origin, ray, half)
        return _first(near, far)


class Room(Box):
    """The hollow of a cuboid, seen from inside: its distance is positive in the room."""

    outward: ClassVar[float] = -1.0

    def distance(self, local):
        return -Box.distance(self, local)

    def hit(self, origin, ray, half):
        return _slabs(origin, ray, half)[1]


class Cylinder(Solid):
    """An upright cylinder: half is (radius, radius, half the height)."""

    round: ClassVar[float] = 1.0

    def distance(self, local):
        side = local[..., :2].norm(dim=-1) - self.half[0]
        cap = local[..., 2].abs() - self.half[2]
        outside = torch.stack([side, cap], -1)
        return outside.clamp(min=0).norm(dim=-1) + outside.amax(-1).clamp(max=0)

    def hit(self, origin, ray, half):
        near, far = _quadric(origin[:2], ray[:2], self.half[0])
        bottom, top = _slabs(origin[2:], ray[2:], half[2:])
        return _first(torch.maximum(near, bottom), torch.minimum(far, top))


class Sphere(Solid):
    """A ball: half is (radius, radius, radius)."""

    round: ClassVar[float] = 2.0

    def distance(self, local):
        return local.norm(dim=-1) - self.half[0]

    def hit(self, origin, ray, half):
        return _first(*_quadric(origin, ray, self.half[0]))


@dataclass(frozen=True)
class Scene:
    """Solids side by side; the first may be a `Room` that holds the others."""

    solids: tuple[Solid, ...]

    def distance(self, points: Tensor) -> Tensor:
        """Signed distance to the nearest surface, exact in free space: min_i d_i(p).

        Shapes: points [..., 3] in the world; result [...], metres, positive in free space.
        """
        nearest = torch.full_like(points[..., 0], math.inf)
        for solid in self.solids:
            nearest = torch.minimum(nearest, solid.distance(solid.local(points)))
        return nearest

    def render(self, camera: Camera) -> Rendering:
        """Depth, colour and normals without noise, on the device of the camera's intrinsics."""
        K, pose = camera.intrinsics.tolist(), camera.world_from_camera.cpu().double().numpy()
        u = torch.arange(camera.width, dtype=torch.float32, device=camera.intrinsics.device)
        v = torch.arange(camera.height, dtype=torch.float32, device=camera.intrinsics.device)[:, None]
        x, y = (u - K[0][2]) / K[0][0], (v - K[1][2]) / K[1][1]  # [w], [h, 1]
        depth = torch.full((camera.height, camera.width), math.inf, device=u.device)
        index = torch.zeros((camera.height, camera.width), dtype=torch.int64, device=u.device)
        rotations, origins, windows = self._views(pose, np.array(K), camera.height, camera.width)
        a, b, c = torch.tensor(rotations, dtype=x.dtype, device=x.device)[..., None, None].unbind(
            2
        )  # [solids, 3, 1, 1]
        across, down = a * x, b * y + c  # [solids, 3, 1, w], [solids, 3, h, 1]
        origins = torch.tensor(origins, dtype=x.dtype, device=x.device)[..., None, None]
        halves = torch.tensor([s.half for s in self.solids], dtype=x.dtype, device=x.device)[..., None, None]
        for i, (solid, window) in enumerate(zip(self.solids, windows)):
            if window is None:
                continue
            rows, columns = window
            found = solid.hit(origins[i], across[i, :, :, columns] + down[i, :, rows], halves[i])
            closer = found < depth[window]
            depth[window] = torch.where(closer, found, depth[window])
            index[window].masked_fill_(closer, i)
        seen = depth < math.inf
        depth.masked_fill_(~seen, 0.0)
        points = [(a * x + (b * y + c)) * depth + t for a, b, c, t in pose[:3].tolist()]  # 3 x [h, w], in the world
        normal, colour = paint(self.solids, index, points)
        return Rendering(depth, colour * seen[..., None], normal * seen[..., None])

    def _views(self, pose: np.ndarray, K: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray, list]:
        """Each solid's view: solid_from_camera's rotation, the camera's centre in it, and the pixels it may cover.

        The pixels are (rows, columns), from the solid's eight corners; None when it is out of sight.
        """
        turn = np.array([s.turn() for s in self.solids])  # [solids, 3, 3]
        half = np.array([s.half for s in self.solids])
        origin = np.einsum("ski,sk->si", turn, pose[:3, 3] - np.array([s.centre for s in self.solids]))
        rotation = np.einsum("ski,kj->sij", turn, pose[:3, :3])
        corners = CORNERS * half[:, None] - origin[:, None]  # [solids, 8, 3]
        corners = corners @ rotation
        nearest, furthest = corners[..., 2].min(1), corners[..., 2].max(1)
        pixels = corners[..., :2] / np.maximum(corners[..., 2:], NEAR_M) * K[[0, 1], [0, 1]] + K[:2, 2]
        size = np.array([width, height])
        first = np.clip(np.floor(pixels.min(1)), 0, size).astype(int)
        last = np.clip(np.ceil(pixels.max(1)) + 1, 0, size).astype(int)
        around = nearest < NEAR_M  # reaches past the camera: it may cover everything
        first[around], last[around] = 0, size
        hidden = (furthest <= 0) | (first >= last).any(1)
        windows = [
            None if gone else (slice(r0, r1), slice(c0, c1))
            for gone, (c0, r0), (c1, r1) in zip(hidden, first.tolist(), last.tolist())
        ]
        return rotation, origin, windows


def _slabs(origin: Tensor, ray: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave |p_k| <= half_k for all axes k."""
    inverse = (ray + 1e-12).reciprocal_()  # a ray along the slab: 0 becomes a finite huge number
    middle, reach = inverse * -origin, inverse.abs_() * half
    return (middle - reach).amax(0), middle.add_(reach).amin(0)


def _quadric(origin: Tensor, ray: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave sum_k p_k^2 <= radius^2; NaN where they miss."""
    squared = ray.square().sum(0)
    middle = (ray * -origin).sum(0) / squared
    # from the point nearest to the axis: b^2 - a c would lose the digits that matter on thin things
    reach = ((radius**2 - (origin + middle * ray).square_().sum(0)) / squared).sqrt_()
    return middle - reach, middle + reach


def _first(near: Tensor, far: Tensor) -> Tensor:
    return torch.where((near < far) & (near > 0), near, math.inf)
