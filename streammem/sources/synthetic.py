"""An endless walk through an analytic room: frames, poses and truth without a download."""

import math

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import Camera
from streammem.sources.kinect import Kinect
from streammem.sources.room import REMOVABLE, furnished_room, wanderer
from streammem.sources.scene import Rendering, Scene
from streammem.sources.source import Source
from streammem.types import Frame

RATE_HZ = 30.0
LOOP_S = 400 / RATE_HZ  # one way round the room
FOCAL = 585 / 640  # focal length of a Kinect in widths of its image
NOISE = {"kinect": Kinect(), "none": None}


class Synthetic(Source):
    """Frames of a furnished room, from a camera that walks round it, looks across it and comes back.

    Frame i depends on the arguments and i alone: out of order, or resumed there, it is the same. World axes: z up,
    gravity along -z, the floor at z = 0. Poses are exact. `scene` is the room at the start without what glides
    about; `scene_at(i)` is the room of frame i.

    `moving_objects` boxes glide to and fro above the table; from frame `removed_at` on the parcel on the table
    (`room.REMOVABLE`) is gone; a share `dropout` of the frames does not arrive (valid is False, no depth).
    """

    def __init__(
        self,
        frames: int = 300,
        height: int = 480,
        width: int = 640,
        seed: int = 0,
        noise: str = "kinect",
        moving_objects: int = 0,
        removed_at: int | None = None,
        dropout: float = 0.0,
        device: str | torch.device = "cpu",
    ):
        if noise not in NOISE:
            raise ConfigError(f"noise is {noise!r}; wanted one of {', '.join(NOISE)}")
        if min(frames, height, width) < 1:
            raise ConfigError(f"frames, height, width are {frames}, {height}, {width}; wanted at least 1 each")
        if not 0 <= dropout <= 1:
            raise ConfigError(f"dropout is {dropout}; wanted a share between 0 and 1")
        K = torch.eye(3, device=device)
        K[0, 0] = K[1, 1] = FOCAL * width
        K[0, 2], K[1, 2] = (width - 1) / 2, (height - 1) / 2
        super().__init__("synthetic", K)
        self.frames, self.height, self.width, self.seed = frames, height, width, seed
        self.moving_objects, self.removed_at, self.dropout = moving_objects, removed_at, dropout
        self.sensor = NOISE[noise]
        self.room = furnished_room()
        self.scene = Scene((*self.room.solids, REMOVABLE))

    def __len__(self) -> int:
        return self.frames

    def scene_at(self, index: int) -> Scene:
        """The room at the instant of frame `index`, with what moves in it."""
        still = self.scene if self.removed_at is None or index < self.removed_at else self.room
        moving = (wanderer(k, index / RATE_HZ) for k in range(self.moving_objects))
        return Scene((*still.solids, *moving))

    def camera_at(self, index: int) -> Camera:
        """The camera of frame `index`, with its exact pose."""
        return Camera(self.camera_intrinsics, _walk(index / RATE_HZ, self.seed), self.height, self.width)

    def render(self, camera: Camera) -> Rendering:
        """Depth, colour and normals of `scene` without noise."""
        return self.scene.render(camera)

    def __getitem__(self, index: int) -> Frame:
        if not 0 <= index < self.frames:
            raise IndexError(f"frame {index} of {self.frames}")
        random = np.random.SeedSequence([self.seed, index])
        noise_seed, chance = random.generate_state(2)
        camera = self.camera_at(index)
        view = self.scene_at(index).render(camera)
        depth, colour = view.depth, view.colour
        if self.sensor is not None:
            generator = torch.Generator(depth.device).manual_seed(int(noise_seed))
            depth = self.sensor.measure(depth, _incidence(view, camera), generator)
            colour = self.sensor.expose(colour, generator)
        arrived = bool(chance / 2**32 >= self.dropout)
        if not arrived:
            self.counters["invalid: dropout"] += 1
        return _frame(depth * arrived, colour * arrived, camera, index, arrived)


class SyntheticColour(Synthetic):
    """The same walk by a colour camera: depth and poses are held back; `camera_at` and `scene_at` know them."""

    def __init__(
        self,
        frames: int = 300,
        height: int = 48,
        width: int = 64,
        seed: int = 0,
        noise: str = "none",
        moving_objects: int = 0,
        removed_at: int | None = None,
        dropout: float = 0.0,
        device: str | torch.device = "cpu",
    ):
        super().__init__(frames, height, width, seed, noise, moving_objects, removed_at, dropout, device)
        self.name = "synthetic-rgb"

    def __getitem__(self, index: int) -> Frame:
        return super().__getitem__(index)._replace(depth=None, world_from_camera=None)


def _frame(depth: Tensor, colour: Tensor, camera: Camera, index: int, arrived: bool) -> Frame:
    device = depth.device
    return Frame(
        image=(colour * 2 - 1).permute(2, 0, 1)[None].contiguous(),
        depth=depth[None],
        intrinsics=camera.intrinsics[None],
        world_from_camera=camera.world_from_camera[None].to(device),
        time_s=torch.tensor([index / RATE_HZ], dtype=torch.float64, device=device),
        valid=torch.tensor([arrived], device=device),
        reset=torch.tensor([False], device=device),
    )


def _incidence(view: Rendering, camera: Camera) -> Tensor:
    """Cosine between each pixel's ray and the surface it meets, [h, w]."""
    _, ray = camera.rays()
    return (view.normal * ray).sum(-1).abs() / ray.norm(dim=-1)


def _walk(time_s: float, seed: int) -> Tensor:
    """Pose [4, 4] float64 of a camera that goes round the table once in `LOOP_S` and looks across it."""
    a = 2 * math.pi * time_s / LOOP_S + 0.7 * seed
    eye = np.array([1.15 * math.cos(a), 0.85 * math.sin(a), 1.4 + 0.12 * math.sin(2 * a + 0.3)])
    wander = 0.35 * math.sin(3 * a + 1.0)
    target = np.array([-0.9 * math.cos(a + wander), -0.8 * math.sin(a + wander), 0.8 + 0.3 * math.sin(2.5 * a)])
    forward = target - eye
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3] = np.stack([right, np.cross(forward, right), forward, eye], 1)
    return torch.from_numpy(pose)
