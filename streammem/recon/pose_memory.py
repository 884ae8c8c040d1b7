"""The pose memory: what a view looks like as a whole, and the pose token it ended with."""

import torch
from torch import Tensor, nn

from streammem.recon.blocks import DecoderBlock
from streammem.recon.config import ReconConfig

DEPTH = 2


class PoseMemory(nn.Module):
    """Slots that a view's summary asks for a pose token and into which the found one is written; no positions.

        read:   [., z] = blocks([g W; masked], context = mem)
        write:  mem' = blocks(mem, context = [g W; found])

    Nothing bounds mem': it is the residual stream as it comes.

    Shapes: summary g [B, 1, E]; memory [B, M, 2 D]; token [B, 1, D].
    """

    def __init__(self, config: ReconConfig):
        super().__init__()
        dim, heads = config.dec_embed_dim, config.dec_num_heads
        self.mem = nn.Parameter(torch.randn(1, config.local_mem_size, 2 * dim) * 0.2)
        self.masked_token = nn.Parameter(torch.randn(1, 1, dim) * 0.2)
        self.proj_q = nn.Linear(config.enc_embed_dim, dim)
        self.read_blocks = nn.ModuleList(DecoderBlock(2 * dim, heads) for _ in range(DEPTH))
        self.write_blocks = nn.ModuleList(DecoderBlock(2 * dim, heads) for _ in range(DEPTH))

    def read(self, memory: Tensor, summary: Tensor) -> Tensor:
        """The pose token that a view begins with."""
        x = torch.cat([self.proj_q(summary), self.masked_token.expand(len(summary), -1, -1)], -1)  # [B, 1, 2 D]
        for block in self.read_blocks:
            x, _ = block(x, memory)
        return x.chunk(2, -1)[1]

    def write(self, memory: Tensor, summary: Tensor, token: Tensor) -> Tensor:
        """The memory with the pose token that a view ended with."""
        context = torch.cat([self.proj_q(summary), token], -1)
        for block in self.write_blocks:
            memory, _ = block(memory, context)
        return memory
