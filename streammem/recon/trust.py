"""Which pixels of a view are written to a map, and how often: confidence as precision."""

from dataclasses import dataclass

import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.recon.ring import Ring, median, noted, ring

# Steps that fill the plane and time evenly (Roberts 2018, "The unreasonable effectiveness of quasirandom sequences").
ROW, COLUMN, TIME = 0.7548776662466927, 0.5698402909980532, 0.6180339887498949
MOST = 200_000  # pixels that a quantile is taken of


@dataclass(frozen=True)
class Trust:
    """A pixel's precision as the share of views in which it is written.

        kept = c >= quantile(c, drop)  and  u < (c / median over views of quantile(c, full))^power

    u is the pixel's turn, evenly spread over cells and views. A map that adds up what it is given has then, over
    views, a precision in proportion to c^power; a network that was trained with the loss c error - a log c says with
    c the inverse of its error, so that power 2 makes it an inverse variance.

    Raises: ConfigError for shares outside [0, 1).
    Source: the loss of DUSt3R, Wang et al. 2024, arXiv:2312.14132, eq. (4); what follows from it is ours.
    """

    drop: float = 0.1  # share of a view's pixels, the least confident, that is never written
    full: float = 0.75  # share of a view's pixels below the confidence that is always written
    power: float = 2.0  # 0: all that are not dropped are written
    views: int = 31
    cell_px: int = 8  # pixels along the side of what takes turns together, so that slopes can be measured

    def __post_init__(self):
        if not (0 <= self.drop < 1 and 0 <= self.full < 1 and self.power >= 0 and min(self.views, self.cell_px) >= 1):
            raise ConfigError(f"{self}; wanted shares in [0, 1), power >= 0, views and cell_px of at least 1")

    def init(self, batch: int, device="cpu") -> Ring:
        """The state before the first view: what was confident lately."""
        return ring(batch, self.views, device)

    def step(self, state: Ring, confidence: Tensor, turn: Tensor) -> tuple[Ring, Tensor]:
        """Which pixels [B, h, w] of a view with confidence [B, h, w] are written; turn [B] counts the views."""
        height, width = confidence.shape[1:]
        flat = confidence.flatten(1)
        flat = flat[:, :: -(-flat.shape[1] // MOST)]
        state = noted(state, flat.quantile(self.full, dim=1))
        share = (confidence / median(state)[:, None, None]).pow(self.power)
        row, column = (torch.arange(side, device=confidence.device) // self.cell_px for side in (height, width))
        place = ROW * row[:, None] + COLUMN * column  # [h, w]
        u = (place.double() + TIME * turn.double()[:, None, None]).frac()
        return state, (confidence >= flat.quantile(self.drop, dim=1)[:, None, None]) & (u < share)
