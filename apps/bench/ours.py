"""Our map as a `protocols.Method`, and the change of dress between the library's frames and plain arrays."""

import numpy as np
import torch

from streammem.geometry import Camera
from streammem.mapping import Mapper
from streammem.settings import MapSettings
from streammem.types import Frame

from .protocols import Shot
from .workload import Quality


def mapper(quality: Quality, **changed) -> Mapper:
    """A map with the default settings at the workload's voxel size and range."""
    return Mapper(MapSettings(voxel_size_m=quality.voxel_size_m, max_depth_m=quality.max_depth_m, **changed))


class Ours:
    """The library's map."""

    def __init__(self, quality: Quality, **changed):
        self.mapper = mapper(quality, **changed)

    def write(self, shot: Shot) -> None:
        self.mapper.step(as_frame(shot))

    def render(self, shot: Shot) -> np.ndarray:
        """The shot's camera at the shot's time, which a memory that knows of drift makes use of."""
        return self.mapper.raycast(as_camera(shot), shot.time_s).depth.numpy()

    def occupied(self, points: np.ndarray) -> np.ndarray:
        """Which points [P, 3] lie within half a voxel of a surface, or behind it."""
        distance, variance = self.mapper.sdf(torch.from_numpy(points).float())
        return (variance.isfinite() & (distance < self.mapper.settings.voxel_size_m / 2)).numpy()


def as_camera(shot: Shot) -> Camera:
    """The shot's camera."""
    height, width = shot.size
    return Camera(torch.from_numpy(shot.intrinsics).float(), torch.from_numpy(shot.pose), height, width)


def as_frame(shot: Shot, posed: bool = True) -> Frame:
    """The shot as one frame of one stream; without a pose it is left to the tracker."""
    image = torch.from_numpy(shot.image).permute(2, 0, 1)[None].float() / 127.5 - 1
    pose = torch.from_numpy(shot.pose)[None]
    return Frame(
        image=image.contiguous(),
        depth=torch.from_numpy(shot.depth)[None],
        intrinsics=torch.from_numpy(shot.intrinsics)[None].float(),
        world_from_camera=pose if posed else torch.full_like(pose, float("nan")),
        time_s=torch.tensor([shot.time_s], dtype=torch.float64),
        valid=torch.tensor([True]),
        reset=torch.tensor([False]),
    )


def as_shot(frame: Frame) -> Shot:
    """The first stream of a frame as plain arrays."""
    image = ((frame.image[0].permute(1, 2, 0) + 1) * 127.5).round().to(torch.uint8)
    intrinsics, pose = frame.intrinsics[0].double(), frame.world_from_camera[0]
    return Shot(frame.depth[0].numpy(), image.numpy(), pose.numpy(), intrinsics.numpy(), float(frame.time_s[0]))
