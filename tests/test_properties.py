"""The fifteen properties, on every row."""

import dataclasses
import pickle
from typing import NamedTuple

import pytest
import torch
from cases import CASES, start
from material import TOLERANCE, B
from nolook import NoHostLook, bare, fakes, never_looks

from streammem import tree
from streammem.engine import Guarded, guarded, unused
from streammem.memory.chunked import FrozenGradient
from streammem.memory.lifted import Lifted
from streammem.memory.rule import Composed
from streammem.memory.wrappers import Repeat, TokenByToken, Window
from streammem.rules import RULES
from streammem.scan import scan
from streammem.types import Tokens

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
pytestmark = pytest.mark.usefixtures("poisoned")


def same(a, b) -> bool:
    """Bit for bit."""
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def close(a, b, tolerance=1e-12):
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def one(t, b):
    return tree.map(lambda a: a[b : b + 1], t)


def with_gates(frame, **gates):
    return frame._replace(gates=frame.gates._replace(**gates))


def still(frame):
    """The frame at zero rate and full retention."""
    erase = tree.zeros_like(frame.gates.erase)
    return with_gates(frame, lr=0 * frame.gates.lr, retention=torch.ones_like(frame.gates.retention), erase=erase)


@every
def test_01_arguments_stay_as_they_were(case):
    frames, state = start(case)
    before = tree.clone(state), [tree.clone(f) for f in frames]
    scan(case.rule.step, state, frames)
    assert same(state, before[0])
    assert all(same(f, g) for f, g in zip(frames, before[1]))


@every
def test_02_reading_changes_nothing(case):
    frames, state = start(case)
    state = case.rule.write(state, *frames[0][1:])
    before = tree.clone(state)
    first = case.rule.read(state, frames[0].query)
    again = case.rule.read(state, frames[0].query)
    assert same(state, before) and torch.equal(first, again)


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_03_shape_dtype_and_device_stay(case, dtype):
    frames, state = start(case, dtype=dtype)
    exact_frames, exact_state = start(case)
    _, expected = scan(case.rule.step, exact_state, exact_frames)
    end, out = scan(case.rule.step, state, frames)
    for a, b in zip(tree.leaves(state), tree.leaves(end), strict=True):
        assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    assert (out.shape[1:], out.dtype, out.device) == (frames[0].value.shape, dtype, frames[0].value.device)
    if dtype != torch.bfloat16:  # eight bits of mantissa follow the shape of a curve, not its ninth value
        tolerance = TOLERANCE[dtype] * (case.rounding if dtype == torch.float32 else 1)
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    assert out.isfinite().all()


@every
def test_04_state_has_constant_size(case):
    frames, state = start(case)
    end, _ = scan(case.rule.step, state, 3 * frames)
    assert tree.nbytes(end) == tree.nbytes(state)


@every
def test_05_scan_can_be_cut_anywhere(case):
    frames, state = start(case)
    whole_state, whole = scan(case.rule.step, state, frames)
    middle, first = scan(case.rule.step, state, frames[:4])
    end, second = scan(case.rule.step, middle, frames[4:])
    assert torch.equal(torch.cat([first, second]), whole) and same(end, whole_state)


@every
def test_06_streams_are_independent(case):
    frames, state = start(case)
    _, together = scan(case.rule.step, state, frames)
    _, alone = scan(case.rule.step, one(state, 1), [one(f, 1) for f in frames])
    torch.testing.assert_close(together[:, 1:2], alone, rtol=1e-12, atol=1e-12)


@every
def test_07_masked_frame_leaves_the_state_bit_equal(case):
    frames, state = start(case)
    state, _ = case.rule.step(state, frames[0])
    masked = tree.where(torch.tensor([True, False, True]), case.rule.step(state, frames[1])[0], state)
    assert same(one(masked, 1), one(state, 1))
    assert same(one(masked, 0), one(case.rule.step(state, frames[1])[0], 0))


