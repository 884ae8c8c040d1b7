"""Sequences in chunks against steps: exact, whatever the length of the chunk, and sound at the ends of every range."""

import pytest
import torch
from cases import CASES, start
from material import B, K, T, V

from streammem import tree
from streammem.chunk import layout
from streammem.errors import ConfigError, NoKernel
from streammem.memory.gates import Constant, Gated
from streammem.memory.linear import Linear
from streammem.memory.wrappers import TokenByToken, Window
from streammem.rules import RULES
from streammem.scan import scan
from streammem.types import Gates, Tokens

EXACT = {
    *("hebbian", "gated_hebbian", "gla", "delta", "gated_delta", "kda", "gdn2", "comba", "rwkv7", "longhorn", "nlms"),
    *("preconditioned_delta", "kalman_diag", "kalman_iso", "kdn", "kdn_iso", "mesa", "mesa_adaptive"),
    *("delta_product", "gated_delta_product", "token_by_token"),
}
NONE = {
    *("frozen", "last_frame", "longhorn_diag", "longhorn_diag_tokens", "rls", "kalman", "kalman_huber"),
    *("kalman_steady", "kalman_surprise", "kalman_diag_huber", "log_linear", "repeat", "window"),
}
ROWS = [case for case in CASES if case.name in EXACT]
every = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)


def close(a, b, tolerance=1e-10):
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


def stacked(frames) -> Tokens:
    return tree.map(lambda *xs: torch.stack(xs), *frames)


def sequence(frames=37, n=1, k=7, v=3, lr=1, retention=1, erase=None, dtype=torch.float64, seed=0) -> Tokens:
    """A long stream of unit keys, of odd sizes; lr, retention, erase: widths of the gates."""
    g = torch.Generator().manual_seed(seed)

    def normal(width):
        return torch.nn.functional.normalize(torch.randn(frames, 2, n, width, generator=g, dtype=torch.float64), dim=-1)

    def uniform(*shape):
        return torch.rand(frames, 2, *shape, generator=g, dtype=torch.float64)

    erased = () if erase is None else uniform(n, erase)
    gates = Gates(uniform(n, lr), 1 - 0.3 * uniform(retention, 1), uniform(1, 1), erased)
    return tree.map(lambda a: a.to(dtype), Tokens(normal(k), normal(k), normal(v), gates))


def empty(x: Tokens):
    return torch.zeros(*x.key.shape[1:-2], x.key.shape[-1], x.value.shape[-1], dtype=x.key.dtype)


def test_every_row_is_judged():
    """A rule of the affine family that gains or loses its chunk form must be moved between the lists."""
    for case in CASES:
        if case.name in NONE:
            frames, state = start(case)
            with pytest.raises(NoKernel, match="wanted"):
                scan(case.rule, state, frames, chunk=4)
    assert len(ROWS) == len(EXACT)


@every
@pytest.mark.parametrize("chunk", [1, 4, T, 64])
def test_chunks_are_steps(case, chunk):
    frames, state = start(case)
    close(scan(case.rule, state, frames, chunk), scan(case.rule, state, frames))


GATES_OF = {"kda": (1, 7), "gla": (1, 7), "gdn2": (3, 7, 7), "rwkv7": (7, 7, 7), "kdn": (1, 7), "kdn_iso": (1, 7)}


@every
@pytest.mark.parametrize("chunk", [7, 16])
def test_chunks_are_steps_on_long_streams_of_odd_sizes(case, chunk):
    widths = dict(zip(("lr", "retention", "erase"), GATES_OF.get(case.name, ())))
    for n in (1, 3):
        x = sequence(n=n, **widths)
        state = case.rule.init(empty(x))
        close(scan(case.rule, state, x, chunk), scan(case.rule, state, x))


