"""Recursions c_t = (a c_{t-1} + b) / (d c_{t-1} + e), all steps at once."""

import torch
from torch import Tensor


def course(start: Tensor, a: Tensor, b: Tensor, d: Tensor, e: Tensor) -> Tensor:
    """c_1 ... c_T, by prefix products of the 2 x 2 matrices [[a, b], [d, e]], in log2 T rounds.

    Shapes: start [...], coefficients [T, ...] and not negative -> [T, ...]. Each product is scaled to its largest
    entry, so that none overflows.
    """
    shift = 1
    while shift < len(a):
        late, early = (tuple(x[part] for x in (a, b, d, e)) for part in (slice(shift, None), slice(None, -shift)))
        product = (
            late[0] * early[0] + late[1] * early[2],
            late[0] * early[1] + late[1] * early[3],
            late[2] * early[0] + late[3] * early[2],
            late[2] * early[1] + late[3] * early[3],
        )
        scale = torch.stack(product).amax(0)
        a, b, d, e = (torch.cat([x[:shift], y / scale]) for x, y in zip((a, b, d, e), product))
        shift *= 2
    return (a * start + b) / (d * start + e)
