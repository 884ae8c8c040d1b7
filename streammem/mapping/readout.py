"""What a map says about each frame: a status with a reason, the pose, and how far the frame was believed."""

from typing import NamedTuple

import torch
from torch import Tensor

from streammem.mapping import verdict

GIVEN = "pose given"
UNUSABLE = "frame invalid"
BLIND = "no depth in range"
UNPOSED = "no pose, where other frames bring one"
NONFINITE = "update not finite"
REASONS = (*verdict.REASON, GIVEN, UNUSABLE, BLIND, UNPOSED, NONFINITE)
"""Words of `MapReadout.reason_code`: the tracker's, then those of frames that bring a pose or cannot be used."""


class MapReadout(NamedTuple):
    """One frame's answer. The codes stay on the device; `status` and `reason` wait for it."""

    status_code: Tensor  # [1] int64, index into `verdict.STATUS`
    reason_code: Tensor  # [1] int64, index into REASONS
    world_from_camera: Tensor  # [1, 4, 4] float64; the last known pose where the frame has none
    confidence: Tensor  # [1] mean gate of the rays, 0 where nothing was written

    @property
    def status(self) -> str:
        """ "tracked", "weak", "lost" or "skipped"."""
        return verdict.STATUS[int(self.status_code)]

    @property
    def reason(self) -> str:
        """Why, in words."""
        return REASONS[int(self.reason_code)]


class MapHealth(NamedTuple):
    """Counts since the map was made or reset, [] int64 each."""

    written: Tensor
    tracked: Tensor
    weak: Tensor
    lost: Tensor
    skipped: Tensor
    nonfinite: Tensor  # updates that were refused whole
    refused_blocks: Tensor  # blocks for which there was no slot
    crowded: Tensor  # frames that wanted more rows than the step had room for


def healthy(device) -> MapHealth:
    """Counts before the first frame."""
    return MapHealth(*(torch.zeros((), dtype=torch.int64, device=device) for _ in MapHealth._fields))
