"""The twin decoders: state and image look at each other, layer by layer, both at the other's last layer."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from streammem.recon.blocks import DecoderBlock, Glance
from streammem.recon.config import ReconConfig
from streammem.recon.rope import Rotation, grid


class Places(NamedTuple):
    """Rotations of both sides for the heads of both decoders, which differ in width."""

    image: Rotation  # image tokens, pose token first, image heads
    state: Rotation  # state tokens, image heads
    image_to_state: Rotation  # image tokens, state heads
    state_to_state: Rotation  # state tokens, state heads


class Decoded(NamedTuple):
    """What both decoders give."""

    candidate: Tensor  # [B, S, D] state before the last norm
    layers: list[Tensor]  # image side after each layer, [B, 1 + N, D], before the last norm
    glance: Glance  # mean over layers of the state's look into the image


def decoder_blocks(config: ReconConfig, heads: int) -> nn.ModuleList:
    """Blocks of one side."""
    return nn.ModuleList(DecoderBlock(config.dec_embed_dim, heads) for _ in range(config.dec_depth))


def decode(
    state: Tensor,
    image: Tensor,
    state_blocks: nn.ModuleList,
    image_blocks: nn.ModuleList,
    places: Places,
    wanted: frozenset[str],
) -> Decoded:
    """Runs both sides. Shapes: state [B, S, D], image [B, 1 + N, D], the pose token first."""
    layers, glances = [], []
    for state_block, image_block in zip(state_blocks, image_blocks):
        before = state
        state, glance = state_block(before, image, places.state_to_state, places.image_to_state, wanted)
        image, _ = image_block(image, before, places.image, places.state)
        layers.append(image)
        glances = _added(glances, glance)
    count = len(state_blocks)
    return Decoded(state, layers, Glance(*(None if part is None else part / count for part in glances)))


def state_grid(config: ReconConfig, device=None) -> Tensor:
    """Positions of the state tokens, [S, 2].

    "2d": rows of int(sqrt(S)) tokens, one more where that is odd; "1d": (i, i); "none": all at the origin.
    """
    count = config.state_size
    at = torch.arange(count, device=device)
    if config.state_pe == "none":
        return torch.zeros_like(at)[:, None].expand(-1, 2)
    if config.state_pe == "1d":
        return torch.stack([at, at], -1)
    width = int(count**0.5)
    width += width % 2
    return torch.stack([at // width, at % width], -1)


def image_grid(rows: int, columns: int, device=None) -> Tensor:
    """Positions of the image tokens, [1 + N, 2]: the pose token stands at (-1, -1)."""
    patches = grid(rows, columns, device)
    return torch.cat([patches.new_full((1, 2), -1), patches])


def _added(total: list, glance: Glance) -> list:
    if not total:
        return list(glance)
    return [None if part is None else part + more for part, more in zip(glance, total)]
