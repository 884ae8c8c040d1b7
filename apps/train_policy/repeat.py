"""A long delay from a short one: what the same steps of work would do to a memory many times over, with its gradient.

Small writes do no harm in a hundred steps and wipe a memory in thousands, but nobody backpropagates through thousands.
Under a rule whose write is an affine map of the memory, the writes of a stretch of work are one map M -> A M + C, and
the stretch done twice is the map squared: 2^n times the delay cost n products of small matrices.
"""

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.memory.rule import Composed, MemoryState
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy
from streammem.types import Gates, Tokens


def repeated(
    policy: MemoryPolicy, before: MemoryState, observation: Tensor, rate: Tensor, doublings: int, chunk: int
) -> MemoryState:
    """The memory after 2^doublings times the same steps, each with the same rates.

        M -> A M + C;  twice: A <- A A, C <- A C + C

    Shapes: observation [B, T, D], rate [B, T, H, N, 1] as the gate ruled.
    Raises: ConfigError where the rule's write is no affine map, or the memory fades with time.
    """
    memory = policy.memory
    if not (isinstance(memory.rule, Composed) and memory.rule.affine) or memory.log_fade is not None:
        raise ConfigError(f"{memory.rule} cannot repeat its work; wanted delta, gated_delta or hebbian, without fading")
    _, tokens = memory.layer.tokens((), policy.encoder(Observation(vector=observation)))
    width = tokens.key.shape[-1]
    eye = torch.eye(width, dtype=before.dual.dtype, device=before.dual.device)
    start = torch.cat([eye.expand(*before.dual.shape[:-1], width), torch.zeros_like(before.dual)], -1)
    value = torch.cat([torch.zeros_like(tokens.key), tokens.value], -1)
    lr = (memory.most * rate / rate.shape[-2]).transpose(0, 1)
    kept = torch.ones_like(lr[..., :1, :])
    frames = Tokens(tokens.key, tokens.key, value, Gates(lr, kept, kept))
    after, _ = memory.rule.sequence(memory.rule.init(start), frames, chunk)
    a, c = after.dual.split([width, before.dual.shape[-1]], -1)
    for _ in range(doublings):
        a, c = a @ a, a @ c + c
    return before._replace(dual=a @ before.dual + c)
