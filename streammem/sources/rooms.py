"""Rooms that nobody has seen, and walks through them: as many as there are seeds."""

import math

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import Camera
from streammem.sources.room import REMOVABLE, furnished_room
from streammem.sources.scene import Box, Cylinder, Rendering, Room, Scene, Solid, Sphere
from streammem.sources.synthetic import FOCAL
from streammem.sources.texture import PATTERNS, Texture

WALKS = ("wander", "round")
LOW_M = 0.75  # nothing that stands away from a wall is higher, so that a camera may move there


class RandomRoom:
    """A room of its own furniture, textures and walk for every seed; exact depth, colour and poses.

    walk: "wander" stays within about half a metre and turns to and fro within 50 degrees or so, for ever, so that late
    frames are no further from the first than early ones; "round" goes round the middle and looks across it.

    known: the room is that of `synthetic`, whatever the seed; only the walk is its own.

    World axes: z up, the floor at z = 0. Units: metres. Frame i depends on the arguments and i alone.

    Raises: ConfigError for an unknown walk.
    """

    def __init__(self, seed: int, height: int = 48, width: int = 64, walk: str = "wander", known: bool = False):
        if walk not in WALKS:
            raise ConfigError(f"walk is {walk!r}; wanted one of {', '.join(WALKS)}")
        random = np.random.default_rng([20261130, seed])
        self.height, self.width = height, width
        self.scene = Scene((*furnished_room().solids, REMOVABLE)) if known else furnished(random)
        self.path = (_Wander if walk == "wander" else _Round)(random)
        self.intrinsics = torch.eye(3)
        self.intrinsics[0, 0] = self.intrinsics[1, 1] = FOCAL * width
        self.intrinsics[0, 2], self.intrinsics[1, 2] = (width - 1) / 2, (height - 1) / 2

    def camera_at(self, index: int) -> Camera:
        """The camera of frame `index`, with its exact pose."""
        return Camera(self.intrinsics, looking(*self.path(index)), self.height, self.width)

    def render(self, index: int) -> Rendering:
        """What it sees, without noise."""
        return self.scene.render(self.camera_at(index))


def furnished(random: np.random.Generator) -> Scene:
    """A room with things along its walls, low things in it, and pictures on its walls; the middle is at x = y = 0."""
    half = (random.uniform(1.7, 3.0), random.uniform(1.7, 3.0), random.uniform(1.2, 1.5))
    solids: list[Solid] = [Room((0, 0, half[2]), half, texture=_texture(random, 1.0, 2.5))]
    solids += [_low(random, half) for _ in range(random.integers(2, 6))]
    solids += [_tall(random, half) for _ in range(random.integers(2, 6))]
    solids += [_picture(random, half) for _ in range(random.integers(6, 12))]
    rug = (random.uniform(0.5, 1.2), random.uniform(0.5, 1.2), 0.005)
    return Scene((*solids, Box((0, 0, 0.005), rug, texture=_texture(random, 0.5, 1.5))))


def looking(eye: np.ndarray, target: np.ndarray) -> Tensor:
    """Pose [4, 4] float64 of an upright camera at `eye` that looks at `target`."""
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3] = np.stack([right, np.cross(forward, right), forward, eye], 1)
    return torch.from_numpy(pose)


class _Wander:
    """Sums of two sine waves without a common period: bounded, smooth, the same at every time."""

    def __init__(self, random: np.random.Generator):
        self.middle = np.array([*random.uniform(-0.2, 0.2, 2), random.uniform(1.2, 1.6)])
        self.reach = np.array([*random.uniform(0.1, 0.35, 2), 0.1])
        self.heading, self.turn = random.uniform(0, 2 * math.pi), random.uniform(0.3, 0.9)
        self.pitch, self.nod = random.uniform(-0.35, 0.0), random.uniform(0.05, 0.2)
        self.periods = random.uniform(12, 40, (5, 2))  # frames
        self.phases = random.uniform(0, 2 * math.pi, (5, 2))

    def __call__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        waves = np.sin(2 * math.pi * index / self.periods + self.phases) @ (0.6, 0.4)  # [5], in -1..1
        eye = self.middle + self.reach * waves[:3]
        yaw, pitch = self.heading + self.turn * waves[3], self.pitch + self.nod * waves[4]
        ray = np.array([math.cos(yaw) * math.cos(pitch), math.sin(yaw) * math.cos(pitch), math.sin(pitch)])
        return eye, eye + ray


