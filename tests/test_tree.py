"""Trees: structure kept, nothing shared, names there and back."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from streammem import tree
from streammem.errors import ShapeError


class Pair(NamedTuple):
    a: Tensor
    b: object


def example():
    return Pair(torch.arange(6.0).view(2, 3), Pair(torch.tensor([1, 2]), (None, torch.ones(2, 1), ())))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_map_keeps_the_structure():
    doubled = tree.map(lambda a: 2 * a, example())
    assert isinstance(doubled, Pair) and isinstance(doubled.b, Pair)
    assert doubled.b.b[0] is None and doubled.b.b[2] == ()
    assert torch.equal(doubled.a, 2 * example().a)
    assert tree.map(torch.add, None, None) is None


def test_leaves_come_in_field_order_without_nothing():
    assert [list(x.shape) for x in tree.leaves(example())] == [[2, 3], [2], [2, 1]]
    assert list(tree.leaves(None)) == []


@pytest.mark.parametrize("other", [None, (torch.ones(1),), Pair(None, None), Pair(torch.ones(1), torch.ones(1))])
def test_map_refuses_other_structures(other):
    with pytest.raises(ShapeError, match="one structure"):
        tree.map(torch.add, Pair(torch.ones(1), (torch.ones(1), torch.ones(1))), other)
    with pytest.raises(ShapeError, match="one structure"):
        tree.map(torch.add, None, torch.ones(1))


def test_where_chooses_by_stream():
    old, new = example(), tree.map(lambda a: a + 1, example())
    mixed = tree.where(torch.tensor([True, False]), new, old)
    assert torch.equal(mixed.a, torch.stack([new.a[0], old.a[1]]))
    assert mixed.b.a.tolist() == [2, 2]


def test_copy_overwrites_in_place_and_refuses_other_shapes():
    into, source = tree.zeros_like(example()), example()
    storage = into.a.data_ptr()
    tree.copy_(into, source)
    assert into.a.data_ptr() == storage and same(into, source)
    with pytest.raises(ShapeError, match=r"\[2, 1\] float32; wanted \[2, 3\] float32"):
        tree.copy_(into, source._replace(a=torch.ones(2, 1)))
    with pytest.raises(ShapeError, match="float64"):
        tree.copy_(into, source._replace(a=source.a.double()))


def test_clone_shares_nothing():
    source = example()
    copy = tree.clone(source)
    copy.a.zero_()
    assert source.a.sum() == 15


def test_finite_by_stream():
    assert tree.finite(example()).tolist() == [True, True]
    broken = example()
    broken.a[1, 2] = float("nan")
    assert tree.finite(broken).tolist() == [True, False]
    broken.b.b[1][0] = float("inf")
    assert tree.finite(broken).tolist() == [False, False]
    assert tree.finite(Pair(torch.tensor([1, 2, 3]), None)).tolist() == [True, True, True]


def test_nbytes():
    assert tree.nbytes(example()) == 6 * 4 + 2 * 8 + 2 * 4
    assert tree.nbytes(None) == 0


def test_names_there_and_back():
    named = tree.to_dict(example())
    assert list(named) == ["a", "b.a", "b.b.1"]
    back = tree.from_dict(tree.zeros_like(example()), dict(reversed(named.items())))
    assert same(back, example()) and back.b.b[0] is None
    assert same(tree.from_dict(torch.zeros(2), tree.to_dict(torch.ones(2))), torch.ones(2))


def test_from_dict_says_what_differs():
    named = tree.to_dict(example())
    with pytest.raises(ShapeError, match=r"missing \['a'\], unknown \['c'\]"):
        tree.from_dict(example(), {"c" if name == "a" else name: x for name, x in named.items()})
    with pytest.raises(ShapeError, match=r"a is \[3, 2\] float32; wanted \[2, 3\] float32"):
        tree.from_dict(example(), {**named, "a": named["a"].view(3, 2)})
    with pytest.raises(ShapeError, match="a is .* float64"):
        tree.from_dict(example(), {**named, "a": named["a"].double()})


def test_to_moves_every_leaf():
    assert {x.device.type for x in tree.leaves(tree.to(example(), "meta"))} == {"meta"}
