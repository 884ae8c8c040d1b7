"""Runners: guarded steps, eager and captured."""

from typing import NamedTuple

import pytest
import torch
from cases import CASES, start
from material import B
from nolook import never_looks
from torch import Tensor

from streammem import tree
from streammem.engine import Captured, Eager, Guarded, guarded, unused
from streammem.errors import ShapeError


class Flagged(NamedTuple):
    x: Tensor  # [B, 3]
    valid: Tensor
    reset: Tensor


YES, NO = torch.tensor([True, True]), torch.tensor([False, False])


def total(state, frame):
    new = state + frame.x
    return new, 2 * new


def begin():
    return Guarded(torch.zeros(2, 3), unused(2, "cpu"))


def run(*frames):
    runner = Eager(guarded(total, begin()), begin())
    outs = [runner(frame) for frame in frames]
    return runner.state, outs


def counts(state):
    """Frames, skipped, nonfinite."""
    return [x.tolist() for x in state.health]


def test_a_frame_is_written_and_counted():
    state, outs = run(Flagged(torch.ones(2, 3), YES, NO))
    assert torch.equal(outs[0], 2 * torch.ones(2, 3)) and torch.equal(state.inner, torch.ones(2, 3))
    assert counts(state) == [[1, 1], [0, 0], [0, 0]]


def test_an_invalid_frame_is_skipped_by_stream():
    one = Flagged(torch.ones(2, 3), torch.tensor([True, False]), NO)
    state, _ = run(one, one._replace(x=torch.full((2, 3), float("nan")), valid=NO))
    assert state.inner[:, 0].tolist() == [1, 0]
    assert counts(state) == [[1, 0], [1, 2], [0, 0]]


def test_a_state_that_is_not_finite_is_refused_by_stream():
    bad = torch.ones(2, 3)
    bad[1, 2] = float("inf")
    state, _ = run(Flagged(torch.ones(2, 3), YES, NO), Flagged(bad, YES, NO))
    assert state.inner[:, 0].tolist() == [2, 1]
    assert counts(state) == [[2, 1], [0, 0], [0, 1]]


def test_a_stream_starts_over_before_its_frame():
    one = Flagged(torch.ones(2, 3), YES, NO)
    state, outs = run(one, one, one._replace(reset=torch.tensor([False, True])))
    assert state.inner[:, 0].tolist() == [3, 1]
    assert outs[-1][:, 0].tolist() == [6, 2]
    assert state.health.frames.tolist() == [3, 1]


def test_the_runner_owns_its_state():
    first = begin()
    runner = Eager(guarded(total, first), first)
    tree.copy_(runner.state, tree.map(lambda a: a + 1, runner.state))
    assert first.inner.sum() == 0


def test_guarded_never_looks():
    frame = Flagged(torch.ones(2, 3), YES, NO)
    never_looks(lambda state, f: guarded(total, state)(state, f), begin(), frame)


def test_guarded_is_one_graph():
    torch._dynamo.reset()
    compiled = []

    def backend(graph, example):
        compiled.append(graph)
        return graph.forward

    step = torch.compile(guarded(total, begin()), backend=backend, fullgraph=True)
    state = begin()
    for _ in range(3):
        state, _ = step(state, Flagged(torch.ones(2, 3), YES, NO))
    assert len(compiled) == 1 and state.health.frames.tolist() == [3, 3]


class TokenFrame(NamedTuple):
    tokens: object
    valid: Tensor
    reset: Tensor


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_captured_is_eager_bit_for_bit(case):
    frames, state = start(case, dtype=torch.float32)
    first = tree.to(Guarded(state, unused(B, "cpu")), "cuda")

    def step(s, f):
        return case.rule.step(s, f.tokens)

    def frame(t):
        valid, reset = torch.tensor([True, t % 3 != 0, True]), torch.tensor([t == 50, False, False])
        return tree.to(TokenFrame(frames[t % len(frames)], valid, reset), "cuda")

    with torch.no_grad():
        eager = Eager(guarded(step, first), first)
        captured = Captured(guarded(step, first), first, frame(0))
        for t in range(100):
            assert torch.equal(eager(frame(t)), captured(frame(t)))
    for a, b in zip(tree.leaves(eager.state), tree.leaves(captured.state), strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
def test_captured_refuses_other_shapes_and_keeps_its_readouts_apart():
    first = tree.to(begin(), "cuda")
    frame = tree.to(Flagged(torch.ones(2, 3), YES, NO), "cuda")
    captured = Captured(guarded(total, first), first, frame)
    one = captured(frame)
    two = captured(frame)
    assert one[0, 0] == 2 and two[0, 0] == 4
    with pytest.raises(ShapeError, match="wanted"):
        captured(frame._replace(x=frame.x[:1]))
