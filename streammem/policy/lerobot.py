"""A memory policy behind the interface of a lerobot policy, without importing it: it cannot be installed beside us.

Written against the interface of lerobot 0.6: `reset`, `select_action`, `predict_action_chunk`, `forward`,
`get_optim_params`, flat keys of batches. Not run inside lerobot.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from streammem import tree
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy, PolicyState

STATE, IMAGE, ACTION, PADDED, TIME = "observation.state", "observation.images.", "action", "action_is_pad", "timestamp"


class LerobotPolicy(nn.Module):
    """The methods that lerobot calls. A plug-in's class inherits them beside `PreTrainedPolicy`.

    `observe` may be called at every tick by an engine that asks for actions only once a chunk; where batches have a
    timestamp, `select_action` then finds the observation seen already, and does not write it twice.

    period_s: between two observations where a batch has no timestamp. image: name of the one camera that is used.
    """

    name = "streammem"

    def __init__(self, policy: MemoryPolicy, period_s: float, image: str | None = None):
        super().__init__()
        self.policy, self.period_s, self.image = policy, period_s, image
        self._state: PolicyState | None = None

    def reset(self, mask: Tensor | None = None) -> None:
        """A new episode; lerobot gives no mask, vector environments may: [B] bool, those that start over."""
        self._state = None if mask is None or self._state is None else self.policy.reset(self._state, mask)

    @torch.no_grad()
    def observe(self, batch: dict[str, Tensor]) -> None:
        """Writes what is worth it."""
        observation = self._observation(batch)
        if self._state is None:
            self._state = self.policy.init_state(len(batch[STATE]))
        newest_s = self._state.clock.newest_s
        time_s = batch.get(TIME, torch.where(newest_s.isfinite(), newest_s + self.period_s, 0.0))
        self._state = self.policy.observe(self._state, observation, time_s)

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], **options) -> Tensor:
        """[B, chunk, A]; chunk is 1 where the head makes one action."""
        self.observe(batch)
        action = self.policy.act(self._state)
        return action[:, None] if action.ndim == 2 else action

    def select_action(self, batch: dict[str, Tensor], **options) -> Tensor:
        """[B, A], the first of the chunk: memory wants every observation, so there is no queue of actions."""
        return self.predict_action_chunk(batch)[:, 0]

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict]:
        """(loss, what to log) of whole episodes [B, T, ...]; steps of the action that are padding do not count."""
        observation, action = self._observation(batch), batch[ACTION]
        steps = action.shape[1]
        time_s = batch.get(TIME, torch.arange(steps, dtype=torch.float64, device=action.device) * self.period_s)
        padded = batch.get(PADDED, torch.zeros(action.shape[:2], dtype=torch.bool, device=action.device))
        state = self.policy.init_state(len(action))
        _, h, ruled = self.policy.features(state, observation, time_s.expand(len(action), -1), ~padded)
        loss = self.policy.head.loss(h, action, (~padded).to(action.dtype))
        return loss, {"loss": loss.item(), "written": (ruled.rate > 0).float().mean().item()}

    def get_optim_params(self) -> Iterator[nn.Parameter]:
        """What is trained."""
        return (p for p in self.policy.parameters() if p.requires_grad)

    def snapshot(self) -> PolicyState | None:
        """A copy of the state; None before the first observation."""
        return None if self._state is None else tree.clone(self._state)

    def _observation(self, batch: dict[str, Tensor]) -> Observation:
        image = None if self.image is None else 2 * batch[IMAGE + self.image] - 1  # theirs are in [0, 1]
        return Observation(vector=batch[STATE], image=image)
