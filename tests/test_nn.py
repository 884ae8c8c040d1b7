"""Layers around rules: sequences, resets, segments, initial memories, and Titans' three arrangements."""

import pytest
import torch
from torch import nn

from streammem import tree
from streammem.memory.architecture import Matrix
from streammem.nn.attention import WindowAttention
from streammem.nn.initial import initial
from streammem.nn.memory_layer import MemoryLayer, segments
from streammem.nn.rates import Rates
from streammem.nn.titans import MAC, MAG, MAL
from streammem.rules import RULES
from streammem.rules.mesa import MesaWeights

D, H, K, V, T, B = 8, 2, 4, 3, 13, 3


def layer(name="gated_delta", conv=4, gated=True, rates=None, dtype=torch.float64, **args):
    torch.manual_seed(0)
    rule = RULES[name](**args)
    made = MemoryLayer(D, H, rule, 0.3 * torch.randn(H, K, V), conv=conv, rates=rates, gated=gated)
    return made.to(dtype)


def tokens(steps=T, batch=B, dim=D, seed=1):
    return torch.randn(batch, steps, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a, b, tolerance=1e-10):
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


RATES = {
    "gated_delta": None,
    "kda": lambda: Rates(D, H, channels=K),
    "gdn2": lambda: Rates(D, H, channels=K, erase=K),
    "delta": lambda: Rates(D, H, most=2.0),
    "mesa": None,
    "rwkv7": lambda: Rates(D, H, channels=K),
    "titans": None,
}


@pytest.mark.parametrize("name", RATES)
def test_a_sequence_is_its_steps(name):
    rates = None if RATES[name] is None else RATES[name]()
    net = layer(name, rates=rates, **({"memory": Matrix()} if name == "titans" else {}))
    x, state, outs = tokens(), net.init_state(B), []
    for t in range(T):
        state, y = net(state, x[:, t : t + 1])
        outs.append(y)
    for chunk in (None,) if name == "titans" else (None, 4, 64):
        close(net.sequence(net.init_state(B), x, chunk=chunk), (state, torch.cat(outs, 1)))


def test_frames_of_several_tokens_in_sequence():
    net, x = layer(conv=0), torch.randn(B, 5, 6, D, dtype=torch.float64)
    state, outs = net.init_state(B), []
    for t in range(5):
        state, y = net(state, x[:, t])
        outs.append(y)
    for chunk in (None, 2):
        close(net.sequence(net.init_state(B), x, chunk=chunk), (state, torch.stack(outs, 1)))


@pytest.mark.parametrize("chunk", [None, 4])
def test_streams_start_over_inside_a_sequence(chunk):
    net, x, reset = layer(), tokens(), torch.zeros(B, T, dtype=torch.bool)
    reset[0, 5], reset[2, 9], reset[2, 0] = True, True, True
    state, y = net.sequence(net.init_state(B), x, reset, chunk)
    parts = {0: [(0, 5), (5, T)], 1: [(0, T)], 2: [(0, 9), (9, T)]}
    for b, spans in parts.items():
        for start, end in spans:
            alone, expected = net.sequence(net.init_state(1), x[b : b + 1, start:end], chunk=chunk)
            close(y[b : b + 1, start:end], expected)
        close(tree.map(lambda a, b=b: a[b : b + 1], state), alone)


@pytest.mark.parametrize("conv", [0, 4])
def test_segments_carry_the_state_and_cut_its_gradient(conv):
    net, x = layer(conv=conv), tokens(12).requires_grad_()
    _, whole = net.sequence(net.init_state(B), x)
    outs = [y for _, y in segments(net, net.init_state(B), x, 4, chunk=2)]
    close(torch.cat(outs, 1), whole)
    (grad,) = torch.autograd.grad(outs[1].square().sum(), x, retain_graph=True)
    assert (grad[:, :4] == 0).all() and (grad[:, 4:8] != 0).any() and (grad[:, 8:] == 0).all()
    (grad,) = torch.autograd.grad(whole[:, 4:8].square().sum(), x)
    assert (grad[:, :4] != 0).any()


def test_the_initial_memory_is_learned():
    net = layer()
    _, y = net.sequence(net.init_state(B), tokens())
    y.square().sum().backward()
    assert all(
        p.grad is not None and p.grad.isfinite().all() and (p.grad != 0).any()
        for p in (*net.initial.values(), net.taps)
    )
    learned = MemoryLayer(D, H, RULES["mesa"](), MesaWeights(torch.zeros(H, K, V), torch.ones(H, K, 1)), widths=(K, V))
    learned.sequence(learned.init_state(B), tokens().float(), chunk=4)[1].square().sum().backward()
    assert (learned.initial["ridge"].grad != 0).any()


@pytest.mark.parametrize("name", ["ttt_linear", "lact"])
def test_an_initial_memory_keeps_the_order_of_its_leaves(name):
    """Leaves whose names are not in alphabetical order: w, b of an affine map; w1, w3, w2 of a gated one."""
    weights = initial(RULES[name](), H, K, K, 7)
    net = MemoryLayer(D, H, RULES[name](), weights, (K, K))
    held = net.init_state(B).memory
    dual = held.inner.dual if name == "ttt_linear" else held.dual.weights
    close(dual, tree.map(lambda a: a.expand(B, *a.shape), weights))
    assert net.sequence(net.init_state(B), tokens(5).float())[1].isfinite().all()


