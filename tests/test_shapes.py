"""Shapes: what is checked, what is said, and that the device is never asked."""

import pytest
import torch
from nolook import never_looks

from streammem.errors import ShapeError
from streammem.shapes import check


def test_letters_are_bound_and_come_back():
    assert check(torch.empty(2, 4, 8), "B N K", "key") == {"B": 2, "N": 4, "K": 8}
    assert check(torch.empty(7, 2, 4, 8), "... N K", "key", K=8) == {"K": 8, "N": 4}
    assert check(torch.empty(3, 3), "K K", "covariance") == {"K": 3}
    assert check(torch.empty(2, 3, 5, 6), "B 3 h w", "image")["w"] == 6
    assert check(torch.empty(()), "", "scalar") == {}


@pytest.mark.parametrize(
    "shape, pattern, sizes, said",
    [
        ((2, 4, 8), "B N K", {"K": 6}, r"key is \[2, 4, 8\]; wanted \[B, N, K\] with K = 6"),
        ((2, 4), "B N K", {}, r"key is \[2, 4\]; wanted \[B, N, K\]$"),
        ((8,), "... N K", {}, r"wanted \[..., N, K\]$"),
        ((3, 4), "K K", {}, "with K = 3"),
        ((2, 1, 5, 6), "B 3 h w", {}, r"wanted \[B, 3, h, w\]"),
    ],
)
def test_a_wrong_shape_is_said(shape, pattern, sizes, said):
    with pytest.raises(ShapeError, match=said):
        check(torch.empty(shape), pattern, "key", **sizes)


def test_the_device_is_not_asked():
    never_looks(lambda x: check(x, "N K", "x"), torch.ones(2, 3))