class _Round:
    """Round the middle at a steady pace, looking across it."""

    def __init__(self, random: np.random.Generator):
        self.start, self.pace = (
            random.uniform(0, 2 * math.pi),
            (-1, 1)[random.integers(2)] * random.uniform(0.015, 0.08),
        )
        self.radii, self.across = random.uniform(0.5, 1.2, 2), random.uniform(0.6, 1.2)
        self.height, self.swing = random.uniform(1.2, 1.6), random.uniform(0, 2 * math.pi, 2)

    def __call__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        a = self.start + self.pace * index
        z = self.height + 0.1 * math.sin(2 * a + self.swing[0])
        eye = np.array([self.radii[0] * math.cos(a), self.radii[1] * math.sin(a), z])
        b = a + 0.35 * math.sin(3 * a + self.swing[1])
        target = np.array([-self.across * math.cos(b), -self.across * math.sin(b), 0.8 + 0.2 * math.sin(2.5 * a)])
        return eye, target


def _texture(random: np.random.Generator, finest_m: float, coarsest_m: float) -> Texture:
    """Two colours that have nothing to do with each other; mostly patches of no period, so that places differ."""
    light, dark = random.uniform(0.05, 1.0, (2, 3)).tolist()
    pattern = "noise" if random.random() < 0.8 else PATTERNS[random.integers(len(PATTERNS))]
    return Texture(pattern, random.uniform(finest_m, coarsest_m), tuple(light), tuple(dark))


def _low(random: np.random.Generator, half: tuple[float, float, float]) -> Solid:
    """Something on the floor, anywhere."""
    x, y = (random.uniform(-side + 0.3, side - 0.3) for side in half[:2])
    size, z = random.uniform(0.12, 0.5, 2).tolist(), random.uniform(0.1, LOW_M / 2)
    kind, texture = random.integers(3), _texture(random, 0.3, 1.0)
    if kind == 0:
        return Box((x, y, z), (*size, z), random.uniform(0, math.pi), texture)
    radius = min(size[0], LOW_M / 2)
    if kind == 1:
        return Cylinder((x, y, z), (radius, radius, z), texture=texture)
    return Sphere((x, y, radius), (radius, radius, radius), texture=texture)


def _tall(random: np.random.Generator, half: tuple[float, float, float]) -> Solid:
    """Something that stands against a wall."""
    axis, sign = int(random.integers(2)), (-1, 1)[random.integers(2)]
    depth, breadth, z = random.uniform(0.12, 0.3), random.uniform(0.2, 0.6), random.uniform(0.4, 1.1)
    along = random.uniform(-half[1 - axis] + breadth, half[1 - axis] - breadth)
    centre, size = [0.0, 0.0, z], [breadth, breadth, z]
    centre[axis], centre[1 - axis], size[axis] = sign * (half[axis] - depth), along, depth
    texture = _texture(random, 0.3, 1.0)
    if random.random() < 0.25:
        radius = min(breadth, 0.3)
        centre[axis] = sign * (half[axis] - radius)
        return Cylinder(tuple(centre), (radius, radius, z), texture=texture)
    return Box(tuple(centre), tuple(size), texture=texture)


def _picture(random: np.random.Generator, half: tuple[float, float, float]) -> Solid:
    """A flat thing on a wall."""
    axis, sign = int(random.integers(2)), (-1, 1)[random.integers(2)]
    breadth = random.uniform(0.2, 0.7)
    centre = [0.0, 0.0, random.uniform(0.9, 2.0)]
    size = [breadth, breadth, random.uniform(0.15, 0.5)]
    centre[axis], size[axis] = sign * (half[axis] - 0.02), 0.02
    centre[1 - axis] = random.uniform(-half[1 - axis] + breadth, half[1 - axis] - breadth)
    return Box(tuple(centre), tuple(size), texture=_texture(random, 0.3, 1.0))
