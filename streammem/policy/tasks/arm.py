"""A seven-joint arm that follows Cartesian velocities: the Franka Panda's kinematics, in torch, many at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

STEP_S = 0.04  # one control step, 25 Hz
STIFFNESS = 870.0  # of the joint controllers, N m / rad
LAG_S = 0.05  # time in which a joint closes 63 % of its distance to what it is told
DAMPING = 1e-3  # of the inverse kinematics, m^2
LEASH = 0.14  # furthest a command may be from its joint, rad
GRAVITY = 9.81
HOME = (0.0, -0.35, 0.0, -2.1, 0.0, 1.87, 0.78)
LINKS = (  # a, d, alpha of each joint, after Craig; the last moves the frame to between the fingers
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -math.pi / 2),
    (0.0, 0.316, math.pi / 2),
    (0.0825, 0.0, math.pi / 2),
    (-0.0825, 0.384, -math.pi / 2),
    (0.0, 0.0, math.pi / 2),
    (0.088, 0.0, math.pi / 2),
)
HAND = 0.21  # from the last joint to between the fingers, m


class ArmState(NamedTuple):
    """B arms at one instant."""

    command: Tensor  # [B, 7] rad, what the joints are told
    joints: Tensor  # [B, 7] rad, where they are
    hand: Tensor  # [B, 3] metres, between the fingers
    jacobian: Tensor  # [B, 3, 7] of the hand


class KinematicArm:
    """The Franka Panda without its dynamics: each joint follows its command with a lag, and sags under a payload.

        q' = q + (1 - exp(-step / lag)) (command + sag - q);  sag = J^T (0, 0, -g payload) / stiffness

    Shapes: states of B arms; velocity [B, 3] m/s, payload [B] kg.
    Source: link lengths of Franka's published parameters (Craig's convention).
    Differs: neither inertia nor contact; the weight of the arm itself is thought to be compensated.
    """

    home = HOME

    def reset(self, batch: int) -> ArmState:
        """All arms at home."""
        return self._at(torch.tensor(HOME).expand(batch, 7), torch.tensor(HOME).expand(batch, 7))

    def move(self, state: ArmState, velocity: Tensor, payload: Tensor) -> ArmState:
        """One control step at a Cartesian velocity of the hand, a payload hanging on it."""
        command = commanded(state.jacobian, state.command, state.joints, velocity, torch.tensor(HOME))
        force = torch.zeros_like(state.hand)
        force[:, 2] = -GRAVITY * payload
        sag = (state.jacobian.mT @ force[..., None])[..., 0] / STIFFNESS
        share = 1 - math.exp(-STEP_S / LAG_S)
        return self._at(command, state.joints + share * (command + sag - state.joints))

    def stopped(self, state: ArmState, floor: Tensor) -> ArmState:
        """Hands that are under a floor are held up by it, joints giving way: the least change of them. floor [B] m.

        q' = q + J^T (J J^T + damping)^-1 (0, 0, floor - z),  twice
        """
        for _ in range(2):
            rise = torch.zeros_like(state.hand)
            rise[:, 2] = (floor - state.hand[:, 2]).clamp_min(0)
            square = state.jacobian @ state.jacobian.mT + DAMPING * torch.eye(3)
            given = (state.jacobian.mT @ torch.linalg.solve(square, rise[..., None]))[..., 0]
            state = self._at(state.command, state.joints + given)
        return state

    def _at(self, command: Tensor, joints: Tensor) -> ArmState:
        return ArmState(command, joints, *forward(joints))


def commanded(jacobian: Tensor, command: Tensor, joints: Tensor, velocity: Tensor, home: Tensor) -> Tensor:
    """The next joint command: damped least squares for the hand, drawn home in what is left free.

        dq = J^T (J J^T + damping)^-1 (v - J n) + n,  n = (home - command) / 2

    Shapes: jacobian [B, 3, 7], command and joints [B, 7], velocity [B, 3] m/s, home [7] -> [B, 7] rad.
    """
    free = 0.5 * (home - command)
    square = jacobian @ jacobian.mT + DAMPING * torch.eye(3, dtype=command.dtype)
    wanted = velocity[..., None] - jacobian @ free[..., None]
    rate = (jacobian.mT @ torch.linalg.solve(square, wanted))[..., 0] + free
    return torch.clamp(command + STEP_S * rate, joints - LEASH, joints + LEASH)


def forward(joints: Tensor) -> tuple[Tensor, Tensor]:
    """Where the hand is, and how it moves with each joint: [..., 7] rad -> [..., 3] m, [..., 3, 7] m/rad."""
    axes, places, hand = _chain(joints)
    return hand, torch.linalg.cross(axes, hand[..., None, :] - places).mT


def skeleton(joints: Tensor) -> Tensor:
    """Points along the arm, from its foot to between the fingers: [..., 7] rad -> [..., 9, 3] m."""
    _, places, hand = _chain(joints)
    return torch.cat([torch.zeros_like(hand)[..., None, :], places, hand[..., None, :]], -2)


def _chain(joints: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Axes and places of the joints [..., 7, 3], and where the hand is [..., 3]."""
    turn = torch.eye(3, dtype=joints.dtype).expand(*joints.shape[:-1], 3, 3)
    place = joints.new_zeros(*joints.shape[:-1], 3)
    axes, places = [], []
    cosine, sine = joints.cos(), joints.sin()
    for i, (a, d, alpha) in enumerate(LINKS):
        ca, sa = math.cos(alpha), math.sin(alpha)
        x, y, z = turn.unbind(-1)
        side, axis = ca * y + sa * z, ca * z - sa * y  # the frame tilted by alpha
        place = place + a * x + d * axis
        c, s = cosine[..., i : i + 1], sine[..., i : i + 1]
        turn = torch.stack([c * x + s * side, c * side - s * x, axis], -1)
        axes.append(axis)
        places.append(place)
    return torch.stack(axes, -2), torch.stack(places, -2), place + HAND * turn[..., 2]
