"""What a call costs, counted as it runs: operations on numbers, whatever the machine."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
PRODUCTS = (aten.mv, aten.dot, aten.addmv)  # which the registry of matrix products leaves out


class Operations(TorchDispatchMode):
    """While entered, `count` grows by what every operation costs.

    A matrix product costs 2 for each product of two numbers, a linear system of width n with m right-hand sides
    2/3 n^3 + 2 n^2 m, everything else 1 for each number of its largest argument or result; a view costs nothing.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += _cost(func.overloadpacket, args, kwargs or {}, out)
        return out


def operations(call: Callable[[], object]) -> int:
    """Operations of one call."""
    with Operations() as counted:
        call()
    return counted.count


def _cost(packet, args, kwargs, out) -> int:
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
    if packet in flop_registry:
        return flop_registry[packet](*args, **kwargs, out_val=out)
    if packet is aten._linalg_solve_ex:
        matrix, right = inputs
        n = matrix.shape[-1]
        return round(math.prod(matrix.shape[:-2]) * (2 / 3 * n**3 + 2 * n**2 * right.shape[-1]))
    if not inputs or all(_views(x, inputs) for x in results):
        return 0
    largest = max(x.numel() for x in (*inputs, *results))
    return 2 * largest if packet in PRODUCTS else largest


def _views(x: Tensor, others: list[Tensor]) -> bool:
    storage = x.untyped_storage().data_ptr()
    return storage != 0 and any(storage == other.untyped_storage().data_ptr() for other in others)
