"""Similarities: a rotation, a translation and a scale, as chunks of a stream without a measured scale need them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Similarity(NamedTuple):
    """p' = s R p + t, by stream."""

    scale: Tensor  # [B] float64
    rotation: Tensor  # [B, 3, 3] float64
    translation: Tensor  # [B, 3] float64

    def points(self, points: Tensor) -> Tensor:
        """Points [B, ..., 3] on the other side, in their own type."""
        scale, translation = self.scale.to(points)[:, None, None], self.translation.to(points)[:, None]
        turned = points.reshape(len(points), -1, 3) @ self.rotation.to(points).mT
        return (scale * turned + translation).view(points.shape)

    def poses(self, world_from_camera: Tensor) -> Tensor:
        """Cameras [B, 4, 4] on the other side: turned and moved, never stretched. Depths there are `scale` times."""
        moved = world_from_camera.clone()
        moved[:, :3, :3] = self.rotation.to(moved) @ world_from_camera[:, :3, :3]
        moved[:, :3, 3] = self.points(world_from_camera[:, :3, 3])
        return moved

    def after(self, first: "Similarity") -> "Similarity":
        """This one after another: s R (s' R' p + t') + t."""
        return Similarity(self.scale * first.scale, self.rotation @ first.rotation, self.points(first.translation))


def identity(batch: int, device="cpu") -> Similarity:
    """Every point where it is."""
    eye = torch.eye(3, dtype=torch.float64, device=device).repeat(batch, 1, 1)
    return Similarity(eye.new_ones(batch), eye, eye.new_zeros(batch, 3))


def between(to: Tensor, from_: Tensor) -> Similarity:
    """The rigid one that takes cameras `from_` [B, 4, 4] to cameras `to` [B, 4, 4]."""
    rotation = to[:, :3, :3] @ from_[:, :3, :3].mT
    moved = (rotation @ from_[:, :3, 3, None])[..., 0]
    return Similarity(rotation.new_ones(len(rotation)), rotation, to[:, :3, 3] - moved)
