"""A small policy with a memory, for the other examples; a trained one takes its place."""

import torch

from streammem.policy.encoders import VectorEncoder
from streammem.policy.gate import HardThreshold
from streammem.policy.gated_memory import GatedMemory
from streammem.policy.heads import RegressionHead
from streammem.policy.memory_policy import MemoryPolicy
from streammem.rules import RULES

DIM, HEADS, WIDTHS = 32, 2, (16, 16)


def policy(inputs: int, actions: int, seed: int = 0) -> MemoryPolicy:
    """A policy from state vectors to actions, untrained."""
    torch.manual_seed(seed)
    memory = GatedMemory(DIM, HardThreshold(DIM, HEADS), RULES["delta"](), WIDTHS)
    return MemoryPolicy(VectorEncoder(inputs, DIM), memory, RegressionHead(2 * DIM, actions)).eval()
