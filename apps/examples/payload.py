"""A payload that changes in mid-run, identified from joint torques: nothing is trained.

    python -m apps.examples.payload

One joint lifts a link: torque = inertia acceleration + friction velocity + payload_moment g cos(angle). At half time
the gripper picks up 0.8 kg.
"""

import math

import torch

from streammem.policy.regressor import Regressor
from streammem.rules.kalman import Surprise

PERIOD_S, SECONDS, PICKED_S = 0.01, 20.0, 10.0
INERTIA, FRICTION, ARM_M, EMPTY_KG, PICKED_KG, NOISE_NM = 0.12, 0.4, 0.5, 0.6, 0.8, 0.15
GRAVITY = 9.81


def motion(time_s: float) -> tuple[float, float, float]:
    """Angle, velocity and acceleration of a joint that swings at two rates."""
    waves = ((0.6, 2.0), (0.2, 5.3))
    angle = sum(a * math.sin(w * time_s) for a, w in waves)
    velocity = sum(a * w * math.cos(w * time_s) for a, w in waves)
    return angle, velocity, -sum(a * w * w * math.sin(w * time_s) for a, w in waves)


def features(time_s: float) -> torch.Tensor:
    """What the torque is linear in."""
    angle, velocity, acceleration = motion(time_s)
    return torch.tensor([acceleration, velocity, GRAVITY * ARM_M * math.cos(angle)], dtype=torch.float64)


def identified(seed: int = 0) -> list[tuple[float, float, float, float]]:
    """(time_s, true payload, estimate, its standard deviation), in kg, at every step."""
    g = torch.Generator().manual_seed(seed)
    regressor = Regressor(features=3, noise=NOISE_NM, drift_per_s=1e-5, prior=3.0, jumps=Surprise(boost=0.05))
    rows = []
    for step in range(int(SECONDS / PERIOD_S)):
        time_s = step * PERIOD_S
        payload = EMPTY_KG + (PICKED_KG if time_s >= PICKED_S else 0.0)
        x = features(time_s)
        torque = x @ torch.tensor([INERTIA, FRICTION, payload], dtype=torch.float64)
        torque = torque + NOISE_NM * torch.randn((), generator=g, dtype=torch.float64)
        regressor.observe(x, torque, time_s=time_s)
        mean, deviation = regressor.coefficients
        rows.append((time_s, payload, mean[0, 2, 0].item(), deviation[0, 2].item()))
    return rows


if __name__ == "__main__":
    for time_s, payload, estimate, deviation in identified()[:: int(1 / PERIOD_S)]:
        print(f"{time_s:5.1f} s   payload {payload:.2f} kg   identified {estimate:.3f} +- {deviation:.3f} kg")
