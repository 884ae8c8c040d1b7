"""A policy with a memory as the network of robomimic's BC-RNN: `get_rnn_init_state` and `forward_step`.

    python -m apps.examples.robomimic_rollout

There the state is made anew every `algo.rnn.horizon` steps, 10 as it comes; set it to the length of an episode.
"""

import torch
from torch import Tensor

from streammem.policy.recurrent import Recurrent

from .remembering import policy


class Rollout:
    """What robomimic's BC_RNN does with its network, step by step."""

    def __init__(self, network: Recurrent, horizon: int):
        self.network, self.horizon, self._step, self._state = network, horizon, 0, None

    @torch.no_grad()
    def get_action(self, obs: dict[str, Tensor]) -> Tensor:
        if self._state is None or self._step % self.horizon == 0:
            self._state = self.network.get_rnn_init_state(batch_size=1)
        self._step += 1
        action, self._state = self.network.forward_step(obs, rnn_state=self._state)
        return action


def main(steps: int = 20) -> Tensor:
    """Actions [steps, A]."""
    rollout, g = Rollout(Recurrent(policy(10, 7), period_s=0.05), horizon=steps), torch.Generator().manual_seed(0)
    parts = {"robot0_eef_pos": 3, "object": 7}
    frames = [{name: torch.randn(1, width, generator=g) for name, width in parts.items()} for _ in range(steps)]
    return torch.cat([rollout.get_action(obs) for obs in frames])


if __name__ == "__main__":
    print("actions:", tuple(main().shape))
