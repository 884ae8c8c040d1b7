"""Stream: what a person may do with a live sequence."""

from typing import NamedTuple

import pytest
import torch
from nolook import never_looks
from torch import Tensor

from streammem import tree
from streammem.errors import ConfigError, ShapeError
from streammem.nn.memory_layer import MemoryLayer
from streammem.rules import RULES
from streammem.scan import scan
from streammem.stream import Stream


class XFrame(NamedTuple):
    x: Tensor  # [B, N, D]
    valid: Tensor
    reset: Tensor


class Model(MemoryLayer):
    def forward(self, state, frame):
        return super().forward(state, frame.x)


YES, NO = torch.tensor([True, True]), torch.tensor([False, False])


def model(name="gated_delta", weights=None):
    torch.manual_seed(0)
    return Model(8, 2, RULES[name](), torch.zeros(2, 4, 4) if weights is None else weights)


@pytest.fixture
def x():
    return torch.randn(6, 2, 5, 8, generator=torch.Generator().manual_seed(1))


def same(a, b):
    return all(torch.equal(u, v) for u, v in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_stream_is_scan(x):
    net, frames = model(), [XFrame(a, YES, NO) for a in x]
    stream = Stream(net, 2)
    outs = torch.stack([stream.step(f) for f in frames])
    _, expected = scan(net, net.init_state(2), frames)
    assert torch.equal(outs, expected) and not outs.requires_grad


def test_peek_is_step_without_writing(x):
    stream = Stream(model(), 2)
    stream.step(XFrame(x[0], YES, NO))
    before = stream.snapshot()
    seen = stream.peek(XFrame(x[1], YES, NO))
    assert same(before, stream.snapshot())
    assert torch.equal(seen, stream.step(XFrame(x[1], YES, NO)))


def test_restore_goes_back(x):
    stream = Stream(model(), 2)
    stream.step(XFrame(x[0], YES, NO))
    kept = stream.snapshot()
    first = stream.step(XFrame(x[1], YES, NO))
    stream.step(XFrame(x[2], YES, NO))
    stream.restore(kept)
    assert torch.equal(stream.step(XFrame(x[1], YES, NO)), first)


def test_restore_before_any_step_leaves_the_initial_state_alone(x):
    stream = Stream(model(), 2)
    first = stream.step(XFrame(x[0], YES, NO))
    other = Stream(model(), 2)
    other.restore(stream.snapshot())
    assert torch.equal(other.step(XFrame(x[0], YES, YES)), first)


def test_restore_refuses_another_structure_and_keeps_the_state(x):
    stream = Stream(model(), 2)
    stream.step(XFrame(x[0], YES, NO))
    before = stream.snapshot()
    with pytest.raises(ShapeError, match="wanted"):
        stream.restore(Stream(model(), 3).snapshot())
    with pytest.raises(ShapeError, match="names differ"):
        stream.restore(Stream(model("kalman"), 2).snapshot())
    assert same(before, stream.snapshot())


def test_reset_starts_streams_over(x):
    stream = Stream(model(), 2)
    first = stream.step(XFrame(x[0], YES, NO))
    stream.step(XFrame(x[1], YES, NO))
    stream.reset(torch.tensor([True, False]))
    assert stream.health()["frames"] == [0, 2]
    again = stream.step(XFrame(x[0], YES, NO))
    assert torch.allclose(again[0], first[0]) and not torch.allclose(again[1], first[1])
    stream.reset()
    assert torch.equal(stream.step(XFrame(x[0], YES, NO)), first)
    for mask in (torch.tensor([True]), torch.tensor([1, 0])):
        with pytest.raises(ShapeError, match="B = 2"):
            stream.reset(mask)


def test_reset_by_frame_is_reset_by_hand(x):
    one, two = Stream(model(), 2), Stream(model(), 2)
    for stream in (one, two):
        stream.step(XFrame(x[0], YES, NO))
    two.reset(torch.tensor([True, False]))
    by_flag = one.step(XFrame(x[1], YES, torch.tensor([True, False])))
    assert torch.equal(by_flag, two.step(XFrame(x[1], YES, NO))) and same(one.snapshot(), two.snapshot())


def test_health_counts_what_happened(x):
    stream = Stream(model(), 2)
    stream.step(XFrame(x[0], YES, NO))
    before = stream.snapshot()
    stream.step(XFrame(x[1] * float("nan"), NO, NO))
    assert same(before.inner, stream.snapshot().inner)
    bad = x[2].clone()
    bad[1] = float("nan")
    stream.step(XFrame(bad, YES, NO))
    after = stream.snapshot()
    assert torch.equal(after.inner.memory.dual[1], before.inner.memory.dual[1])
    assert not torch.equal(after.inner.memory.dual[0], before.inner.memory.dual[0])
    assert stream.health() == {"frames": [2, 1], "skipped": [1, 1], "nonfinite": [0, 1]}


def test_a_long_stream_stays_bounded():
    stream = Stream(model("rls", 0.1 * torch.ones(2, 4, 4)), 1)
    size, yes, no = tree.nbytes(stream.snapshot()), YES[:1], NO[:1]
    g = torch.Generator().manual_seed(0)
    for _ in range(500):
        out = stream.step(XFrame(torch.randn(1, 5, 8, generator=g), yes, no))
    assert out.isfinite().all() and tree.nbytes(stream.snapshot()) == size
    assert stream.health() == {"frames": [500], "skipped": [0], "nonfinite": [0]}


def test_gradients_by_the_parameters_flow_through_a_scan(x):
    net = model()
    parameters = dict(net.named_parameters())

    def loss(p):
        def step(state, frame):
            return torch.func.functional_call(net, p, (state, frame))

        _, y = scan(step, net.init_state(2), [XFrame(a, YES, NO) for a in x])
        return y.square().mean()

    grads = torch.func.grad(loss)(parameters)
    assert all(g.isfinite().all() for g in grads.values())
    assert all(grads[name].abs().sum() > 0 for name in ("qkv.weight", "rates.rate.weight", "out.weight"))


def test_the_layer_never_looks(x):
    net = model("kalman")

    def step(state, x, *parameters):
        named = dict(zip((name for name, _ in net.named_parameters()), parameters))
        return torch.func.functional_call(net, named, (state, XFrame(x, None, None)))

    with torch.no_grad():
        never_looks(step, net.init_state(2), x[0], *(p.detach() for p in net.parameters()))


def test_the_layer_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="conv is -1"):
        MemoryLayer(8, 2, RULES["delta"](), torch.zeros(2, 4, 4), conv=-1)
    with pytest.raises(ShapeError, match="H = 2"):
        MemoryLayer(8, 2, RULES["delta"](), torch.zeros(3, 4, 4))


def test_the_layer_learns_its_initial_memory():
    net = model()
    assert [tuple(p.shape) for name, p in net.named_parameters() if name.startswith("initial")] == [(2, 4, 4)]


def test_scan_of_nothing_is_the_state():
    assert scan(lambda s, f: (s, f), torch.ones(1), [])[1] is None


@pytest.mark.gpu
def test_captured_stream_is_eager_stream(x):
    net, frames = model().cuda(), [tree.to(XFrame(a, YES, NO), "cuda") for a in x]
    eager, captured = Stream(net, 2), Stream(net, 2, frames[0])
    for frame in frames:
        assert torch.equal(eager.step(frame), captured.step(frame))
    kept = captured.snapshot()
    seen = captured.peek(frames[0])
    assert same(kept, captured.snapshot()) and torch.allclose(seen, captured.step(frames[0]))
    captured.restore(kept)
    captured.reset(torch.tensor([True, False]))
    assert captured.health()["frames"] == [0, 6]
