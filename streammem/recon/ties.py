"""Tensors under two names: a DPT head registers four of its layers twice, and files may have either or both."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from streammem.errors import CheckpointError


def twin(name: str) -> str | None:
    """The other name of a tied tensor: a DPT head calls its layerN_rn also layer_rn.(N-1)."""
    head, dot, rest = name.partition(".scratch.")
    for n in range(1, 5):
        for one, other in ((f"layer{n}_rn.", f"layer_rn.{n - 1}."), (f"layer_rn.{n - 1}.", f"layer{n}_rn.")):
            if dot and rest.startswith(one):
                return f"{head}{dot}{other}{rest.removeprefix(one)}"
    return None


def is_second(name: str) -> bool:
    """Whether this is the name that is not written to files."""
    return ".scratch.layer_rn." in name


def tied(path: Path, tensors: dict[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors, in the order that the network has them, with tied ones under both names.

    Raises: CheckpointError where the two differ.
    """
    both = dict(tensors)
    for name in shapes:
        other = twin(name)
        if other in tensors and name in tensors and not torch.equal(tensors[name], tensors[other]):
            raise CheckpointError(f"{path}: {name} and {other} differ; wanted one tensor under two names")
        if other in both and name in both:
            both[name] = both[other] if is_second(name) else both[name]
        elif other in both:
            both[name] = both[other]
    known = {name: both.pop(name) for name in shapes if name in both}
    return known | both
