"""Two proofs, on any machine, that a step never makes the host wait for the device."""

from contextlib import contextmanager

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from streammem import tree

LOOKS = {
    "_local_scalar_dense",
    "_linalg_check_errors",
    "_unique2",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}


class NoHostLook(TorchDispatchMode):
    """Raises AssertionError at an operation whose result the host must read, or whose shape depends on values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        assert name not in LOOKS, f"{name} makes the host wait for the device"
        return func(*args, **(kwargs or {}))


@contextmanager
def fakes(*trees):
    """Yields trees of tensors without data: reading a value, or a shape that depends on one, raises."""
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        yield tuple(tree.map(mode.from_tensor, t) for t in trees)
