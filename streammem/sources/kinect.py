"""The noise of a structured-light depth camera."""

from dataclasses import dataclass

import torch
from torch import Tensor

DISPARITY_M = 0.075 * 585 * 8  # baseline [m] x focal length [pixels] x steps per pixel of disparity
REFERENCE_WIDTH = 640  # pixels across of the sensor that the lateral noise was measured on


@dataclass(frozen=True)
class Kinect:
    """Depth as a Kinect of the first generation measures it.

        s(u) = z(u + n_s);  z'(u) = c / round(c / s(u) + n_d)
        n_s ~ N(0, lateral^2) pixels;  n_d ~ N(0, disparity^2) steps

    so that axial noise and the distance between levels grow with z^2: 3 mm and 11 mm at 2 m. Pixels are dropped at
    depth edges, at grazing incidence, out of range, and now and then.

    Source: Barron and Malik 2013, CVPR, "Intrinsic scene properties from a single RGB-D image" (the formula);
        Nguyen et al. 2012, 3DIMPVT, "Modeling Kinect sensor noise" (grazing incidence).
    Differs: edge and incidence drops are ours; noise is independent between pixels, that of a real sensor is not.
    """

    lateral_px: float = 0.5
    disparity: float = 1 / 6
    nearest_m: float = 0.4
    furthest_m: float = 5.0
    edge: float = 0.04  # a step to a neighbour by more than this share of the depth is an edge
    edge_drop: float = 0.6  # share of edge pixels without depth
    drop: float = 0.002  # share of other pixels without depth
    colour: float = 0.01  # standard deviation of the brightness, of [0, 1]

    def measure(self, depth: Tensor, incidence: Tensor, generator: torch.Generator) -> Tensor:
        """Noisy depth [h, w] in metres, 0 where dropped; `incidence` [h, w] is the cosine to the surface normal."""
        height, width = depth.shape
        chance = torch.rand((height, width), generator=generator, device=depth.device)
        noise = torch.randn((3, height, width), generator=generator, device=depth.device)
        moved = self._displace(depth, noise[:2] * (self.lateral_px * width / REFERENCE_WIDTH))
        steps = (DISPARITY_M / moved + noise[2] * self.disparity).round_()
        measured = DISPARITY_M / steps
        lost = torch.full_like(depth, self.drop)
        lost = torch.where(_edges(depth, self.edge), self.edge_drop, lost)
        lost = torch.maximum(lost, (0.3 - incidence).mul_(5).clamp_(0, 1))  # gone below a cosine of 0.1 (84 degrees)
        kept = (chance >= lost) & (measured > self.nearest_m) & (measured < self.furthest_m)
        return torch.where(kept, measured, 0.0)

    def expose(self, colour: Tensor, generator: torch.Generator) -> Tensor:
        """Colour [h, w, 3] in [0, 1] with noise in its brightness."""
        noise = torch.randn(colour.shape[:2], generator=generator, device=colour.device)
        return (colour + noise[..., None] * self.colour).clamp_(0, 1)

    def _displace(self, depth: Tensor, offset: Tensor) -> Tensor:
        height, width = depth.shape
        u = torch.arange(width, device=depth.device)
        v = torch.arange(height, device=depth.device)[:, None]
        du, dv = offset.round_().to(torch.int64)
        return depth.take((v + dv).clamp_(0, height - 1) * width + (u + du).clamp_(0, width - 1))


def _edges(depth: Tensor, share: float) -> Tensor:
    """Pixels [h, w] whose right or lower neighbour, or left or upper, is further by more than a share of the depth."""
    edge = torch.zeros_like(depth, dtype=torch.bool)
    for a, b in ((depth[:, 1:], depth[:, :-1]), (depth[1:], depth[:-1])):
        step = (a - b).abs() > share * torch.minimum(a, b)
        rows, columns = step.shape
        edge[-rows:, -columns:] |= step
        edge[:rows, :columns] |= step
    return edge
