"""Three proofs, on any machine, that a step never makes the host wait for the device.

`NoHostLook` refuses operations whose result the host must read. `fakes` are tensors that claim to hold data and hold
none: reading a value, or a shape that depends on one, raises. `bare` are on a device that is not the host's: a copy
home, or a constant that was left at home, raises.
"""

from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from streammem import tree

LOOKS = {
    "_linalg_check_errors",
    "_linalg_eigh",
    "_linalg_svd",
    "_local_scalar_dense",
    "_unique2",
    "allclose",
    "bincount",
    "equal",
    "is_nonzero",
    "linalg_eig",
    "linalg_lstsq",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}


class NoHostLook(TorchDispatchMode):
    """Raises AssertionError at an operation whose result the host must read, or whose shape depends on values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        look = name in LOOKS or (name in ("index", "index_put", "index_put_") and _by_mask(args[1]))
        assert not look, f"{name} makes the host wait for the device"
        return func(*args, **(kwargs or {}))


def never_looks(step, *trees) -> None:
    """Runs step(*trees) under the three proofs; raises where one fails."""
    with NoHostLook():
        step(*trees)
    with fakes(*trees) as fake_trees:
        step(*fake_trees)
    step(*bare(*trees))


@contextmanager
def fakes(*trees):
    """Yields the trees as fake tensors."""
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        yield tuple(tree.map(mode.from_tensor, t) for t in trees)


def bare(*trees) -> tuple:
    """The trees on the meta device."""
    return tuple(tree.to(t, "meta") for t in trees)


def _by_mask(indices) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
