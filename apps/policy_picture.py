"""Pictures of a robot at work: lines where nothing better is to be had, and marks and words over everything."""

from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from streammem.policy.tasks import simulated
from streammem.policy.tasks.arm import skeleton
from streammem.policy.tasks.view import Camera

from .policy_told import Mark
from .policy_world import Shot, World

WIDTH, HEIGHT, FINER = 640, 480, 2  # pixels; lines are drawn finer, to be smooth
BAR = 26  # height of the timeline
SKY, FLOOR, GRID, SHADOW = (236, 239, 243), (214, 220, 227), (186, 195, 205), (178, 187, 197)
EDGE, STEEL, JOINT, HAND = (52, 60, 72), (246, 247, 249), (116, 128, 144), (30, 34, 42)
KINDS = {
    "slot": (66, 104, 190), "wanted": (222, 140, 20), "waypoint": (120, 128, 138),
    "right": (22, 150, 76), "wrong": (200, 40, 44),
}  # fmt: skip
PARTS = {"teach": (66, 104, 190), "work": (168, 176, 186), "query": (222, 140, 20)}
THICK = (0.075, 0.075, 0.07, 0.065, 0.06, 0.055, 0.05, 0.035)  # of the links, metres


class Backdrop(Protocol):
    """What draws the robot itself: joints [7] rad as the kinematics count them -> [HEIGHT, WIDTH, 3] uint8."""

    def take(self, joints: Tensor) -> np.ndarray: ...


class Drawn:
    """The arm as thick lines over a floor; needs no graphics library."""

    def __init__(self, camera: Camera):
        self._camera = camera
        self._empty = self._floor()

    def take(self, joints: Tensor) -> np.ndarray:
        """The robot."""
        picture = self._empty.copy()
        pen, points = ImageDraw.Draw(picture), skeleton(joints).numpy()
        pixels, depth = self._seen(points)
        flat, _ = self._seen(points * [1, 1, 0])
        focal = np.linalg.norm(np.diff(self._seen(np.array([[0, 0, 0], [0, 0, 0.1]]))[0], axis=0)) / 0.1
        widths = [max(2, round(focal * w * depth[0] / d)) for w, d in zip(THICK, depth[1:])]
        for a, b, width in zip(flat, flat[1:], widths):
            _link(pen, a, b, width, SHADOW)
        for grow, colour in ((6, EDGE), (0, STEEL)):
            for a, b, width in zip(pixels, pixels[1:], widths):
                _link(pen, a, b, width + grow, colour)
        for at, width in zip(pixels[1:-1], widths):
            _dot(pen, at, 0.3 * width, JOINT)
        _dot(pen, pixels[-1], 0.35 * widths[-1], HAND)
        return np.asarray(picture.resize((WIDTH, HEIGHT), Image.Resampling.BOX))

    def _seen(self, points: np.ndarray):
        return self._camera.project(points, FINER * HEIGHT, FINER * WIDTH)

    def _floor(self) -> Image.Image:
        picture = Image.new("RGB", (FINER * WIDTH, FINER * HEIGHT), SKY)
        pen = ImageDraw.Draw(picture)
        corners, _ = self._seen(np.array([[-0.4, -0.7, 0], [0.9, -0.7, 0], [0.9, 0.7, 0], [-0.4, 0.7, 0]]))
        pen.polygon([tuple(x) for x in corners], fill=FLOOR)
        for x in np.arange(-0.4, 0.91, 0.1):
            self._rule(pen, [x, -0.7, 0], [x, 0.7, 0])
        for y in np.arange(-0.7, 0.71, 0.1):
            self._rule(pen, [-0.4, y, 0], [0.9, y, 0])
        return picture

    def _rule(self, pen, a, b) -> None:
        ends, _ = self._seen(np.array([a, b]))
        pen.line([tuple(x) for x in ends], fill=GRID, width=FINER)


class Simulated:
    """The arm as MuJoCo renders it.

    Raises: whatever a machine without a graphics library raises, at construction.
    """

    def __init__(self, world: World):
        self._zero, self._data = world.zero, world.episode.arm.data[0]
        self._pictures = simulated.module("panda").Pictures(world.episode.arm.model, HEIGHT, WIDTH)
        self.take(world.episode.state.joints[0])

    def take(self, joints: Tensor) -> np.ndarray:
        """The robot."""
        turned = joints.clone()
        turned[5] -= self._zero
        return self._pictures.take(turned.numpy(), np.full(3, -10.0), self._data.mocap_pos)


class Timeline(NamedTuple):
    """An episode along the lower edge: its parts, and what was written when."""

    parts: list[tuple[str, int, int]]  # name, first tick, tick after the last
    length: int

    def draw(self, pen: ImageDraw.ImageDraw, tick: int, writes: list[int]) -> None:
        """Over a picture; writes: ticks."""
        top, scale = HEIGHT - BAR, WIDTH / max(1, self.length)
        pen.rectangle((0, top, WIDTH, HEIGHT), fill=(250, 250, 251))
        for name, start, end in self.parts:
            colour = PARTS[name]
            pale = tuple(round(x + 0.55 * (255 - x)) for x in colour)
            pen.rectangle((start * scale, top + 8, end * scale - 1, HEIGHT - 6), fill=pale)
        for write in writes:
            pen.line((write * scale, top + 4, write * scale, HEIGHT - 6), fill=(150, 20, 60), width=1)
        pen.line((tick * scale, top, tick * scale, HEIGHT), fill=HAND, width=2)


class Painter:
    """Pictures of shots, one after the other."""

    def __init__(self, camera: Camera, backdrop: Backdrop, timeline: Timeline):
        self._camera, self._backdrop, self._timeline = camera, backdrop, timeline
        self._font, self._small = ImageFont.load_default(18), ImageFont.load_default(13)

    def paint(self, shot: Shot, words: str, writes: list[int]) -> np.ndarray:
        """[HEIGHT, WIDTH, 3] uint8. words: under the shot's own; writes: ticks at which something was written."""
        picture = Image.fromarray(self._backdrop.take(shot.joints))
        pen = ImageDraw.Draw(picture)
        for mark in shot.shown.marks:
            self._mark(pen, mark)
        pen.rectangle((0, 0, WIDTH, 54), fill=(250, 250, 251))
        pen.text((12, 6), shot.shown.words, font=self._font, fill=HAND)
        pen.text((12, 32), words, font=self._small, fill=JOINT)
        self._timeline.draw(pen, shot.tick, writes)
        return np.asarray(picture)

    def _mark(self, pen: ImageDraw.ImageDraw, mark: Mark) -> None:
        place = np.array(mark.place)
        pixels, _ = self._camera.project(np.stack([place, place * [1, 1, 0]]), HEIGHT, WIDTH)
        (x, y), foot = pixels
        colour, size = KINDS[mark.kind], 6 if mark.kind in ("slot", "waypoint") else 10
        pen.line([(x, y), tuple(foot)], fill=(*colour,), width=1)
        pen.ellipse((x - size, y - size, x + size, y + size), outline=colour, width=3)
        if mark.label:
            pen.text((x + size + 3, y - 9), mark.label, font=self._small, fill=colour, stroke_width=2, stroke_fill=SKY)


def _link(pen: ImageDraw.ImageDraw, a, b, width: int, colour) -> None:
    pen.line([tuple(a), tuple(b)], fill=colour, width=width)
    for end in (a, b):
        _dot(pen, end, width / 2, colour)


def _dot(pen: ImageDraw.ImageDraw, at, radius: float, colour) -> None:
    pen.ellipse((at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius), fill=colour)