@every
def test_08_snapshot_and_restore_continue_equal(case):
    frames, state = start(case)
    middle, _ = scan(case.rule.step, state, frames[:4])
    kept = tree.from_dict(middle, {name: x.clone() for name, x in tree.to_dict(middle).items()})
    end, out = scan(case.rule.step, middle, frames[4:])
    end_again, out_again = scan(case.rule.step, kept, frames[4:])
    assert same(end, end_again) and torch.equal(out, out_again)


@every
def test_09_zero_rate_and_full_retention_change_nothing(case):
    frames, state = start(case)
    after = case.rule.write(state, *still(frames[0])[1:])
    close(case.rule.read(after, frames[0].query), case.rule.read(state, frames[0].query))
    if not case.ages:
        close(after, state)


@every
def test_10_readout_shares_no_storage_with_the_state(case):
    frames, state = start(case)
    after, out = case.rule.step(state, frames[0])

    def storages(t):
        return {x.untyped_storage().data_ptr() for x in tree.leaves(t)}

    assert not storages(out) & (storages(state) | storages(after) | storages(frames[0]))


@every
def test_11_host_never_looks(case):
    frames, state = start(case)
    never_looks(case.rule.step, state, frames[0])


@every
def test_11_host_never_looks_when_guarded(case):
    frames, state = start(case)
    flags = torch.ones(B, dtype=torch.bool), torch.zeros(B, dtype=torch.bool)
    initial = Guarded(state, unused(B, "cpu"))

    def step(state, tokens, valid, reset):
        run = guarded(lambda s, f: case.rule.step(s, f.tokens), state)
        return run(state, Flagged(tokens, valid, reset))

    never_looks(step, initial, frames[0], *flags)


OFFENDERS = {
    "item": lambda x: x.sum().item(),
    "if": lambda x: bool((x > 0).all()),
    "list": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "home": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "mask write": lambda x: x.clone().__setitem__(x > 0, x[0]),
    "checked solve": lambda x: torch.linalg.solve(x, x),
    "checked inverse": lambda x: torch.linalg.inv(x),
    "eigenvalues": lambda x: torch.linalg.eigh(x),
    "unique": lambda x: x.unique(),
    "constant on the host": lambda x: x + torch.eye(3),
}


@pytest.mark.parametrize("offence", OFFENDERS.values(), ids=OFFENDERS)
def test_11_the_proofs_catch_offenders(offence):
    with pytest.raises((AssertionError, RuntimeError)):
        never_looks(offence, torch.eye(3))


@pytest.mark.parametrize("name", ["item", "if", "nonzero", "mask", "mask write", "checked solve", "unique"])
def test_11_the_dispatch_mode_catches_offenders(name):
    with pytest.raises(AssertionError, match="makes the host wait"), NoHostLook():
        OFFENDERS[name](torch.eye(3))


@pytest.mark.parametrize("name", ["item", "if", "list", "numpy", "nonzero", "mask", "unique"])
def test_11_the_fakes_catch_offenders(name):
    with pytest.raises(RuntimeError), fakes(torch.eye(3)) as (fake,):
        OFFENDERS[name](fake)


@pytest.mark.parametrize("name", ["item", "home", "constant on the host"])
def test_11_the_bare_device_catches_offenders(name):
    with pytest.raises((RuntimeError, NotImplementedError)):
        OFFENDERS[name](*bare(torch.eye(3)))


def test_11_the_proofs_let_an_honest_step_pass():
    never_looks(lambda x: torch.linalg.solve_ex(x, torch.where(x > 0, x, 0 * x))[0], torch.eye(3))