def test_gradients_of_a_layer_are_those_of_differences():
    net, x = layer(), tokens(6, 1).requires_grad_()

    def outputs(a):
        return net.sequence(net.init_state(1), a, chunk=3)[1]

    assert torch.autograd.gradcheck(outputs, (x,), atol=1e-6, fast_mode=True)


def test_reading_writes_nothing_and_reads_the_memory():
    net, x = layer(conv=0, gated=False), tokens()
    state, _ = net.sequence(net.init_state(B), x)
    before = tree.clone(state)
    y = net.read(state, x)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(state), tree.leaves(before)))
    query = net.tokens((), x[:, None])[1].query[0]
    close(y, net.out((query @ state.memory.dual).transpose(1, 2).flatten(2)))


def test_rates_stay_in_their_ranges():
    made = Rates(D, H, most=2.0, channels=K, erase=V).double()
    gates = made(100 * tokens()[:, :, None])
    assert gates.lr.shape == (T, B, H, 1, 1) and gates.retention.shape == (T, B, H, K, 1)
    assert gates.erase.shape == (T, B, H, 1, V) and gates.momentum.shape == (T, B, H, 1, 1)
    for rate, most in ((gates.lr, 2), (gates.retention, 1), (gates.momentum, 1), (gates.erase, 1)):
        assert (rate >= 0).all() and (rate <= most).all()
    fresh = Rates(D, H)(torch.zeros(1, 1, 1, D)).retention
    assert (fresh > 0.1).all() and (fresh < 1).all()


def test_initial_decay_is_scaled():
    torch.manual_seed(0)
    usual = Rates(D, H)(torch.zeros(1, 1, 1, D)).retention.log()
    torch.manual_seed(0)
    slow = Rates(D, H, decay=0.02)(torch.zeros(1, 1, 1, D)).retention.log()
    torch.testing.assert_close(slow, 0.02 * usual, rtol=1e-4, atol=1e-6)


def test_window_attention_sees_its_window_and_streams():
    torch.manual_seed(0)
    net = WindowAttention(D, H, 4, persistent=2).double()
    x = tokens(11).requires_grad_()
    _, y = net.sequence(net.init_state(B), x)
    (grad,) = torch.autograd.grad(y[:, 8].sum(), x)
    assert (grad[:, 5:9] != 0).all() and (grad[:, :5] == 0).all() and (grad[:, 9:] == 0).all()
    middle, first = net.sequence(net.init_state(B), x[:, :3])
    end, second = net.sequence(middle, x[:, 3:])
    close(torch.cat([first, second], 1), y)


def arrangement(make, rule="gated_delta", dim=D, window=4, dtype=torch.float64, **args):
    torch.manual_seed(0)
    memory = MemoryLayer(dim, H, RULES[rule](**args), torch.zeros(H, dim // H, dim // H))
    return make(WindowAttention(dim, H, window, persistent=2), memory, 8).to(dtype)


@pytest.mark.parametrize("make", [MAC, MAG, MAL])
def test_arrangements_are_causal_and_stream(make):
    net, x = arrangement(make), tokens(12)
    state, y = net.sequence(net.init_state(B), x)
    changed = x.clone()
    changed[:, 6] += 1
    _, other = net.sequence(net.init_state(B), changed)
    assert torch.equal(other[:, :6], y[:, :6]) or (other[:, :6] - y[:, :6]).abs().max() < 1e-12
    assert (other[:, 6:] - y[:, 6:]).abs().amin((0, 2)).max() > 0 and (other[:, 11] != y[:, 11]).any()
    middle, first = net.sequence(net.init_state(B), x[:, :8])
    end, second = net.sequence(middle, x[:, 8:])
    close((end, torch.cat([first, second], 1)), (state, y))
    assert sum(1 for _ in segments(net, net.init_state(B), x, 4)) == 3


@pytest.mark.parametrize("make", [MAC, MAG, MAL])
def test_memory_recalls_what_the_window_has_lost(make):
    """A cue at the start, asked for three windows later: with the memory it is recalled, without it is chance."""
    assert recall(make, remembers=True) > 0.9
    assert recall(make, remembers=False, rounds=20) < 0.55


def recall(make, remembers, rounds=60, window=4, steps=12, classes=4):
    """Accuracy after a short training; inputs are the cue, then noise, then a question."""
    net = arrangement(make, "hebbian", D, window, torch.float32)
    net.chunk = steps
    net.memory.rates.most = 1.0 if remembers else 0.0
    cue, ask, head = nn.Embedding(classes, D), nn.Parameter(torch.randn(D)), nn.Linear(D, classes)
    optimiser = torch.optim.Adam([*net.parameters(), *cue.parameters(), ask, *head.parameters()], 2e-2)
    for _ in range(rounds):
        label = torch.randint(classes, (128,))
        noise = 0.1 * torch.randn(128, steps - 1, D)
        x = torch.cat([cue(label)[:, None] + ask, noise[:, 1:], (ask + noise[:, 0])[:, None]], 1)
        _, y = net.sequence(net.init_state(128), x)
        scores = head(y[:, -1])
        loss = nn.functional.cross_entropy(scores, label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (scores.argmax(-1) == label).float().mean().item()
