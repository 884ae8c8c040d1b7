"""Images and maps of rays to tokens of one kind."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from streammem.recon.blocks import EPS, EncoderBlock
from streammem.recon.config import ReconConfig
from streammem.recon.rope import Rotation
from streammem.recon.state import View


class PatchEmbed(nn.Module):
    """One token a patch, in row-major order: b + sum over rows, columns, channels of W x.

    The bias is the weight of a channel of ones, so that sums begin with it on every processor, as in the reference: a
    sum that ends with it differs in its last bits, and the encoder's rounding to float16 makes 10 times more of them.

    Shapes: [B, C, h, w] -> [B, N, E].
    """

    def __init__(self, channels: int, dim: int, patch_size: int):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        side = self.proj.kernel_size[0] - 1
        first = pad(self.proj.bias[:, None, None, None], (0, side, 0, side))
        weight = torch.cat([first, self.proj.weight], 1)
        return conv2d(torch.cat([torch.ones_like(x[:, :1]), x], 1), weight, stride=side + 1).flatten(2).mT


def image_blocks(config: ReconConfig) -> nn.ModuleList:
    """Blocks of the image encoder."""
    dim, heads, half = config.enc_embed_dim, config.enc_num_heads, config.rope_half_rounding
    return nn.ModuleList(EncoderBlock(dim, heads, half) for _ in range(config.enc_depth))


def ray_blocks(config: ReconConfig) -> nn.ModuleList:
    """Blocks of the ray-map encoder."""
    dim, heads = config.enc_embed_dim, config.ray_enc_num_heads
    return nn.ModuleList(EncoderBlock(dim, heads) for _ in range(config.ray_enc_depth))


def norm(dim: int) -> nn.LayerNorm:
    """A layer norm of the network's kind."""
    return nn.LayerNorm(dim, eps=EPS)


def encode(x: Tensor, embed: PatchEmbed, blocks: nn.ModuleList, last: nn.LayerNorm, by: Rotation) -> Tensor:
    """Tokens of images or maps of rays. Shapes: x [B, C, h, w] -> [B, N, E]."""
    x = embed(x)
    for block in blocks:
        x = block(x, by)
    return last(x)


def fuse(view: View, image: Tensor, rays: Tensor, no_image: Tensor, no_rays: Tensor) -> Tensor:
    """One feature of what a view brings: the image's plus the rays'; `no_image` and `no_rays` stand for what it lacks.

    Shapes: image, rays [B, N, E]; no_image, no_rays broadcast to them.
    """
    image = torch.where(view.has_image[:, None, None], image, no_image)
    return image + torch.where(view.has_ray_map[:, None, None], rays, no_rays)
