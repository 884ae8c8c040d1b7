"""A policy with a memory as a lerobot plug-in. Its class belongs into a package `lerobot_policy_...` of its own:

    @PreTrainedConfig.register_subclass("streammem")
    @dataclass
    class StreammemConfig(PreTrainedConfig): ...

    class StreammemPolicy(LerobotPolicy, PreTrainedPolicy):
        config_class, name = StreammemConfig, "streammem"

lerobot's own dependencies exclude our torch, so this was written against its interface and not run inside it.

    python -m apps.examples.lerobot_policy
"""

import torch
from torch import Tensor

from streammem.policy.lerobot import LerobotPolicy

from .remembering import policy


def main(ticks: int = 20, chunk: int = 5) -> tuple[Tensor, int]:
    """An engine that observes at every tick and acts once a chunk: (actions, observations that were taken)."""
    robot, g, actions = LerobotPolicy(policy(6, 2), period_s=1 / 30), torch.Generator().manual_seed(0), []
    robot.reset()
    for tick in range(ticks):
        time_s = torch.tensor([tick / 30], dtype=torch.float64)
        batch = {"observation.state": torch.randn(1, 6, generator=g), "timestamp": time_s}
        robot.observe(batch)
        if tick % chunk == 0:
            actions.append(robot.select_action(batch))
    return torch.cat(actions), int(robot.snapshot().counters.taken)


if __name__ == "__main__":
    acted, taken = main()
    print(f"{len(acted)} actions, {taken} observations remembered")
