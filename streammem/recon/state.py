"""What flows through the reconstruction network: views in, state along, readouts out."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.types import Frame


class View(NamedTuple):
    """One instant of B streams of which an image, a map of rays, or both are known.

    A stream of views either always has a field `ray_map` or never; which streams bring one this time says the mask.
    """

    image: Tensor  # [B, 3, h, w] float32, in [-1, 1]
    ray_map: Tensor | None  # [B, h, w, 6] float32: origin, then unit direction, in the frame of the first camera
    has_image: Tensor  # [B] bool; a view without one is only asked, never written
    has_ray_map: Tensor  # [B] bool
    valid: Tensor  # [B] bool: may be used
    reset: Tensor  # [B] bool: the stream starts over before this view


def as_view(frame: Frame | View) -> View:
    """The colour of a camera frame, as a view without rays; a view as it is."""
    if isinstance(frame, View):
        return frame
    seen = torch.ones_like(frame.valid)
    return View(frame.image, None, seen, ~seen, frame.valid, frame.reset)


class ReconState(NamedTuple):
    """What a stream carries from view to view; its size is that of the network, not of the stream."""

    tokens: Tensor  # [B, S, D]
    pose_memory: Tensor  # [B, M, 2 D]
    frames: Tensor  # [B] int64, views written since the stream started
    rule: object  # the update rule's own


class ReconReadout(NamedTuple):
    """What the network says of one view. World: the axes of the stream's first camera. Units: those of the weights."""

    points_camera: Tensor  # [B, h, w, 3] in the axes of this camera; the last is depth
    confidence_camera: Tensor  # [B, h, w], at least 1
    points_world: Tensor  # [B, h, w, 3]
    confidence_world: Tensor  # [B, h, w], at least 1
    colour: Tensor  # [B, h, w, 3], in [-1, 1]
    pose: Tensor  # [B, 7] camera in the world: tx ty tz qw qx qy qz
    gate: Tensor  # [B, S] share of each token that this view would write


class Evidence(NamedTuple):
    """What an update rule may judge a candidate by; None where the rule does not ask for it."""

    first: Tensor  # [B] bool: nothing was written yet
    summary: Tensor  # [B, E] mean over patches of the view's feature
    logit: Tensor | None  # [B, S] mean over layers, heads and image tokens of the state's logits into the image
    read: Tensor | None  # [B, S, D] mean over layers of what each state token read from the image
