"""A board with holes of which one is open, and an arm over it that it stops."""

from typing import Protocol

import torch
from torch import Tensor

from streammem.policy.tasks.arm import ArmState, KinematicArm

HOLES = 8
PLACES = tuple((x, y) for x in (0.43, 0.57) for y in (-0.24, -0.08, 0.08, 0.24))  # of the holes, metres
BOARD, DEPTH = 0.30, 0.03  # height of the board and depth of the open hole, metres
CAPTURE_M = 0.025  # furthest from a hole's axis at which the hand goes in


class SearchArm(Protocol):
    """What the task asks of an arm: it knows the board."""

    def reset(self, batch: int, open_hole: Tensor): ...

    def move(self, state, velocity: Tensor) -> tuple: ...


class OverBoard:
    """The kinematic arm over a board that does not give: a hand below it is stopped at its surface.

    Shapes: open_hole [B], velocity [B, 3] m/s -> (state, touched [B] bool: the top of the board, not the open hole).
    """

    home = KinematicArm.home

    def __init__(self):
        self._arm, self._places = KinematicArm(), torch.tensor(PLACES)

    def reset(self, batch: int, open_hole: Tensor) -> ArmState:
        """All arms at home, each over a board with one open hole."""
        self._open = self._places[open_hole]
        return self._arm.reset(batch)

    def move(self, state: ArmState, velocity: Tensor) -> tuple[ArmState, Tensor]:
        """One control step."""
        state = self._arm.move(state, velocity, torch.zeros(len(velocity)))
        over = (state.hand[:, :2] - self._open).norm(dim=1) < CAPTURE_M
        touched = (state.hand[:, 2] < BOARD) & ~over
        return self._arm.stopped(state, torch.where(over, BOARD - DEPTH, BOARD)), touched
