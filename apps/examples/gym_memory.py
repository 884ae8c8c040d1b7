"""Observations that remember, in one line, for one environment and for many.

python -m apps.examples.gym_memory
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streammem.policy.gym import MemoryObservation, VectorMemoryObservation

from .remembering import policy


def one(steps: int = 20):
    """What is remembered after some steps of one environment."""
    env = MemoryObservation(gymnasium.make("Pendulum-v1"), policy(3, 1))
    seen, _ = env.reset(seed=0)
    for _ in range(steps):
        seen, *_ = env.step(np.zeros(1, dtype=np.float32))
    return seen["memory"]


def many(steps: int = 20, mode: AutoresetMode = AutoresetMode.NEXT_STEP):
    """The same of three at once, which start over by themselves."""
    envs = SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=7)] * 3, autoreset_mode=mode)
    env = VectorMemoryObservation(envs, policy(3, 1), period_s=0.05)
    seen, _ = env.reset(seed=0)
    for _ in range(steps):
        seen, *_ = env.step(np.zeros((3, 1), dtype=np.float32))
    return seen["memory"]


if __name__ == "__main__":
    print("one:", one().shape, "many:", many().shape)