@every
def test_12_one_graph(case):
    frames, state = start(case)
    torch._dynamo.reset()  # all rules share the code of Rule.step, and dynamo keeps 8 versions of one code object
    compiled = []

    def backend(graph, example):
        compiled.append(graph)
        return graph.forward

    step = torch.compile(case.rule.step, backend=backend, fullgraph=True)
    expected, _ = scan(case.rule.step, state, frames[:3])
    for frame in frames[:3]:
        state, _ = step(state, frame)
    assert len(compiled) <= 1  # none at all where a step is a constant
    close(state, expected)


@every
def test_13_gradients_are_those_of_differences(case):
    frames, state = start(case, batch=1)
    parts = (*tree.leaves(state), *tree.leaves(frames[0]), *tree.leaves(frames[1]))
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in parts]

    def readouts(*xs):
        parts = iter(xs)
        first, *rest = (tree.map(lambda _: next(parts), like) for like in (state, frames[0], frames[1]))
        return scan(case.rule.step, first, rest)[1]

    assert torch.autograd.gradcheck(readouts, leaves, atol=1e-5, rtol=1e-3, fast_mode=True)


@every
@pytest.mark.parametrize("tokens", [slice(0, 1), slice(None)], ids=["one token", "all tokens"])
def test_13_gradients_by_the_gates_are_finite_at_zero_rate(case, tokens):
    frames, state = start(case)
    lr = frames[0].gates.lr.clone()
    lr[:, tokens] = 0
    gates = frames[0].gates._replace(lr=lr)
    leaves = [x.detach().requires_grad_() for x in tree.leaves(gates)]
    out = case.rule.step(state, frames[0]._replace(gates=type(gates)(*leaves)))[1]
    if out.requires_grad:
        out.square().sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in leaves)


@every
def test_14_small_write_lowers_the_bias_on_what_was_written(case):
    frames, state = start(case)
    gates = frames[0].gates
    small = tree.map(lambda a: 1e-2 * a, gates.erase)
    frame = with_gates(still(frames[0]), lr=1e-2 * gates.lr, erase=small)
    before, after = (loss(case.rule, s, frame) for s in (state, case.rule.write(state, *frame[1:])))
    assert after < before if case.learns else after == before


@every
def test_15_rules_are_values(case):
    rule = case.rule
    same_rule = pickle.loads(pickle.dumps(rule))
    assert same_rule == rule and hash(same_rule) == hash(rule)
    assert repr(rule).startswith(type(rule).__name__)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.threshold = 1


@every
def test_15_vmap_is_batch(case):
    frames, state = start(case)
    state, _ = case.rule.step(state, frames[0])
    mapped = torch.func.vmap(case.rule.step)(state, frames[1])
    close(mapped, case.rule.step(state, frames[1]))


def test_catalogue_makes_equal_rules():
    for make in RULES.values():
        assert make() == make() and hash(make()) == hash(make())


class Flagged(NamedTuple):
    """A frame of tokens with the flags that `guarded` wants."""

    tokens: Tokens
    valid: torch.Tensor
    reset: torch.Tensor


def loss(rule, state, frame) -> float:
    """The bias of the rule on what was written."""
    while isinstance(rule, Repeat | TokenByToken | Window | FrozenGradient | Lifted):
        frame = frame._replace(key=rule.features(frame.key)) if isinstance(rule, Lifted) else frame
        state = state.inner if isinstance(rule, Window | FrozenGradient) else state
        rule = rule.rule
    r = rule.read(state, frame.key) - frame.value
    prediction, squares = r + frame.value, r.square().sum(-1, keepdim=True)
    by_token = {
        "Dot": -(prediction * frame.value),
        "L2": 0.5 * r * r,
        "Lp": r.abs() ** 3,
        "HuberNorm": (squares - (squares.sqrt() - 0.5).clamp_min(0).square()) / 2,
        "Huber": torch.where(r.abs() < 0.5, 0.5 * r * r, 0.5 * (r.abs() - 0.25)),
    }[type(rule.bias).__name__ if isinstance(rule, Composed) else "L2"]
    return float((frame.gates.lr.mean(-1, keepdim=True) * by_token).sum())
