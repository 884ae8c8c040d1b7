"""Heads: tokens to points, confidence, colour and pose."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pixel_shuffle

from streammem.recon.blocks import ConditionedBlock, Mlp
from streammem.recon.config import ReconConfig
from streammem.recon.dpt import Dpt
from streammem.recon.rope import Rotation

DEPTH = 2  # blocks of the conditioned transform
TINY = 1e-8


class Layers(NamedTuple):
    """What heads read."""

    encoded: Tensor  # [B, N, E] fused feature before the decoder
    half: Tensor  # [B, N, D] image side after 2/4 of the layers
    three_quarters: Tensor  # [B, N, D]
    last: Tensor  # [B, N, D] normalised, without the pose token
    pose: Tensor  # [B, 1, D] the pose token of the last


class Maps(NamedTuple):
    """Raw numbers a pixel, [B, C, h, w]."""

    camera: Tensor  # 4: point in this camera, confidence
    world: Tensor  # 4: point in the world, confidence
    colour: Tensor  # 3


class PoseHead(nn.Module):
    """Pose token [B, 1, D] to seven numbers [B, 7]."""

    def __init__(self, dim: int):
        super().__init__()
        self.mlp = Mlp(dim, 7)

    def forward(self, token: Tensor) -> Tensor:
        return self.mlp(token)[:, 0]


class Head(nn.Module):
    """What both heads share: the pose, and tokens that know the pose for points in the world."""

    def __init__(self, config: ReconConfig):
        super().__init__()
        dim, heads = config.dec_embed_dim, config.dec_num_heads
        self.pose_head = PoseHead(dim)
        self.final_transform = nn.ModuleList(ConditionedBlock(dim, heads) for _ in range(DEPTH))

    def posed(self, layers: Layers, by: Rotation) -> Tensor:
        """The last layer's tokens, conditioned on the pose token, [B, N, D]."""
        x = layers.last
        for block in self.final_transform:
            x = block(x, layers.pose, by)
        return x


class LinearHead(Head):
    """A patch of pixels from each token by a perceptron."""

    def __init__(self, config: ReconConfig):
        super().__init__(config)
        dim, self.patch = config.dec_embed_dim, config.patch_size
        self.proj = Mlp(dim, 4 * self.patch**2)
        self.rgb_proj = Mlp(dim, 3 * self.patch**2)
        self.cross_proj = Mlp(dim, 4 * self.patch**2)

    def forward(self, layers: Layers, by: Rotation, rows: int, columns: int) -> Maps:
        camera, colour, world = (
            pixel_shuffle(project(x).mT.unflatten(2, (rows, columns)), self.patch)
            for project, x in (
                (self.proj, layers.last),
                (self.rgb_proj, layers.last),
                (self.cross_proj, self.posed(layers, by)),
            )
        )
        xyz, confidence = camera.split([3, 1], 1)
        return Maps(torch.cat([xyz * xyz[:, 2:].sign(), confidence], 1), world, colour)  # in front of the camera


class DptHead(Head):
    """Three dense decoders over four layers; a point may lie behind the camera."""

    def __init__(self, config: ReconConfig):
        super().__init__(config)
        first, dim = config.enc_embed_dim, config.dec_embed_dim
        self.dpt_self = Dpt(first, dim, 4)
        self.dpt_cross = Dpt(first, dim, 4)
        self.dpt_rgb = Dpt(first, dim, 3)

    def forward(self, layers: Layers, by: Rotation, rows: int, columns: int) -> Maps:
        before = [layers.encoded, layers.half, layers.three_quarters]
        return Maps(
            self.dpt_self([*before, layers.last], rows, columns),
            self.dpt_cross([*before, self.posed(layers, by)], rows, columns),
            self.dpt_rgb([*before, layers.last], rows, columns),
        )


HEADS = {"linear": LinearHead, "dpt": DptHead}


def points(raw: Tensor) -> Tensor:
    """r / |r| expm1(|r|). Shapes: [B, 3, h, w] -> [B, h, w, 3]."""
    raw = raw.permute(0, 2, 3, 1)
    distance = raw.norm(dim=-1, keepdim=True)
    return raw / distance.clamp(min=TINY) * distance.expm1()


def confidence(raw: Tensor) -> Tensor:
    """1 + exp(raw)."""
    return 1 + raw.exp()


def colour(raw: Tensor) -> Tensor:
    """2 sigmoid(raw) - 1, kept 2e-6 off the ends. Shapes: [B, 3, h, w] -> [B, h, w, 3]."""
    return 2 * (raw.permute(0, 2, 3, 1).sigmoid() * (1 - 2e-6) + 1e-6 - 0.5)


def pose(raw: Tensor) -> Tensor:
    """Translation t / |t| expm1(|t|), unit quaternion with w first and not negative. Shapes: [B, 7]."""
    t, q = raw.split([3, 4], -1)
    distance = t.norm(dim=-1, keepdim=True)
    q = normalize(q, dim=-1)
    q = torch.where(q[:, :1] < 0, -q, q)
    return torch.cat([t * (distance.expm1() / distance.clamp(min=TINY)), q], -1)
