"""A furnished room, and what moves in it."""

import math

from streammem.sources.scene import Box, Cylinder, Room, Scene, Solid, Sphere
from streammem.sources.texture import Texture

WALLS = Texture("noise", 0.9, (0.92, 0.88, 0.80), (0.55, 0.60, 0.62))
RUG = Texture("checker", 0.5, (0.80, 0.35, 0.28), (0.25, 0.15, 0.35))
OAK = Texture("stripes", 0.24, (0.80, 0.62, 0.40), (0.52, 0.36, 0.20))
CLOTH = Texture("noise", 0.25, (0.35, 0.50, 0.75), (0.12, 0.18, 0.35))
STEEL = Texture("plain", 0.3, (0.55, 0.57, 0.60))
LEAVES = Texture("noise", 0.12, (0.35, 0.65, 0.25), (0.08, 0.25, 0.08))
CLAY = Texture("stripes", 0.15, (0.75, 0.40, 0.28), (0.45, 0.20, 0.12))
BALL = Texture("checker", 0.3, (0.95, 0.95, 0.90), (0.85, 0.20, 0.15))
PAINTING = Texture("noise", 0.35, (0.95, 0.80, 0.25), (0.10, 0.30, 0.55))
PARCEL = Texture("checker", 0.16, (0.85, 0.75, 0.55), (0.30, 0.55, 0.50))
BOOKS = Texture("stripes", 0.10, (0.90, 0.30, 0.25), (0.15, 0.25, 0.60))
SHADE = Texture("stripes", 0.20, (0.98, 0.94, 0.75), (0.80, 0.65, 0.40))

ROOM = Room((0, 0, 1.3), (2.4, 2.0, 1.3), texture=WALLS)
REMOVABLE = Box((-0.22, 0.16, 0.875), (0.10, 0.08, 0.13), 0.4, PARCEL)  # stands on the table


def _table() -> tuple[Solid, ...]:
    legs = [(x, y) for x in (-0.5, 0.5) for y in (-0.3, 0.3)]
    return (
        Box((0, 0, 0.72), (0.6, 0.4, 0.025), texture=OAK),
        *(Cylinder((x, y, 0.35), (0.03, 0.03, 0.35), texture=STEEL) for x, y in legs),
        Sphere((0.22, 0.12, 0.855), (0.11, 0.11, 0.11), texture=BALL),
        Cylinder((0.36, -0.2, 0.80), (0.05, 0.05, 0.06), texture=CLAY),
        Box((-0.18, -0.18, 0.765), (0.17, 0.12, 0.02), 0.5, BOOKS),
    )


def _seats() -> tuple[Solid, ...]:
    return (
        Box((1.95, 0.2, 0.22), (0.40, 0.8, 0.22), texture=CLOTH),
        Box((2.25, 0.2, 0.55), (0.12, 0.8, 0.35), texture=CLOTH),
        Box((1.98, -0.3, 0.56), (0.09, 0.2, 0.18), 0.3, CLAY),
        Box((0.9, -1.25, 0.28), (0.24, 0.2, 0.28), 0.6, PARCEL),
        Cylinder((-1.2, 0.75, 0.24), (0.19, 0.19, 0.24), texture=CLOTH),
    )


def _shelves() -> tuple[Solid, ...]:
    boards = (0.45, 0.9, 1.35)
    return (
        *(Box((-0.7, 1.82, z), (0.7, 0.16, 0.02), texture=OAK) for z in boards),
        Box((-1.4, 1.82, 0.7), (0.02, 0.16, 0.7), texture=OAK),
        Box((0.0, 1.82, 0.7), (0.02, 0.16, 0.7), texture=OAK),
        Box((-1.1, 1.84, 1.055), (0.2, 0.1, 0.135), texture=BOOKS),
        Sphere((-0.45, 1.82, 1.02), (0.1, 0.1, 0.1), texture=BALL),
        Box((-0.4, 1.84, 1.47), (0.25, 0.1, 0.1), texture=PARCEL),
        Cylinder((-1.0, 1.82, 0.58), (0.1, 0.1, 0.11), texture=CLAY),
        Box((-1.0, -1.76, 0.95), (0.5, 0.24, 0.95), texture=OAK),
    )


def _corners() -> tuple[Solid, ...]:
    return (
        Cylinder((2.05, 1.65, 0.75), (0.025, 0.025, 0.75), texture=STEEL),
        Cylinder((2.05, 1.65, 1.65), (0.2, 0.2, 0.15), texture=SHADE),
        Cylinder((-2.0, -1.5, 0.2), (0.18, 0.18, 0.2), texture=CLAY),
        Sphere((-2.0, -1.5, 0.72), (0.32, 0.32, 0.32), texture=LEAVES),
        Sphere((1.7, -1.5, 0.22), (0.22, 0.22, 0.22), texture=BALL),
        Box((-2.38, 0.3, 1.55), (0.02, 0.5, 0.35), texture=PAINTING),
        Box((0.7, -1.98, 1.5), (0.45, 0.02, 0.3), texture=PAINTING),
        Box((1.0, 1.98, 1.4), (0.4, 0.02, 0.5), texture=PAINTING),
        Box((0, 0, 0.005), (1.1, 0.9, 0.005), texture=RUG),
    )


def furnished_room() -> Scene:
    """A room of 4.8 m x 4.0 m x 2.6 m, centred on x = y = 0, floor at z = 0, free for a walk round a table."""
    return Scene((ROOM, *_table(), *_seats(), *_shelves(), *_corners()))


def wanderer(number: int, time_s: float) -> Box:
    """Box `number` of those that glide to and fro above the table, at a time."""
    heading = 2.4 * number + 0.5
    reach = 0.38 * math.sin(2 * math.pi * time_s / (5 + number))
    centre = (reach * math.cos(heading), reach * math.sin(heading), 1.2 + 0.3 * (number % 2))
    return Box(centre, (0.1, 0.1, 0.12), 0.7 * time_s, PARCEL)
