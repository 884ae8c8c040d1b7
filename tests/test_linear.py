"""The linear family against what defines it: special cases, solves, theory; gates and thoughts by their laws."""

import math

import pytest
import torch
from material import B, K, V, data, matrix
from test_definition import ONE, ZERO, close, gates, normal, unit, written

from streammem import tree
from streammem.chunk.solve import Effort, chebyshev, conjugate_gradient, counted, solved
from streammem.errors import ConfigError
from streammem.memory.gates import Confidence, Constant, Evidence, Gated, Surprise, alignment, blend
from streammem.memory.think import Mind, think
from streammem.memory.wrappers import TokenByToken, Window
from streammem.rules import RULES
from streammem.rules.kalman import Kalman
from streammem.rules.log_linear import LevelWeights
from streammem.rules.mesa import MesaWeights
from streammem.scan import scan
from streammem.types import Gates, Tokens

ZEROS = torch.zeros(K, V, dtype=torch.float64)


def stream(t=24, k=K, v=V, keys=unit, lr=None, retention=None, erase=()) -> Tokens:
    """t frames of one token for one stream: [T, 1, ...]; gates [T, 1, width] or numbers."""
    ones = torch.ones(t, 1, 1, dtype=torch.float64)
    rates = torch.rand(t, 1, 1, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    lr = rates if lr is None else lr * ones
    retention = 1 - 0.2 * rates if retention is None else retention * ones
    return Tokens(
        normal(t, 1, k), keys(normal(t, 1, k, seed=1)), normal(t, 1, v, seed=2), Gates(lr, retention, ones, erase)
    )


def outs(rule, x, weights=None, chunk=None):
    weights = torch.zeros(x.key.shape[-1], x.value.shape[-1], dtype=torch.float64) if weights is None else weights
    return scan(rule, rule.init(weights), x, chunk)[1]


# R1


def test_retnet_is_a_masked_product():
    x = stream(retention=0.9, lr=1.0)
    q, k, v = (a[:, 0] for a in x[:3])
    t = torch.arange(len(q), dtype=torch.float64)
    mask = torch.tril(0.9 ** (t[:, None] - t))
    close(outs(RULES["gated_hebbian"](), x, chunk=8)[:, 0], (q @ k.T * mask) @ v)


def test_gla_by_channel_is_its_closed_form():
    x = stream(lr=1.0)
    by_channel = 0.8 + 0.2 * torch.rand(24, K, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x._replace(gates=x.gates._replace(retention=by_channel))
    q, k, v, g = x.query[:, 0], x.key[:, 0], x.value[:, 0], by_channel[..., 0].log().cumsum(0)
    weights = torch.einsum("ik,jk,ijk->ij", q, k, (g[:, None] - g).exp()).tril()
    close(outs(RULES["gated_hebbian"](), x, chunk=5)[:, 0], weights @ v)


# R2, R3


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_delta_in_chunks_is_its_recurrence(chunk):
    x = stream(64, 16, 8)
    for rule in (RULES["delta"](), RULES["gated_delta"]()):
        memory, expected = torch.zeros(16, 8, dtype=torch.float64), []
        for q, k, v, lr, a in zip(*x[:3], x.gates.lr, x.gates.retention):
            memory = memory if rule == RULES["delta"]() else a * memory
            memory = memory - lr * k.T @ (k @ memory) + lr * k.T @ v
            expected.append(q @ memory)
        close(outs(rule, x, chunk=chunk), torch.stack(expected), 1e-12)


def test_two_mirrors_rotate_by_twice_the_angle_between_keys():
    angle = 0.4
    keys = torch.zeros(2, K, dtype=torch.float64)
    keys[0, 0], keys[1, 0], keys[1, 1] = 1, math.cos(angle), math.sin(angle)
    rule = RULES["delta_product"]()
    turned = rule.write(rule.init(torch.eye(K, dtype=torch.float64)), keys, 0 * normal(2, K), gates(2, 2.0)).dual
    expected = torch.eye(K, dtype=torch.float64)
    c, s = math.cos(2 * angle), math.sin(2 * angle)
    expected[:2, :2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    close(turned, expected, 1e-12)


def test_delta_product_of_two_is_two_delta_steps():
    rule, plain, gated = RULES["delta_product"](), RULES["delta"](), RULES["gated_delta_product"]()
    key, value, memory = unit(normal(2, K)), normal(2, V, seed=1), normal(K, V, seed=2)
    eye, (a, b) = torch.eye(K, dtype=torch.float64), key
    product = (eye - 0.7 * torch.outer(b, b)) @ (eye - 0.7 * torch.outer(a, a)) @ memory
    product = (
        product + (eye - 0.7 * torch.outer(b, b)) @ torch.outer(0.7 * a, value[0]) + torch.outer(0.7 * b, value[1])
    )
    close(rule.write(rule.init(memory), key, value, gates(2, 0.7)).dual, product, 1e-14)
    close(written(plain, memory, key, value, 0.7).dual, product, 1e-14)
    aged = written(plain, 0.9 * memory, key, value, 0.7).dual
    close(gated.write(gated.init(memory), key, value, gates(2, 0.7, 0.9)).dual, aged, 1e-14)


def test_kda_of_equal_channels_is_gated_delta():
    x = stream()
    wide = x._replace(gates=x.gates._replace(retention=x.gates.retention.expand(-1, K, 1)))
    for chunk in (None, 8):
        close(outs(RULES["kda"](), wide, chunk=chunk), outs(RULES["gated_delta"](), x, chunk=chunk), 1e-12)
    assert torch.equal(outs(RULES["kda"](), wide), outs(RULES["gated_delta"](), x))


def test_gated_delta_that_keeps_all_is_delta_bit_for_bit():
    x = stream(retention=1.0)
    assert torch.equal(outs(RULES["gated_delta"](), x), outs(RULES["delta"](), x))


def test_gdn2_of_one_rate_is_kda():
    x = stream(retention=torch.rand(24, K, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    lr = x.gates.lr
    both = x._replace(gates=x.gates._replace(lr=lr.expand(-1, 1, V), erase=lr.expand(-1, 1, K)))
    close(outs(RULES["gdn2"](), both), outs(RULES["kda"](), x), 1e-14)
    close(outs(RULES["gdn2"](), x), outs(RULES["kda"](), x), 1e-14)


# R4


def test_longhorn_is_a_linear_solve_two_hundred_times():
    rule, g = RULES["longhorn"](), torch.Generator().manual_seed(0)
    memory, key, value = normal(200, K, V), normal(200, 1, K, seed=1), normal(200, 1, V, seed=2)
    rate = 5 * torch.rand(200, 1, 1, generator=g, dtype=torch.float64)
    system = torch.eye(K, dtype=torch.float64) + rate * key.mT @ key
    close(
        rule.write(memory, key, value, Gates(rate, ONE, ZERO)),
        torch.linalg.solve(system, memory + rate * key.mT @ value),
    )
    diag = RULES["longhorn"]("diag").write(memory, key, value, Gates(rate, ONE, ZERO))
    d = rate / (1 + rate * key.square().sum(-1, keepdim=True))
    close(diag, (1 - d * key.mT.square()) * memory + d * key.mT @ value)
    assert (diag - rule.write(memory, key, value, Gates(rate, ONE, ZERO))).abs().max() > 0.1


def test_longhorn_is_stable_at_every_rate():
    for rate in (1e-6, 1.0, 1e6):
        for transition in ("full", "diag"):
            out = outs(RULES["longhorn"](transition), stream(200, keys=lambda k: 3 * k, lr=rate))
            assert out.isfinite().all() and out.abs().max() < 1e3


# R5


def test_mesa_is_ridge_after_any_prefix_and_rls_while_nothing_fades():
    x = stream(30, retention=1.0)
    found = outs(RULES["mesa"](0.5), x)
    close(found, outs(RULES["rls"](0.5), x), 1e-8)
    k, v, left = x.key[:, 0], x.value[:, 0], (x.gates.lr * x.key)[:, 0].T
    for t in (1, 5, 30):
        memory = torch.linalg.solve(left[:, :t] @ k[:t] + 0.5 * torch.eye(K, dtype=torch.float64), left[:, :t] @ v[:t])
        close(found[t - 1], x.query[t - 1] @ memory, 1e-8)


def test_conjugate_gradients_solve_within_the_width_and_four():
    h, b = normal(40, 16), normal(8, 16, seed=1)
    h = h.T @ h + 0.25 * torch.eye(16, dtype=torch.float64)
    x, used = counted(_dot, (h,), b, Effort(16 + 4, 0.0))
    close(x, torch.linalg.solve(h, b.T).T, 1e-8)
    assert used.max() <= 20


def test_dynamic_stopping_saves_iterations_on_good_keys():
    key = unit(normal(300, 32))
    h = key.T @ key + torch.eye(32, dtype=torch.float64)
    b = normal(8, 32, seed=1)
    x, used = counted(_dot, (h,), b, Effort(30, 1e-4))
    assert used.max() < 20
    assert ((x @ h - b).norm(dim=-1) <= 1.01e-4 * b.norm(dim=-1)).all()


@pytest.mark.parametrize("chunk", [None, 8])
def test_all_systems_at_once_are_the_recurrent_solve(chunk):
    x = stream(30)
    close(outs(RULES["mesa"](0.3, iterations=K + 4), x, chunk=chunk), outs(RULES["mesa"](0.3, iterations=60), x), 1e-9)


def test_mesa_at_its_ends_is_gated_linear_attention():
    x = stream()
    for chunk in (None, 8):
        attention = outs(RULES["gated_hebbian"](), x, chunk=chunk)
        close(outs(RULES["mesa"](mix=0.0), x, chunk=chunk), attention)
        close(1e12 * outs(RULES["mesa"](1e12), x, chunk=chunk), attention)


def test_mesa_recalls_all_of_few_keys_in_any_order():
    key, value = unit(normal(4, K)), normal(4, V, seed=1)
    rule = RULES["mesa"](1e-13)
    state = written(rule, ZEROS, key, value)
    close(rule.read(state, key), value, 1e-8)
    order = torch.tensor([2, 0, 3, 1])
    close(written(rule, ZEROS, key[order], value[order]).information, state.information, 1e-14)
    faded = written(rule, ZEROS, key, value, retention=0.7)  # fewer keys than width: weights do not matter
    close(rule.read(faded, key), value, 1e-8)


def test_ridge_of_a_mesa_can_be_learned_by_channel():
    ridge = (0.5 + torch.rand(K, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    key, value, start = unit(normal(9, K)), normal(9, V, seed=1), normal(K, V, seed=2)
    rule = RULES["mesa"]()
    state = written(rule, MesaWeights(start, ridge), key, value)
    expected = torch.linalg.solve(key.T @ key + ridge.squeeze().diag(), key.T @ value + ridge * start)
    out = rule.read(state, torch.eye(K, dtype=torch.float64))
    close(out, expected)
    found, wanted = (torch.autograd.grad(o.square().sum(), ridge, retain_graph=True)[0] for o in (out, expected))
    close(found, wanted)


def test_adaptive_ridge_bounds_the_condition():
    key, share = normal(200, 32) * torch.logspace(0, -3, 32, dtype=torch.float64), 0.02
    h = key.T @ key
    level = share * h.norm()
    system = h + level * torch.eye(32, dtype=torch.float64)
    values = torch.linalg.eigvalsh(system)
    assert values.max() / values.min() <= (1 + share) / share
    b = normal(8, 32, seed=1)
    x = chebyshev(_dot, (system,), b, level, h.norm() + level, Effort(60, 0.0))
    assert (x @ system - b).norm() / b.norm() < 1e-6


def test_implicit_gradients_through_five_layers_are_those_of_autograd():
    x = stream(12, 8, 8)
    for solver in ("cg", "chebyshev"):
        grads = []
        for exact in (False, True):
            key = x.key.clone().requires_grad_()
            y = x.query
            for _ in range(5):
                y = torch.nn.functional.normalize(y + _solve_layer(x._replace(query=y, key=key), solver, exact), dim=-1)
            grads.append(torch.autograd.grad(y[..., 0].sum(), key)[0])
        assert (grads[0] - grads[1]).norm() / grads[1].norm() < 1e-5


def _solve_layer(x, solver, exact):
    rule = RULES["mesa"](1e-6, 0.02, solver, 90)
    if not exact:
        return outs(rule, x, chunk=4)
    h = g = 0
    found = []
    for q, k, v, lr, a in zip(*x[:3], x.gates.lr, x.gates.retention):
        h, g = a * h + lr * k.T @ k, a * g + lr * k.T @ v
        found.append(q @ torch.linalg.solve(h + (1e-6 + 0.02 * h.norm()) * torch.eye(8, dtype=torch.float64), g))
    return torch.stack(found)


def _dot(x, h):
    return x @ h


def test_a_solver_is_exact_in_its_gradient():
    h, b = normal(9, 5), normal(3, 5, seed=1).requires_grad_()
    h = (h.T @ h + torch.eye(5, dtype=torch.float64)).requires_grad_()

    def found(h, b):
        one = torch.ones(1, 1, dtype=torch.float64)
        return solved(conjugate_gradient, _dot, ((h + h.mT) / 2,), b, one, one, Effort(12, 0.0))

    assert torch.autograd.gradcheck(found, (h, b))


# R22


def test_nlms_is_exact_and_affine_projection_keeps_the_last_frames():
    rule, key, value = RULES["nlms"](1e-12), normal(12, K), normal(12, V, seed=1)
    state = written(rule, normal(K, V, seed=2), key, value)
    close(rule.read(state, key[-1:]), value[-1:], 1e-8)
    window = Window(RULES["nlms"](1e-12), 4, 1)
    state = written(window, normal(K, V, seed=2), key, value)
    close(window.read(state, key[-4:]), value[-4:], 1e-8)
    truth = normal(K, V, seed=3)
    static = Window(RULES["nlms"](1e-12), K, 1)
    close(written(static, ZEROS, key, key @ truth).inner, truth, 1e-6)
    hebb = RULES["longhorn"]().write(ZEROS, key[:1], value[:1], gates(lr=1e9))
    close(RULES["nlms"]().write(ZEROS, key[:1], value[:1], gates()), hebb, 1e-5)


@pytest.mark.parametrize("mu, keep, q", [(1.0, 1.0, 0.05), (0.5, 0.98, 0.05), (0.8, 0.95, 0.02)])
def test_leaky_nlms_tracks_as_the_theory_says(mu, keep, q):
    """Prediction error of the map E|w' - a_t S|^2 is not it: E|w_t - keep S_{t-1}|^2 / ... of rules.md, measured."""
    d, s2, trials, a = 8, 0.04, 4000, math.sqrt(1 - q)
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    truth, found = draw(trials, d, 1) / d**0.5, []
    rule = RULES["gated_delta"]()
    state = rule.init(torch.zeros(trials, d, 1, dtype=torch.float64))
    for t in range(300):
        truth = a * truth + math.sqrt(q / d) * draw(trials, d, 1)
        key = draw(trials, 1, d)
        if t > 150:
            found.append((truth - keep * state.dual).square().sum((-2, -1)).mean())
        rate = mu / key.square().sum(-1, keepdim=True)
        state = rule.write(state, key, key @ truth + s2**0.5 * draw(trials, 1, 1), Gates(rate, keep * ONE, ZERO))
    c = (a * (a - keep) + q) / (1 - a * keep * (1 - mu / d))
    m = ((a - keep) ** 2 + 2 * keep * (a - keep) * (1 - mu / d) * c + keep**2 * mu**2 * s2 / (d - 2) + q) / (
        1 - keep**2 * (1 - (2 * mu - mu**2) / d)
    )
    assert torch.stack(found).mean().item() == pytest.approx(m, rel=0.03)


def test_comba_of_full_feedback_is_gated_delta():
    x = stream()
    for chunk in (None, 8):
        close(outs(RULES["comba"](1.0, 0.0), x, chunk=chunk), outs(RULES["gated_delta"](), x, chunk=chunk), 1e-14)
    weak = x._replace(gates=x.gates._replace(erase=0.6 * x.gates.lr))
    close(outs(RULES["comba"](0.1), weak), outs(RULES["comba"](0.6), x), 1e-14)
    corrected = x._replace(query=x.query - 0.02 * x.key)
    close(outs(RULES["comba"](0.9), x), outs(RULES["comba"](0.9, 0.0), corrected), 1e-14)


def test_rwkv7_of_one_rate_is_delta_on_unit_keys():
    x = stream(retention=1.0)
    close(outs(RULES["rwkv7"](), x), outs(RULES["delta"](), x), 1e-14)
    plain = written(RULES["rwkv7"](0.0), normal(K, V), x.key[0], x.value[0], 0.3)  # mix 0: what is written has rate 1
    memory, k, v = normal(K, V), x.key[0], x.value[0]
    close(plain, memory - 0.3 * k.T @ (k @ memory) + k.T @ v, 1e-14)
    mirror = RULES["rwkv7"](removal=2.0).write(torch.eye(K, dtype=torch.float64), k, 0 * normal(1, K), gates())
    close(mirror @ mirror.T, torch.eye(K, dtype=torch.float64), 1e-14)


def test_preconditioning_of_base_one_is_gated_delta_and_is_bounded():
    x = stream()
    for chunk in (None, 8):
        plain = outs(RULES["gated_delta"](), x, chunk=chunk)
        close(outs(RULES["preconditioned_delta"](1.0), x, chunk=chunk), plain, 1e-14)
    rule, key, zero = RULES["preconditioned_delta"](), torch.zeros(1, K, dtype=torch.float64), 0 * ZEROS
    key[0, 0], key[0, 1] = 1e3, 1e-3
    moved = rule.write(rule.init(zero), key, 1 + 0 * normal(1, V), gates(lr=1.0)).memory
    assert 1 / 1.5 <= moved[0, 0] / 1e3 < 1 < moved[1, 0] / 1e-3 * 1.5 and moved[1, 0] / 1e-3 <= 1.5


def test_kdn_scans_as_it_steps():
    by_channel = 0.5 + 0.5 * torch.rand(300, K, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = stream(300, retention=by_channel)
    for kind in ("diag", "iso"):
        rule = RULES["kdn"](kind, 0.3)
        (stepped, a), (scanned, b) = (scan(rule, rule.init(ZEROS), x, chunk) for chunk in (None, 32))
        close(a, b, 1e-12)
        torch.testing.assert_close(stepped.precision, scanned.precision, rtol=1e-12, atol=0)


def test_kdn_that_counts_once_is_kalman_diag():
    x = stream()
    for isotropic, kind in ((False, "diag"), (True, "iso")):
        ours = RULES["kalman_diag"](0.3, 0.02, max_variance=1e9, isotropic=isotropic)
        close(outs(RULES["kdn"](kind, 0.3, 0.02, spread=1.0), x), outs(ours, x), 1e-12)


def test_kdn_is_exact_for_one_step_from_a_diagonal_prior():
    key, value, start = normal(1, K), normal(1, V, seed=1), normal(K, V, seed=2)
    for rule in (RULES["kdn"]("diag", 0.3, 0.1), RULES["kalman_diag"](0.3, 0.1), RULES["kdn"]("iso", 0.3, 0.1)):
        exact = written(Kalman(0.3, 0.1, max_variance=10), start, key, value, retention=0.9).memory
        close(written(rule, start, key, value, retention=0.9).memory, exact, 1e-12)


def test_diagonal_filters_are_overconfident_and_the_full_one_is_not():
    d, r, q, trials = 8, 0.01, 1e-3, 400
    found = {"kalman": [], "kalman_diag": []}
    for name in found:
        g = torch.Generator().manual_seed(0)
        rule = RULES[name](r, q, 1.0, 1e3)
        truth = torch.randn(trials, d, 1, generator=g, dtype=torch.float64)
        state = rule.init(torch.zeros_like(truth))
        for t in range(160):
            truth = truth + q**0.5 * torch.randn(trials, d, 1, generator=g, dtype=torch.float64)
            key = torch.randn(trials, 1, d, generator=g, dtype=torch.float64) / d**0.5
            value = key @ truth + r**0.5 * torch.randn(trials, 1, 1, generator=g, dtype=torch.float64)
            if t > 60:
                expected = (q * key.square()).sum(-1, keepdim=True) + rule.variance(state, key)
                found[name].append(((value - rule.read(state, key)).square() / expected).mean())
            state = rule.write(state, key, value, gates())
    assert torch.stack(found["kalman"]).mean().item() == pytest.approx(1, abs=0.02)
    assert 1.0 < torch.stack(found["kalman_diag"]).mean() < 1.3


def test_log_linear_of_equal_shares_is_the_rule():
    x, start = stream(40), normal(K, V, seed=7)
    for rule in (RULES["gated_delta"](), RULES["hebbian"](), RULES["gdn2"](), TokenByToken(RULES["delta"]())):
        close(outs(RULES["log_linear"](rule, 8), x, start), outs(rule, x, start), 1e-12)


def test_log_linear_attention_is_its_masked_product():
    x, share = stream(21, lr=1.0), torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.zeros(21, 21, dtype=torch.float64)
    for t in range(21):
        mask[t, t], end = share[0], t  # spans by the set bits of t, smallest and youngest first
        for bit in range(5):
            if t >> bit & 1:
                mask[t, end - 2**bit : end], end = share[bit + 1], end - 2**bit
    rule = RULES["log_linear"](RULES["hebbian"](), 7)
    found = outs(rule, x, LevelWeights(ZEROS, share[:, None, None]))[:, 0]
    close(found, (x.query[:, 0] @ x.key[:, 0].T * mask) @ x.value[:, 0], 1e-12)


# R13: gates


def gated(gate, rule=None):
    return Gated(RULES["longhorn"]() if rule is None else rule, gate)


def test_an_open_gate_is_the_rule_bit_for_bit():
    x, rule = stream(), RULES["gated_delta"]()
    always = Evidence(1.0, high=-math.inf, low=-math.inf)
    for gate in (Constant(), always, Surprise(1.0, -1.0)):
        assert torch.equal(outs(gated(gate, rule), x), outs(rule, x))


def test_a_shut_gate_leaves_no_trace():
    x, rule = stream(), RULES["gated_delta"]()
    start = normal(K, V)
    for gate in (Constant(0.0), Evidence(1.0, high=1e9), Surprise(1e9)):
        assert torch.equal(scan(gated(gate, rule), gated(gate, rule).init(start), x)[0].inner.dual, start)


def test_evidence_without_memory_is_instant_surprise():
    x = stream(200)
    leaky = Evidence(0.5, leak=0.0, slack=0.0, cap=math.inf, high=3.0, low=3.0)
    assert torch.equal(outs(gated(leaky), x), outs(gated(Surprise(0.5, 4.0)), x))


def scores(normalised, gate=Evidence(1.0)):
    """Whether the gate is open after each of [T, trials] normalised squared errors."""
    seen = torch.ones(normalised.shape[1], 1, 1, dtype=torch.bool)
    state, opened = gate.init(torch.zeros(normalised.shape[1], 1, 1, dtype=torch.float64)), []
    rule = gated(gate, RULES["frozen"]())
    state = rule.init(torch.zeros(normalised.shape[1], 1, 1, dtype=torch.float64))
    one = torch.ones_like(seen, dtype=torch.float64)
    for error in normalised.sqrt():
        state = rule.write(state, one, error[:, None, None], Gates(one, one, one))
        opened.append(state.gate.open[:, 0, 0])
    return torch.stack(opened)


def test_evidence_opens_on_change_and_not_on_spikes():
    g = torch.Generator().manual_seed(0)
    quiet = torch.randn(200, 2000, generator=g, dtype=torch.float64).square()
    quiet[100] = 1e4  # one spike of 100 deviations in each trial
    opened = scores(quiet)
    begun = (opened[1:] > opened[:-1]).sum().item() / quiet.numel()
    assert begun <= 0.002
    assert opened.mean() <= 0.01
    changed = torch.randn(20, 2000, generator=g, dtype=torch.float64).square() * 13
    detected = scores(torch.cat([quiet[:50], changed]))[50:]
    assert (detected.amax(0) > 0).double().mean() >= 0.99
    assert detected.argmax(0).double().median() <= 4
    calm = torch.full((50, 1), 1.0, dtype=torch.float64)
    calm[20] = 1e9
    assert scores(calm).sum() == 0


def test_evidence_writes_less_and_learns_better():
    """The gate table of targets.md: Longhorn, target redrawn every 500 steps, 3 % spikes, 60 seeds."""
    d, steps, seeds = 8, 1500, 60
    g = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    targets = unit(draw(steps // 500, seeds, d))
    key = draw(steps, seeds, d) / d**0.5
    clean = (key * targets.repeat_interleave(500, 0)).sum(-1)
    spikes = (torch.rand(steps, seeds, generator=g) < 0.03) * draw(steps, seeds)
    value = clean + 0.1 * draw(steps, seeds) + spikes

    def run(gate, rate):
        rule, risk, wrote = gated(gate), [], []
        state = rule.init(torch.zeros(seeds, d, 1, dtype=torch.float64))
        for t in range(steps):
            k, lr = key[t][:, None], torch.full((seeds, 1, 1), rate, dtype=torch.float64)
            risk.append((rule.read(state, k)[:, 0, 0] - clean[t]).square().mean())
            new = rule.write(state, k, value[t][:, None, None], Gates(lr, ONE[None], ZERO[None]))
            wrote.append((new.inner != state.inner).any(1).double().mean())
            state = new
        return torch.stack(risk[500:]).mean().item(), torch.stack(wrote[500:]).mean().item()

    always = min(run(Constant(), rate)[0] for rate in (0.25, 1.0))
    risk, wrote = run(Evidence(0.01, leak=0.9, high=8.0, low=2.0), 1.0)
    assert wrote <= 0.30 and risk <= 0.9 * always


def test_confidence_lets_the_first_frame_pass_and_then_weighs():
    x, rule = stream(), RULES["delta"]()
    wrapped = gated(Confidence(), rule)
    first = tree.map(lambda a: a[0], x)
    state, out = wrapped.step(wrapped.init(ZEROS), first)
    assert torch.equal(out, rule.step(rule.init(ZEROS), first)[1])
    second = tree.map(lambda a: a[1], x)
    share = ((second.key @ state.inner.dual * second.value).sum() / V**0.5).sigmoid()
    weighed = rule.write(state.inner, second.key, second.value, second.gates._replace(lr=share * second.gates.lr))
    close(wrapped.step(state, second)[0].inner.dual, weighed.dual, 1e-14)


def test_alignment_of_a_cross_attention_gates_its_state():
    query, key, state, proposal = normal(10, 16), normal(40, 16, seed=1), normal(10, 7, seed=2), normal(10, 7, seed=3)
    logits = query @ key.T / 4
    close(alignment(query, key), logits.mean(-1, keepdim=True), 1e-12)
    low = alignment(query.float(), key.float())
    torch.testing.assert_close(low.double(), logits.mean(-1, keepdim=True), rtol=1e-6, atol=1e-6)
    more = torch.cat([key, key])  # more tokens of the same mean
    close(alignment(query, more), alignment(query, key), 1e-12)
    share = alignment(query, key).sigmoid()
    assert (share > 0).all() and (share < 1).all()
    between = blend(state, proposal, share)
    assert ((between - state) * (proposal - between) >= -1e-15).all()
    assert torch.equal(blend(state, proposal, torch.ones(10, 1)), proposal)
    assert torch.equal(blend(state, proposal, torch.zeros(10, 1)), state)


# R14: thinking


class Stubborn(Mind):
    """Asks what it thinks; writes the same token whatever it thinks."""

    key, value = unit(normal(1, K, seed=4)), normal(1, V, seed=5)

    def query(self, thought):
        return thought[..., :K]

    def turn(self, thought, answer):
        return torch.tanh(thought + answer @ normal(V, K, seed=6))

    def tokens(self, thought):
        return self.key, self.value, gates()


class Wandering(Stubborn):
    """Writes what it thinks."""

    def tokens(self, thought):
        return unit(thought), thought @ normal(K, V, seed=8), gates(lr=0.5)


@pytest.mark.parametrize("name", ["delta", "rls", "mesa", "kalman", "log_linear", "comba"])
def test_thinking_only_reads(name):
    rule, mind, thought = RULES[name](), Wandering(), normal(1, K)
    state = rule.init(normal(K, V, seed=1))
    before = tree.clone(state)
    same, turned = think(rule, state, thought, mind, 5)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(same), tree.leaves(before)))
    changed, _ = think(rule, state, thought, mind, 5, write=True)
    assert not all(torch.equal(a, b) for a, b in zip(tree.leaves(changed), tree.leaves(before)))
    assert not torch.equal(turned, thought)


def test_one_turn_and_a_commit_is_one_coupled_turn():
    rule, mind = RULES["delta"](), Wandering()
    state = rule.init(normal(K, V, seed=1))
    read, thought = think(rule, state, normal(1, K), mind, 1)
    coupled, other = think(rule, state, normal(1, K), mind, 1, write=True)
    assert torch.equal(thought, other)
    assert torch.equal(rule.write(read, *mind.tokens(thought)).dual, coupled.dual)


def test_the_same_write_over_and_over_is_one_write():
    rule, mind = RULES["delta"](), Stubborn()
    state = rule.init(normal(K, V, seed=1))
    once, _ = think(rule, state, normal(1, K), mind, 1, write=True)
    often, _ = think(rule, state, normal(1, K), mind, 7, write=True)
    close(once.dual, often.dual, 1e-13)


# Construction


@pytest.mark.parametrize(
    "make",
    [
        lambda: RULES["mesa"](0.0),
        lambda: RULES["mesa"](solver="lu"),
        lambda: RULES["nlms"](0.0),
        lambda: RULES["comba"](1.5),
        lambda: RULES["kdn"]("full"),
        lambda: RULES["kdn"](process_variance=-1.0),
        lambda: RULES["preconditioned_delta"](0.5),
        lambda: RULES["log_linear"](RULES["rls"]()),
        lambda: RULES["log_linear"](levels=1),
        lambda: Evidence(0.0),
        lambda: Evidence(1.0, low=9.0),
        lambda: Surprise(-1.0),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ConfigError, match="wanted"):
        make()


def test_frames_of_a_batch_are_written_as_one(batch=B):
    """The default of the library: tokens of one frame share one gradient, where a token recurrence would differ."""
    frames, g = data()
    weights, rule = matrix(batch, g), RULES["gdn2"]()
    together = rule.write(weights, *frames[0][1:])
    apart = TokenByToken(rule).write(weights, *frames[0][1:])
    assert (together - apart).abs().max() > 1e-3
