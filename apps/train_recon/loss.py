"""A rollout over clips, and how far its readouts are from the truth."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pixel_shuffle

from streammem import tree
from streammem.geometry import inverse_rigid, quaternion_from_motion, transform, unproject
from streammem.recon.model import ReconModel
from streammem.recon.state import ReconReadout, View

from .data import Clips

SURE = 0.5  # reward of log confidence


class Truth(NamedTuple):
    """What the network should say of clips; the world is the first camera's axes."""

    points_camera: Tensor  # [B, T, h, w, 3], metres
    points_world: Tensor  # [B, T, h, w, 3]
    camera: Tensor  # [B, T, 4, 4] first_from_camera


class Errors(NamedTuple):
    """Parts of the loss, scalars."""

    camera: Tensor  # metres, weighted by confidence
    world: Tensor
    translation: Tensor  # metres
    rotation: Tensor  # norm of the quaternions' difference, whatever their signs
    colour: Tensor


def truth(clips: Clips, origin: Tensor | None = None) -> Truth:
    """Points and poses relative to the first camera of each clip, or to a camera [4, 4] of the room, `origin`."""
    points = unproject(clips.depth, clips.intrinsics)
    camera = inverse_rigid(clips.world_from_camera[:, :1] if origin is None else origin) @ clips.world_from_camera
    return Truth(points, transform(camera, points), camera)


def rollout(model: ReconModel, images: Tensor, shown: list[int] | None = None) -> ReconReadout:
    """Readouts [B, T, ...] of T views from the initial state, as T calls would give; encoder and heads run once.

    shown: views whose maps are made, None all; poses are made for all of them.

    Shapes: images [B, T, 3, h, w].
    """
    batch, frames, size = *images.shape[:2], images.shape[-2:]
    features = seen_features(model, images.flatten(0, 1)).unflatten(0, (batch, frames))
    state, layers, gates = model.init_state(batch), [], []
    for t in range(frames):
        proposal = model.propose(state, features[:, t], size, state.frames == 0)
        state, gate = model.commit(state, proposal)
        layers.append(proposal.layers)
        gates.append(gate)
    shown = list(range(frames)) if shown is None else shown
    together = tree.map(lambda *parts: torch.stack(parts, 1).flatten(0, 1), *(layers[t] for t in shown))
    readout = model.read(together, size, torch.stack(gates, 1)[:, shown].flatten(0, 1))
    readout = tree.map(lambda x: x.unflatten(0, (batch, len(shown))), readout)
    return readout._replace(
        pose=model.pose(torch.stack([x.pose for x in layers], 1).flatten(0, 1)).unflatten(0, (batch, frames))
    )


def seen_features(model: ReconModel, images: Tensor) -> Tensor:
    """The encoder's tokens of images [B, 3, h, w]."""
    seen = torch.ones(len(images), dtype=torch.bool, device=images.device)
    return model.features(View(images, None, seen, ~seen, seen, ~seen))


def errors(readout: ReconReadout, wanted: Truth, images: Tensor, shown: list[int] | None = None) -> Errors:
    """Distance of points weighted by confidence, of poses and of colours.

        camera, world: mean(C |x - x*| - SURE log C)
        translation: mean |t - t*|;  rotation: mean min(|q - q*|, |q + q*|);  colour: mean (c - c*)^2

    Source: CUT3R, Wang et al. 2025, arXiv:2501.12387, section on training; confidence as in DUSt3R, arXiv:2312.14132.
    Differs: metres throughout, no normalisation by scene.
    """
    shown = list(range(images.shape[1])) if shown is None else shown
    t, xyzw = quaternion_from_motion(wanted.camera)
    said, q = readout.pose, xyzw.roll(1, -1)
    turned = [(said[..., 3:] - sign * q).norm(dim=-1) for sign in (1, -1)]
    return Errors(
        _weighted(readout.points_camera, readout.confidence_camera, wanted.points_camera[:, shown]),
        _weighted(readout.points_world, readout.confidence_world, wanted.points_world[:, shown]),
        (said[..., :3] - t).norm(dim=-1).mean(),
        torch.minimum(*turned).mean(),
        mse_loss(readout.colour, images[:, shown].movedim(2, -1)),
    )


def misplaced(places: nn.Module, features: Tensor, wanted: Truth, patch: int) -> Tensor:
    """Mean distance of the pixels' points from what `places` reads of each patch's feature alone.

    Shapes: features [B, N, E] -> places [B, N, 3 patch^2], channels first; wanted of clips of one frame.
    """
    rows, columns = (side // patch for side in wanted.points_world.shape[2:4])
    said = pixel_shuffle(places(features).mT.unflatten(2, (rows, columns)), patch)  # [B, 3, h, w]
    return (said.movedim(1, -1) - wanted.points_world[:, 0]).norm(dim=-1).mean()


def _weighted(said: Tensor, confidence: Tensor, wanted: Tensor) -> Tensor:
    return (confidence * (said - wanted).norm(dim=-1) - SURE * confidence.log()).mean()
