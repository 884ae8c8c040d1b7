"""Poses that somebody measured: the network's world is moved, turned and scaled onto theirs."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem import tree
from streammem.recon.similarity import Similarity, identity

VIEWS = 64  # last centres that the scale is told by
LEAST_M = 0.02  # spread of measured centres, root mean square, below which they tell no scale


class Anchor(NamedTuple):
    """The measured world from the network's, by stream; the identity until a pose was measured."""

    similarity: Similarity
    ours: Tensor  # [B, n, 3] float64, last centres in the network's world, NaN where none was yet
    theirs: Tensor  # [B, n, 3] float64, the same as measured
    count: Tensor  # [B] int64


def anchor(batch: int, device="cpu") -> Anchor:
    """Before the first view."""
    nothing = torch.full((batch, VIEWS, 3), torch.nan, dtype=torch.float64, device=device)
    none = torch.zeros(batch, dtype=torch.int64, device=device)
    return Anchor(identity(batch, device), nothing, nothing, none)


def anchored(anchor: Anchor, ours: Tensor, theirs: Tensor) -> Anchor:
    """The anchor under which this camera is where it was measured; unchanged where the measured pose is NaN.

        s = sqrt(sum |theirs_c - mean|^2 / sum |ours_c - mean|^2)  over the last centres; 1 while they hardly move
        R = R_theirs R_ours^T;  t = c_theirs - s R c_ours

    Shapes: ours, theirs [B, 4, 4] float64, world_from_camera. Units: theirs are metres.
    Source: ours; the symmetric scale is Horn's, 1987, J. Opt. Soc. Am. A 4(4).
    """
    both = (ours.isfinite() & theirs.isfinite()).all(-1).all(-1)
    at = (anchor.count % VIEWS)[:, None, None].expand(-1, 1, 3)
    rings = [
        ring.scatter(1, at, torch.where(both[:, None, None], pose[:, None, :3, 3], ring.gather(1, at)))
        for ring, pose in ((anchor.ours, ours), (anchor.theirs, theirs))
    ]
    spread = [_spread(ring) for ring in rings]
    known = (spread[1] > LEAST_M) & (spread[0] > 0)
    scale = torch.where(known, spread[1] / spread[0].clamp(min=1e-12), 1.0)
    rotation = theirs[:, :3, :3] @ ours[:, :3, :3].mT
    moved = scale[:, None] * (rotation @ ours[:, :3, 3, None])[..., 0]
    new = Anchor(Similarity(scale, rotation, theirs[:, :3, 3] - moved), *rings, anchor.count + 1)
    return tree.where(both, new, anchor)


def _spread(ring: Tensor) -> Tensor:
    """Root mean square distance [B] of centres [B, n, 3] from their mean."""
    return (ring - ring.nanmean(1, keepdim=True)).square().sum(-1).nanmean(-1).sqrt()
