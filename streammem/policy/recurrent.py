"""A memory policy under the names that other libraries call their recurrent policies by."""

import numpy as np
import torch
from torch import Tensor, nn

from streammem import tree
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy, PolicyState


class Recurrent(nn.Module):
    """State in, state out, one fixed time between observations; for libraries that know no time.

    period_s: between two observations.

    Shapes: observation [B, S].
    """

    def __init__(self, policy: MemoryPolicy, period_s: float):
        super().__init__()
        self.policy, self.period_s = policy, period_s

    def get_rnn_init_state(self, batch_size: int, device=None) -> PolicyState:
        """robomimic: the state before the first observation. Never to be called again within an episode."""
        return tree.to(self.policy.init_state(batch_size), device or self.policy.memory.layer.qkv.weight.device)

    def forward_step(self, obs: dict[str, Tensor] | Tensor, rnn_state: PolicyState) -> tuple[Tensor, PolicyState]:
        """robomimic: (action, state) of one step; what is in a dict is laid side by side in the order of its names.

        Its own horizon, after which it starts its states over, has to be that of the episode.
        """
        return self._stepped(rnn_state, _vector(obs))

    @torch.no_grad()
    def predict(self, observation, state: PolicyState | None = None, episode_start=None, deterministic: bool = True):
        """Stable-Baselines3: (action, state). episode_start [B] is true at the first observation of an episode.

        The state stays where it is, and is not carried to numpy and back. The action is: it is numpy.
        """
        x = _vector(observation)
        state = self.get_rnn_init_state(len(x)) if state is None else state
        if episode_start is not None:
            state = self.policy.reset(state, torch.as_tensor(np.asarray(episode_start), dtype=torch.bool).to(x.device))
        noise = None
        if not deterministic:
            noise = torch.randn_like(self.policy.act(state))
        action, state = self._stepped(state, x, noise)
        return action.cpu().numpy(), state

    def _stepped(self, state: PolicyState, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, PolicyState]:
        newest_s = state.clock.newest_s
        time_s = torch.where(newest_s.isfinite(), newest_s + self.period_s, 0.0)
        state = self.policy.observe(state, Observation(vector=x), time_s)
        return self.policy.act(state, noise=noise), state


def _vector(observation) -> Tensor:
    """[B, S] float32, of a tensor, an array, or a dict of them."""
    if isinstance(observation, dict):
        parts = [_vector(observation[name]) for name in sorted(observation)]
        return torch.cat(parts, -1)
    return torch.as_tensor(observation, dtype=torch.float32).flatten(1)