@pytest.mark.parametrize("name", ["hebbian", "delta", "gated_delta", "kda", "gdn2", "comba", "longhorn", "nlms"])
def test_tokens_one_by_one_in_chunks(name):
    widths = dict(zip(("lr", "retention", "erase"), GATES_OF.get(name, ())))
    x = sequence(n=3, **widths)
    # A correction is by the key of the same step, and TokenByToken reads after the whole frame.
    rule = TokenByToken(RULES["comba"](correction=0.0) if name == "comba" else RULES[name]())
    state = rule.init(empty(x))
    close(scan(rule, state, x, 5), scan(rule, state, x))


def test_one_query_for_several_steps():
    x = sequence(n=3, retention=7)
    x = x._replace(query=x.query[..., :1, :])
    rule = RULES["gated_delta_product"]()
    state = rule.init(empty(x))
    close(scan(rule, state, x, 8), scan(rule, state, x))


@every
def test_a_stream_of_chunks_can_be_cut_anywhere(case):
    frames, state = start(case)
    whole = scan(case.rule, state, frames, 4)
    middle, first = scan(case.rule, state, frames[:5], 4)
    end, second = scan(case.rule, middle, frames[5:], 4)
    close((end, torch.cat([first, second])), whole)


@every
def test_gradients_of_chunks_are_those_of_differences(case):
    frames, state = start(case, batch=1)
    x = stacked(frames[:5])
    leaves = [a.detach().requires_grad_(a.is_floating_point()) for a in (*tree.leaves(state), *tree.leaves(x))]

    def readouts(*xs):
        parts = iter(xs)
        first, tokens = (tree.map(lambda _: next(parts), like) for like in (state, x))
        return scan(case.rule, first, tokens, 3)[1]

    assert torch.autograd.gradcheck(readouts, leaves, atol=1e-5, rtol=1e-3, fast_mode=True)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shape_and_dtype_stay(case, dtype):
    frames, state = start(case, dtype=dtype)
    end, out = scan(case.rule, state, frames, 4)
    for a, b in zip(tree.leaves(state), tree.leaves(end), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert out.dtype == dtype and out.shape == (T, *frames[0].value.shape) and out.isfinite().all()


ENDS = {
    "zero keys": lambda x: x._replace(key=0 * x.key),
    "duplicate keys": lambda x: x._replace(key=x.key[:1].expand_as(x.key)),
    "nothing kept": lambda x: x._replace(gates=x.gates._replace(retention=0 * x.gates.retention)),
    "all kept": lambda x: x._replace(gates=x.gates._replace(retention=0 * x.gates.retention + 1)),
    "no rate": lambda x: x._replace(gates=x.gates._replace(lr=0 * x.gates.lr)),
    "rate one": lambda x: x._replace(gates=x.gates._replace(lr=0 * x.gates.lr + 1)),
    "kept now and then": lambda x: x._replace(
        gates=x.gates._replace(retention=x.gates.retention.round(decimals=1) // 1)
    ),
}


@every
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_ends_of_the_ranges(case, end):
    """In float32: finite readouts and gradients, the same by steps and by chunks."""
    widths = dict(zip(("lr", "retention", "erase"), GATES_OF.get(case.name, ())))
    x = tree.map(lambda a: a.detach().requires_grad_(), end(sequence(frames=10, dtype=torch.float32, **widths)))
    state = case.rule.init(empty(x))
    found = [scan(case.rule, state, x, chunk) for chunk in (None, 8)]
    for last, out in found:
        grads = torch.autograd.grad(out.square().sum(), list(tree.leaves(x)), allow_unused=True)
        assert out.isfinite().all() and all(a.isfinite().all() for a in tree.leaves(last))
        assert all(g is None or g.isfinite().all() for g in grads)
    close(*found, 2e-4)


@every
def test_tokens_of_no_rate_are_no_tokens(case):
    """Padding: no rate and full retention; the memory and every other readout stay as they were."""
    widths = dict(zip(("lr", "retention", "erase"), GATES_OF.get(case.name, ())))
    x = sequence(frames=12, **widths)
    keep = torch.tensor([t % 3 != 1 for t in range(12)])

    def hide(a, value):
        return torch.where(keep.view(-1, 1, 1, 1), a, value)

    gates = x.gates._replace(lr=hide(x.gates.lr, 0), retention=hide(x.gates.retention, 1))
    gates = gates._replace(erase=tree.map(lambda a: hide(a, 0), gates.erase))
    rule = case.rule
    if case.ages:
        rule = {"kdn": RULES["kdn"]("diag", process_variance=0.0), "rwkv7": RULES["rwkv7"]()}.get(case.name)
    if rule is None:
        return
    state = rule.init(empty(x))
    for chunk in (None, 5):
        end, out = scan(rule, state, x._replace(gates=gates), chunk)
        fewer, expected = scan(rule, state, tree.map(lambda a: a[keep], x), chunk)
        close((end, out[keep]), (fewer, expected))


def test_strong_decays_by_channel_do_not_overflow():
    """Logarithms of -20 a step, in float32, in chunks of 64 steps."""
    for name, retention in (("kda", 7), ("gla", 7), ("gdn2", 7), ("gated_delta", 1), ("rwkv7", 7)):
        widths = dict(zip(("lr", "retention", "erase"), GATES_OF.get(name, (1, retention))))
        x = sequence(frames=192, dtype=torch.float32, **widths)
        strong = torch.full_like(x.gates.retention, -20.0).exp()
        strong[..., ::2, :] = x.gates.retention[..., ::2, :]
        strong = strong if retention > 1 else torch.full_like(strong, -20.0).exp()
        x = x._replace(gates=x.gates._replace(retention=strong))
        rule = RULES["gated_hebbian" if name == "gla" else name]()
        state = rule.init(empty(x) + 1)
        close(scan(rule, state, x, 64), scan(rule, state, x), 1e-4)


def test_decay_by_channel_never_grows():
    """Every factor that is formed is a share: with values of 1 no sum exceeds the number of channels."""
    decay = torch.full((1, 64, 1, 7), -50.0, dtype=torch.float64).cumsum(-3)
    ones = torch.ones(1, 64, 1, 7)
    mask = layout.seen(64, 1, 1, "cpu")
    product = layout.pairs(ones, decay, ones, decay, mask)
    assert product.max() <= 7 and torch.equal(product.diagonal(dim1=-2, dim2=-1), torch.full((1, 64), 7.0))


def test_streams_of_chunks_are_independent():
    x = sequence(retention=7)
    rule = RULES["kda"]()
    together = scan(rule, rule.init(empty(x)), x, 16)[1]
    alone = tree.map(lambda a: a[:, 1:], x)
    close(together[:, 1:], scan(rule, rule.init(empty(alone)), alone, 16)[1], 1e-12)


def test_chunk_wants_a_rule_and_a_length():
    x = sequence(frames=3)
    rule = RULES["delta"]()
    with pytest.raises(ConfigError, match="at least 1"):
        scan(rule, rule.init(empty(x)), x, 0)
    with pytest.raises(ConfigError, match="wanted a Rule"):
        scan(rule.step, rule.init(empty(x)), x, 4)


def test_rules_without_a_form_say_so():
    x = sequence(frames=3, lr=3)
    for rule in (RULES["longhorn"](), Gated(RULES["delta"](), Constant()), Window(RULES["delta"](), 2, 1)):
        with pytest.raises(NoKernel, match="chunk form"):
            scan(rule, rule.init(empty(x)), x, 2)


def test_tokens_and_a_list_of_frames_scan_alike():
    x = sequence(frames=5)
    rule = RULES["gated_delta"]()
    frames = [tree.map(lambda a, t=t: a[t], x) for t in range(5)]
    state = rule.init(empty(x))
    close(scan(rule, state, x), scan(rule.step, state, frames), 0)
    close(scan(rule, state, frames, 2), scan(rule, state, x, 2), 0)


def test_linear_rules_are_abstract_until_they_say_their_terms():
    with pytest.raises(TypeError, match="abstract"):
        Linear()
    assert B and K and V
