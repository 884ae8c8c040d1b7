"""A policy with a memory under Stable-Baselines3's signature: (observation, state, episode_start) -> (action, state).

python -m apps.examples.sb3_predict
"""

import numpy as np

from streammem.policy.recurrent import Recurrent

from .remembering import policy


def main(steps: int = 20, batch: int = 3) -> np.ndarray:
    """Actions [steps, B, A]; one of the environments starts over in the middle."""
    model, rng = Recurrent(policy(4, 2), period_s=0.05), np.random.default_rng(0)
    state, starts, actions = None, np.ones(batch, dtype=bool), []
    for step in range(steps):
        observation = rng.standard_normal((batch, 4)).astype(np.float32)
        action, state = model.predict(observation, state=state, episode_start=starts, deterministic=True)
        starts = np.array([step == steps // 2, False, False])
        actions.append(action)
    return np.stack(actions)


if __name__ == "__main__":
    print("actions:", main().shape)
