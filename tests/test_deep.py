"""Deep and kernel memories against what defines them: equivalences, mirror maps, polar factors, least squares."""

import math

import pytest
import torch
from material import B, K, N, V, data, mlp, square

from streammem import tree
from streammem.errors import ConfigError, NoKernel
from streammem.memory.algorithm import JORDAN, LACT, Descent, Momentum, Muon, MuonMomentum, orthogonalise
from streammem.memory.architecture import (
    MLP,
    Affine,
    AffineWeights,
    Architecture,
    BiasedMLP,
    BiasedMLPWeights,
    Chain,
    Matrix,
    MLPWeights,
    Residual,
    ResidualWeights,
    SwiGLU,
    SwiGLUWeights,
)
from streammem.memory.bias import Dot, HuberNorm
from streammem.memory.chunked import FrozenGradient
from streammem.memory.features import Polynomial, Powers
from streammem.memory.lifted import Lifted, ReadFirst
from streammem.memory.retention import KL, Keep, UnitNorm
from streammem.memory.rule import Composed
from streammem.rules import RULES
from streammem.rules.deltaformer import DeltaFormer, Exp, Linear
from streammem.rules.kalman_bank import KalmanBank, Member
from streammem.rules.kernel_smoother import KernelSmoother, Smoothing
from streammem.rules.moneta import Lq, LqMirror
from streammem.scan import scan
from streammem.types import Gates, Tokens


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


def gates(n=1, lr=1.0, retention=1.0, momentum=0.0):
    one = torch.ones(1, 1, dtype=torch.float64)
    return Gates(torch.full((n, 1), lr, dtype=torch.float64), retention * one, momentum * one)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def same_trees(a, b, tolerance=1e-10):
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        close(x, y, tolerance)


def zero(*shape):
    return torch.zeros(*shape, dtype=torch.float64)


def single(steps, seed=0, lr=0.1, wide=V, lead=(), **rates):
    """Frames of one token, stacked on a first axis."""
    q, k, v = (normal(steps, *lead, 1, w, seed=seed + i) for i, w in enumerate((K, K, wide)))
    one = torch.ones(steps, *lead, 1, 1, dtype=torch.float64)
    rate = lr * (0.5 + torch.rand(one.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return Tokens(q, unit(k), v, Gates(rate, rates.get("retention", 1.0) * one, rates.get("momentum", 0.0) * one))


def stacked(frames):
    return tree.map(lambda *xs: torch.stack(xs), *frames)


# Architectures


def small(*shape, seed=0):
    return 0.3 * normal(B, *shape, seed=seed)


MEMORIES = {
    "matrix": (Matrix(), small(K, K)),
    "affine": (Affine(), AffineWeights(small(K, K), small(1, K))),
    "mlp": (MLP(), MLPWeights(small(K, 7), small(7, K))),
    "biased mlp": (BiasedMLP(), BiasedMLPWeights(small(K, 7), small(1, 7), small(7, K), small(1, K))),
    "swiglu": (SwiGLU(), SwiGLUWeights(small(K, 7), small(K, 7, seed=1), small(7, K))),
    "geglu": (SwiGLU("gelu"), SwiGLUWeights(small(K, 7), small(K, 7, seed=1), small(7, K))),
}
MEMORIES |= {f"residual {name}": (Residual(m), w) for name, (m, w) in list(MEMORIES.items())}
MEMORIES |= {
    f"learned {name}": (Residual(m.inner, True), ResidualWeights(w, 1 + small(1, K), small(1, K)))
    for name, (m, w) in list(MEMORIES.items())
    if name.startswith("residual")
}
every_memory = pytest.mark.parametrize("memory, weights", MEMORIES.values(), ids=MEMORIES)


@every_memory
def test_factors_are_autograd(memory, weights):
    x, cotangent = normal(B, N, K), normal(B, N, K, seed=1)
    (y, pullback), (z, wanted) = memory.vjp(weights, x), Architecture.vjp(memory, weights, x)
    close(y, z)
    learned = isinstance(memory, Residual) and memory.learned_norm
    found, expected = pullback(cotangent), wanted(cotangent)
    same_trees(found.inner if learned else found, expected.inner if learned else expected)
    if learned:  # the norm belongs to the outer loop
        assert not found.gain.any() and not found.shift.any()


@every_memory
@pytest.mark.parametrize("algorithm", [Descent(), Momentum()], ids=repr)
def test_dual_form_is_the_frozen_gradient(memory, weights, algorithm):
    """TTT and Titans: a chunk at once, against the same chunk step by step, odd sizes and a rest included."""
    frames, _ = data()
    frames = [f._replace(gates=f.gates._replace(lr=0.1 * f.gates.lr)) for f in square(frames)]
    keeps = isinstance(memory, Residual) and memory.learned_norm
    rule = RULES["titans"](memory, 4) if isinstance(algorithm, Momentum) and not keeps else RULES["ttt_mlp"](4, memory)
    by_step = scan(rule, rule.init(weights), frames)
    at_once = scan(rule, rule.init(weights), frames, chunk=4)
    same_trees(at_once, by_step)


def test_the_chunk_is_part_of_the_rule():
    frames, g = data()
    weights = mlp(B, g)
    outs = [scan(rule, rule.init(weights), frames)[1] for rule in (RULES["titans"](chunk=c) for c in (1, 2, 4))]
    assert (outs[0] - outs[1]).abs().max() > 1e-3 and (outs[1] - outs[2]).abs().max() > 1e-3
    rule = FrozenGradient(RULES["titans"](), 1)
    close(scan(rule, rule.init(weights), frames)[1], outs[0])
    with pytest.raises(ConfigError, match="wanted 4"):
        scan(RULES["titans"](chunk=4), RULES["titans"](chunk=4).init(weights), frames, chunk=8)
    with pytest.raises(NoKernel, match="no dual form"):
        scan(RULES["moneta"](chunk=4), RULES["moneta"](chunk=4).init(weights), frames, chunk=4)


# R7: TTT


def test_ttt_of_one_batch_is_linear_attention():
    x = single(20, lr=1.0)
    x = x._replace(gates=x.gates._replace(lr=torch.ones_like(x.gates.lr)))
    rule = RULES["ttt_linear"](20, Matrix())
    for chunk in (None, 20):
        _, out = scan(rule, rule.init(zero(K, V)), x, chunk=chunk)
        q, k, v = (a[:, 0] for a in x[:3])
        close(out[:, 0], (q @ k.T).tril() @ v)


def test_ttt_of_batches_of_one_is_delta():
    x, start = single(20), normal(K, V)
    ttt, delta = RULES["ttt_linear"](1, Matrix()), RULES["delta"]()
    close(scan(ttt, ttt.init(start), x)[1], scan(delta, delta.init(start), x)[1])


# R8: Titans


def test_titans_without_momentum_and_decay_is_delta():
    x, start = single(20), normal(K, V)
    titans, delta = RULES["titans"](Matrix()), RULES["delta"]()
    close(scan(titans, titans.init(start), x)[1], scan(delta, delta.init(start), x)[1], 1e-14)


def test_titans_takes_its_gradient_before_the_decay():
    """Retention 0: all that is left is the surprise at the old memory."""
    key, value, start = unit(normal(1, K)), normal(1, V), normal(K, V)
    rule = RULES["titans"](Matrix())
    state = rule.write(rule.init(start), key, value, gates(lr=0.5, retention=0.0))
    close(state.dual, -0.5 * key.T @ (key @ start - value))


def test_titans_end_of_chunk_in_closed_form():
    """W_C = a^C W_0 + (sum_i a^(C-1-i) m^(i+1)) S_0 - sum_j c_j g_j, for constant gates."""
    c, a, m = 6, 0.9, 0.6
    x, start, ball = single(c, lr=0.2, retention=a, momentum=m), normal(K, V), normal(K, V, seed=9)
    rule = RULES["titans"](Matrix(), c)
    state = rule.init(start)
    state = state._replace(inner=state.inner._replace(algorithm=ball))
    wanted = a**c * start + sum(a ** (c - 1 - i) * m ** (i + 1) for i in range(c)) * ball
    for j in range(c):
        share = sum(a ** (c - 1 - i) * m ** (i - j) for i in range(j, c))
        wanted = wanted - share * x.gates.lr[j] * x.key[j].T @ (x.key[j] @ start - x.value[j])
    for chunk in (None, c):
        close(scan(rule, state, x, chunk=chunk)[0].inner.dual, wanted)


# R9: Moneta, Yaad, Memora


def test_the_printed_map_is_of_degree_minus_one_and_the_mirror_map_of_one():
    a = normal(K, V)
    printed, mirror = Lq(4.0).primal, LqMirror(4.0).primal
    close(printed(3 * a), printed(a) / 3)
    close(mirror(3 * a), 3 * mirror(a))
    close(Lq(2.0).primal(a), a)
    close(LqMirror(2.0).primal(a), a)


@pytest.mark.parametrize("q", [1.5, 3.0, 4.0])
def test_the_mirror_map_is_the_gradient_of_its_norm(q):
    a, p = normal(K, V).requires_grad_(), q / (q - 1)
    (slope,) = torch.autograd.grad(0.5 * (a.abs() ** p).sum() ** (2 / p), a)
    close(LqMirror(q).primal(a.detach()), slope)
    close(LqMirror(q).primal(LqMirror(q).dual(a.detach())), a.detach())


@pytest.mark.parametrize("map", ["printed", "mirror"])
def test_moneta_reads_and_writes_a_memory_of_zeros(map):
    rule = RULES["moneta"](memory=Matrix(), map=map)
    start = zero(K, V).requires_grad_()
    state = rule.write(rule.init(start), unit(normal(2, K)), normal(2, V), gates(2, 0.01))
    out = rule.read(state, normal(2, K))
    out.sum().backward()
    assert out.isfinite().all() and start.grad.isfinite().all()


def test_yaad_by_norm_clips_the_residual_and_bounds_the_write():
    prediction, value = 3 * normal(50, V), 3 * normal(50, V, seed=1)
    r = prediction - value
    length = r.norm(dim=-1, keepdim=True)
    close(HuberNorm(2.0).grad(prediction, value), torch.where(length > 2, 2 * r / length, r))
    close(HuberNorm(1e9).grad(prediction, value), r)
    rule, start, key = RULES["yaad"](0.5, Matrix(), "norm"), normal(K, V), normal(1, K)
    moved = rule.write(rule.init(start), key, 1e6 * normal(1, V), gates(lr=0.3)).dual - start
    assert moved.norm() <= 0.3 * 0.5 * key.norm() * (1 + 1e-9)


def test_memora_solves_its_proximal_problem():
    """Softmax of the decayed log-weights minimises <g, W> + (1 / lr) KL(W, W_t-1) + (1 / a) entropy on the simplex."""
    before, g, lr, a = normal(K, V).softmax(-2), normal(K, V, seed=1), 0.7, 1.3
    share = (1 / a) / (1 / a + 1 / lr)
    rule = KL()
    kept = torch.tensor(1 - share, dtype=torch.float64)
    dual = rule.merge(rule.retain(rule.dual(before), kept), -g / (1 / a + 1 / lr))
    w = rule.primal(dual)
    slope = g + (w / before).log() / lr + w.log() / a
    close(slope, slope.mean(0).expand_as(slope), 1e-12)  # one multiplier a column
    close(w.sum(0), torch.ones(V, dtype=torch.float64), 1e-12)


def test_memora_keeps_its_total_and_never_underflows():
    rule = RULES["memora"](total=3.0)
    state = rule.init(torch.full((K, V), 3.0 / K))
    key, value = torch.eye(K)[:1], torch.full((1, V), 3.0)
    for _ in range(3000):
        state = rule.write(state, key, value, Gates(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1)))
    weights = rule.retention.primal(state.dual)
    assert weights.isfinite().all() and state.dual.isfinite().all()
    torch.testing.assert_close(weights.sum(0), torch.full((V,), 3.0), rtol=1e-5, atol=1e-5)


# R10: Omega, Atlas


def test_omega_of_one_frame_is_gated_delta_reparametrised():
    a = 0.9
    x, start = single(15, lr=0.2, retention=a), normal(K, V)
    omega, gated = RULES["omega"](Matrix(), 1), RULES["gated_delta"]()
    scaled = x._replace(value=a * x.value, gates=x.gates._replace(lr=x.gates.lr / a))
    close(scan(omega, omega.init(start), x)[1], scan(gated, gated.init(start), scaled)[1])


def test_omega_writes_values_with_a_plus():
    """S_t = (a - sum k k^T) S + sum k v^T; the paper prints a minus."""
    key, value, rule = unit(normal(3, K)), normal(3, V), RULES["omega"](Matrix(), 3)
    state = rule.init(zero(K, V))
    for k, v in zip(key, value):
        state = rule.write(state, k[None], v[None], gates(lr=0.1))
    s = zero(K, V)
    for t in range(3):
        seen = slice(0, t + 1)
        s = s - 0.1 * key[seen].T @ key[seen] @ s + 0.1 * key[seen].T @ value[seen]
    close(state.inner.dual, s)


def test_omega_of_everything_tends_to_least_squares():
    key, value = normal(8, K), normal(8, V)
    rule = RULES["omega"](Matrix(), 1, 8)
    state = rule.init(zero(K, V))
    for _ in range(6000):
        state = rule.write(state, key, value, gates(8, 0.05))
    close(state.inner.dual, torch.linalg.lstsq(key, value).solution, 1e-6)


@pytest.mark.parametrize("coefficients, low, high", [(JORDAN, 0.65, 1.2), (LACT, 0.65, 1.2)], ids=["jordan", "lact"])
def test_newton_schulz_brings_singular_values_near_one(coefficients, low, high):
    for seed in range(20):
        s = torch.linalg.svdvals(orthogonalise(normal(16, 12, seed=seed), 5, coefficients))
        assert low < s.min() and s.max() < high


def test_the_cubic_iteration_is_the_polar_factor():
    """The same code with the coefficients 1.5, -0.5, 0 converges where the quintic only comes near."""
    g = normal(6, 5)
    u, _, vt = torch.linalg.svd(g, full_matrices=False)
    close(orthogonalise(g, 60, ((1.5, -0.5, 0.0),)), u @ vt, 1e-12)


@pytest.mark.parametrize("algorithm", [Muon(), MuonMomentum()], ids=repr)
def test_muon_of_nothing_is_nothing(algorithm):
    g = zero(K, V).requires_grad_()
    _, update = algorithm.update(algorithm.init(g), g, gates())
    update.sum().backward()
    assert not update.any() and g.grad.isfinite().all()


def test_atlas_steps_by_its_rate_whatever_the_surprise():
    rule, start = RULES["atlas"](Matrix(), 1), zero(K, V)
    for size in (1e-3, 1.0, 1e3):
        state = rule.write(rule.init(start), normal(1, K), size * normal(1, V), gates(lr=0.1))
        assert 0.06 < torch.linalg.svdvals(state.inner.dual).max() < 0.12


@pytest.mark.parametrize("sphere, spare", [(False, 0), (True, 1)])
def test_features_of_degree_two_recall_as_many_keys(sphere, spare):
    """K (K + 3) / 2 + 1 keys exactly, one fewer on the sphere, where one monomial is a sum of others."""
    k, features = 4, Polynomial()
    most = k * (k + 3) // 2 + 1 - spare
    assert features.width(k) == k * (k + 3) // 2 + 1
    rule = Lifted(RULES["rls"](1e-10, 1e12), features)
    errors = []
    for count in (most, most + 1):
        key = normal(count, k, seed=3)
        key = unit(key) if sphere else key
        value = normal(count, V, seed=4)
        state = rule.write(rule.init(zero(features.width(k), V)), key, value, gates(count))
        errors.append((rule.read(state, key) - value).abs().max().item())
    assert errors[0] < 1e-3 < 1e-2 < errors[1]


def test_features_reproduce_their_kernels():
    x, y = normal(5, K), normal(4, K, seed=1)
    product = x @ y.T
    close(Polynomial()(x) @ Polynomial()(y).T, 1 + product + product**2 / 2)
    powers = Powers(16)
    x, y = unit(normal(3, 2)), unit(normal(3, 2, seed=1))
    close(powers(x) @ powers(y).T, (x @ y.T).exp(), 1e-12)
    assert powers(x).shape[-1] == powers.width(2)


def test_hebbian_over_powers_is_unnormalised_softmax_attention():
    q, k, v = unit(normal(4, 2)), unit(normal(6, 2, seed=1)), normal(6, V)
    powers = Powers(16)
    rule = Lifted(RULES["hebbian"](), powers)
    state = rule.write(rule.init(zero(powers.width(2), V)), k, v, gates(6))
    close(rule.read(state, q), (q @ k.T).exp() @ v)


# R11: LaCT


def swiglu():
    return SwiGLUWeights(normal(K, 7), normal(K, 7, seed=1), normal(7, V, seed=2))


@pytest.mark.parametrize("algorithm", [Muon(5, LACT), Momentum(), Descent()], ids=repr)
def test_lact_keeps_the_norms_of_its_units(algorithm):
    rule, start = RULES["lact"](algorithm), swiglu()
    state = rule.init(start)
    for t in range(20):
        state = rule.write(state, normal(N, K, seed=t), normal(N, V, seed=t + 50), gates(N, 0.3, momentum=0.9))
    for before, after in zip(start, state.dual.weights):
        close(after.norm(dim=-2), before.norm(dim=-2), 1e-12)
        assert (before - after).abs().max() > 0.01


def test_lact_takes_a_chunk_as_a_set_and_its_rates_as_relative():
    rule, key, value = RULES["lact"](), normal(N, K), normal(N, V)
    order, rate = torch.tensor([2, 0, 3, 1]), torch.tensor([[0.1], [0.2], [0.3], [0.4]], dtype=torch.float64)
    one = gates()

    def written(key, value, rate):
        return rule.write(rule.init(swiglu()), key, value, one._replace(lr=rate)).dual.weights

    plain = written(key, value, rate)
    same_trees(written(key[order], value[order], rate[order]), plain)
    same_trees(written(key, value, 7 * rate), plain, 1e-5)


def test_lact_of_shards_is_lact_of_the_sum():
    """The loss is linear in the memory's output: gradients of parts of a chunk add up."""
    rule, key, value = RULES["lact"](), normal(N, K), normal(N, V)
    dual = rule.init(swiglu()).dual
    whole = rule.gradient(dual, key, value, gates(N))
    halves = [rule.gradient(dual, key[i : i + 2], value[i : i + 2], gates(2)) for i in (0, 2)]
    same_trees(tree.map(torch.add, *halves), whole)


def test_lact_linear_without_norms_is_a_hebbian_chunk():
    rule, key, value, start = Composed(Matrix(), Dot(), Keep(), Descent()), normal(N, K), normal(N, V), normal(K, V)
    close(rule.write(rule.init(start), key, value, gates(N, 0.3)).dual, start + 0.3 * key.T @ value)


@pytest.mark.parametrize("order", ["update, then apply", "apply, then update", "some tokens", "one chunk"])
def test_orders_of_lact_give_their_masks(order):
    """Which token's value moves which readout, by differences: 4 chunks of 2 tokens, or one of 8."""
    rule = RULES["lact"](Descent())
    frames = 1 if order == "one chunk" else 4
    tokens = 8 // frames
    key, value, query = normal(frames, tokens, K), normal(frames, tokens, V), normal(frames, tokens, K, seed=5)
    rate = torch.full((frames, tokens, 1), 0.3, dtype=torch.float64)
    if order == "some tokens":
        rate[:, 1] = 0  # every other token only asks
    one = torch.ones(frames, 1, 1, dtype=torch.float64)
    runner = ReadFirst(rule) if order == "apply, then update" else rule

    def outs(v):
        x = Tokens(query, key, v, Gates(rate, one, 0 * one))
        return scan(runner, runner.init(swiglu()), x)[1].flatten(0, 1)

    found = torch.zeros(8, 8, dtype=torch.bool)
    for j in range(8):
        moved = value.clone()
        moved.view(8, V)[j] += 1.0
        found[:, j] = (outs(moved) - outs(value)).abs().amax(-1) > 1e-9
    chunk = torch.arange(8) // tokens
    wanted = chunk[:, None] > chunk if order == "apply, then update" else chunk[:, None] >= chunk
    if order == "some tokens":
        wanted = wanted & (torch.arange(8) % 2 == 0)
    assert torch.equal(found, wanted)


def test_columns_of_nothing_stay_nothing():
    start = zero(K, V).requires_grad_()
    dual = UnitNorm().merge(UnitNorm().dual(start), normal(K, V))
    dual.weights.sum().backward()
    assert dual.weights.abs().max() < 1e-100 and start.grad.isfinite().all()


# R6: kernel smoothers


def smoothed(rule, key, value, query, retention=1.0):
    state = rule.init(zero(key.shape[-1], value.shape[-1]))
    for k, v in zip(key, value):
        state = rule.write(state, k[None], v[None], gates(retention=retention))
    return rule.read(state, query)


def test_nadaraya_watson_on_the_sphere_is_softmax_attention():
    q, k, v, h = unit(normal(7, K)), unit(normal(20, K, seed=1)), normal(20, V), 0.6
    close(smoothed(KernelSmoother(20, h), k, v, q), (q @ k.T / h**2).softmax(-1) @ v, 1e-12)


def test_nadaraya_watson_solves_its_local_problem():
    q, k, v = normal(1, K), normal(20, K, seed=1), normal(20, V)
    out = smoothed(KernelSmoother(20, 1.5), k, v, q)
    w = torch.exp(-((q - k) ** 2).sum(-1) / (2 * 1.5**2))
    close(w @ (v - out), zero(V), 1e-12)


def test_bandwidth_zero_is_the_nearest_and_infinity_the_mean():
    q, k, v = normal(7, K), normal(20, K, seed=1), normal(20, V)
    close(smoothed(KernelSmoother(20, 1e-4), k, v, q), v[torch.cdist(q, k).argmin(-1)])
    close(smoothed(KernelSmoother(20, 1e6), k, v, q), v.mean(0).expand(7, -1))


def test_local_linear_reproduces_affine_maps():
    q, k = normal(7, K), normal(40, K, seed=1)
    w, b = normal(K, V, seed=2), normal(1, V, seed=3)
    linear, constant = (
        smoothed(KernelSmoother(40, 1.0, fit, 1e-13), k, k @ w + b, q) for fit in ("linear", "constant")
    )
    close(linear, q @ w + b, 1e-9)
    assert (constant - q @ w - b).abs().max() > 0.5


def test_an_empty_smoother_reads_its_initial_memory():
    start, q = normal(K, V), normal(3, K)
    for rule in (KernelSmoother(5), KernelSmoother(5, fit="linear")):
        close(rule.read(rule.init(start), q), q @ start)


def test_padding_takes_no_slot():
    rule, key, value = KernelSmoother(3, 1.0), normal(3, K), normal(3, V)
    state = rule.write(rule.init(zero(K, V)), key, value, gates(3))
    after = rule.write(state, normal(5, K, seed=8), normal(5, V, seed=9), gates(5, 0.0))
    close(rule.read(after, key), rule.read(state, key), 1e-14)


def test_retention_lets_the_newest_version_of_a_key_win():
    key, old, new = unit(normal(1, K)), normal(1, V), normal(1, V, seed=1)
    both = torch.cat([old, new])
    close(smoothed(KernelSmoother(4), key.expand(2, -1), both, key), both.mean(0, keepdim=True))
    recent = smoothed(KernelSmoother(4), key.expand(2, -1), both, key, retention=0.01)
    assert (recent - new).norm() < 0.05 * (old - new).norm()


def test_bandwidth_is_learned():
    """A gradient through the state: smooth data want a wide kernel, and the leave-one-out error says so."""
    x = torch.linspace(0, 5, 30, dtype=torch.float64)[:, None]
    y = torch.sin(x) + 0.5 * normal(30, 1)
    rule, one = KernelSmoother(30), torch.ones(30, 1, 1, dtype=torch.float64)
    log_bandwidth = torch.tensor(-2.5, dtype=torch.float64, requires_grad=True)
    others = (1 - torch.eye(30, dtype=torch.float64))[..., None]
    losses = []
    for _ in range(20):
        state = rule.init(Smoothing(0 * one, log_bandwidth * one))
        state = rule.write(state, x.expand(30, -1, -1), y.expand(30, -1, -1), Gates(others, one, 0 * one))
        loss = (rule.read(state, x[:, None]) - y[:, None]).square().mean()
        losses.append(loss.item())
        (slope,) = torch.autograd.grad(loss, log_bandwidth)
        log_bandwidth = (log_bandwidth - 2 * slope).detach().requires_grad_()
    assert losses[-1] < 0.9 * losses[0] and log_bandwidth > -2.3


# R18: DeltaFormer


def test_deltaformer_of_linear_kernels_is_delta():
    x, start = single(15, lr=0.5), normal(K, V)
    rule, delta = DeltaFormer(Linear(), 15, None), RULES["delta"]()
    close(scan(rule, rule.init(start), x)[1], scan(delta, delta.init(start), x)[1], 1e-12)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("slots", [3, 12, 40])
@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_deltaformer_by_triangular_solve_is_the_recurrence(normalised, slots, chunk):
    frames, g = data()
    lr = frames[2].gates.lr.clone()
    lr[:, 1] = 0  # a token that is none
    frames[2] = frames[2]._replace(gates=frames[2].gates._replace(lr=lr))
    rule, start = DeltaFormer(Exp(0.3), slots, None, normalised), 0.3 * normal(B, K, V)
    by_step, at_once = scan(rule, rule.init(start), frames), scan(rule, rule.init(start), frames, chunk=chunk)
    same_trees(at_once, by_step)


def test_merging_keys_have_no_sequence_form():
    with pytest.raises(NoKernel, match="merge"):
        scan(DeltaFormer(), DeltaFormer().init(zero(K, V)), single(3), chunk=2)


def test_deltaformer_recalls_what_was_overwritten_and_attention_does_not():
    """16 keys, each written 8 times, in a dictionary of 16; the public form, and attention, in one of 128."""
    key, codes = unit(normal(16, 32)), unit(normal(64, 32, seed=1))
    g = torch.Generator().manual_seed(0)
    order, chosen = torch.randperm(128, generator=g) % 16, torch.randint(64, (128,), generator=g)
    latest = torch.empty(16).long()
    latest[order] = chosen
    for i, c in zip(order, chosen):
        latest[i] = c
    memories = {
        "ours": DeltaFormer(Exp(16.0), 16),
        "public": DeltaFormer(Exp(16.0), 128, None, True),
        "attention": KernelSmoother(128, 0.25),
    }
    out = {name: smoothed(rule, key[order], codes[chosen], key) for name, rule in memories.items()}
    errors = {name: (y - codes[latest]).square().sum(-1).mean().item() for name, y in out.items()}
    right = {name: ((y @ codes.T).argmax(-1) == latest).double().mean().item() for name, y in out.items()}
    assert right["ours"] == 1 and errors["ours"] < 1e-3
    assert errors["public"] > 0.3 and right["attention"] < 0.4


def test_the_first_token_of_either_form_is_finite():
    for normalised in (False, True):
        rule = DeltaFormer(Exp(), 4, None, normalised)
        x = single(1, lr=1.0)
        _, out = scan(rule, rule.init(zero(K, V)), x, chunk=1)
        assert out.isfinite().all()
        close(out, scan(rule, rule.init(zero(K, V)), x)[1])


def test_writing_twice_is_writing_once():
    rule, key, value = DeltaFormer(), unit(normal(1, K)), normal(1, V)
    once = rule.write(rule.init(zero(K, V)), key, value, gates())
    twice = rule.write(once, key, value, gates())
    close(twice.coefficient, once.coefficient, 1e-12)
    close(rule.read(twice, key), value, 1e-12)


@pytest.mark.parametrize("width", [16, 64])
def test_noise_of_kernels(width):
    """Noise to signal of one random key: 1/d, 1/(2d), 3/(d(d+2)), 15/(d(d+2)(d+4))."""
    g = torch.Generator().manual_seed(0)
    c = (unit(torch.randn(400_000, width, generator=g)) * unit(torch.randn(400_000, width, generator=g))).sum(-1)
    d = width
    for found, wanted in (
        (c, 1 / d),
        (c.clamp_min(0), 0.5 / d),
        (c**2, 3 / (d * (d + 2))),
        (c**3, 15 / (d * (d + 2) * (d + 4))),
    ):
        assert found.square().mean().item() == pytest.approx(wanted, rel=0.05)


# Continuum


def test_blocks_learn_at_multiples_of_their_period_only():
    rule = RULES["continuum"](Chain((MLP(), Matrix())), (1, 3))
    state = rule.init((MLPWeights(normal(K, 7), normal(7, V)), normal(V, V)))
    for t in range(1, 10):
        new = rule.write(state, normal(N, K, seed=t), normal(N, V, seed=t + 20), gates(N, 0.01))
        assert not torch.equal(new.blocks[0].w1, state.blocks[0].w1)
        assert torch.equal(new.blocks[1], state.blocks[1]) == (t % 3 != 0)
        state = new


def test_a_block_alone_with_period_one_is_descent():
    frames, _ = data()
    weights = MLPWeights(0.3 * normal(B, K, 7), 0.3 * normal(B, 7, V))
    one = RULES["continuum"](Chain((MLP(),)), (1,))
    other = RULES["yaad"](1e9)
    close(scan(one, one.init((weights,)), frames)[1], scan(other, other.init(weights), frames)[1])


# Bank of filters


def test_bank_of_one_still_member_is_kalman():
    """Gaussian weights, that is degrees without end; Kalman in units of the noise."""
    x, start = single(25, lr=0.8), normal(K, V)
    bank = KalmanBank((Member(0.1),), degrees=1e12, prior_variance=10.0)
    kalman = RULES["kalman"](1.0, 0.1, 10.0, 1e4)
    close(scan(bank, bank.init(start), x)[1], scan(kalman, kalman.init(start), x)[1], 1e-8)


def test_bank_does_not_ask_for_the_scale():
    x = single(60, lr=1.0, lead=(1,))
    x = x._replace(gates=x.gates._replace(lr=torch.ones_like(x.gates.lr)))
    rule = KalmanBank()
    state = rule.init(zero(1, K, V))
    _, out = scan(rule, state, x)
    scaled = state._replace(noise=1e4 * state.noise)
    _, large = scan(rule, scaled, x._replace(value=100 * x.value))
    close(large, 100 * out, 1e-8)


def test_bank_believes_in_what_moves():
    g = torch.Generator().manual_seed(0)

    def belief(drift):
        truth = normal(40, K, 1)
        rule = KalmanBank((Member(1e-6), Member(1.0)))
        state = rule.init(torch.zeros_like(truth))
        one = torch.ones(40, 1, 1, dtype=torch.float64)
        for _ in range(150):
            truth = truth + drift * torch.randn(truth.shape, generator=g, dtype=torch.float64)
            key = torch.randn(40, 1, K, generator=g, dtype=torch.float64)
            value = key @ truth + 0.1 * torch.randn(40, 1, 1, generator=g, dtype=torch.float64)
            state = rule.write(state, key, value, Gates(one, one, 0 * one))
        return rule.beliefs(state)[:, 1].mean()

    assert belief(0.0) < 0.05 and belief(0.1) > 0.95


# Long runs and dangers


DEEP = {
    "ttt_linear": (RULES["ttt_linear"](16, Residual(Affine())), "affine"),
    "ttt_mlp": (RULES["ttt_mlp"](16, Residual(MLP())), "mlp"),
    "titans": (RULES["titans"](chunk=16), "mlp"),
    "yaad": (RULES["yaad"](0.5, form="norm"), "mlp"),
    "memora": (RULES["memora"](), "matrix"),
    "moneta printed": (RULES["moneta"](), "mlp"),
    "moneta mirror": (RULES["moneta"](map="mirror"), "mlp"),
    "omega": (RULES["omega"](), "mlp"),
    "atlas": (RULES["atlas"](), "mlp"),
    "lact": (RULES["lact"](), "swiglu"),
    "smoother": (KernelSmoother(32), "matrix"),
    "smoother linear": (KernelSmoother(32, fit="linear"), "matrix"),
    "deltaformer": (DeltaFormer(slots=32), "matrix"),
    "deltaformer public": (DeltaFormer(Exp(), 32, None, True), "matrix"),
    "continuum": (RULES["continuum"](), "chain"),
    "kalman_bank": (KalmanBank(), "matrix"),
}
every_deep = pytest.mark.parametrize("rule, kind", DEEP.values(), ids=DEEP)


def initial(kind, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)

    def w(*shape):
        return 0.3 * torch.randn(1, *shape, generator=g, dtype=dtype)

    return {
        "matrix": w(K, K).softmax(-2),
        "affine": AffineWeights(w(K, K), w(1, K)),
        "mlp": MLPWeights(w(K, 7), w(7, K)),
        "swiglu": SwiGLUWeights(w(K, 7), w(K, 7), w(7, K)),
        "chain": (MLPWeights(w(K, 7), w(7, K)), MLPWeights(w(K, 7), w(7, K))),
    }[kind]


def long_run(rule, kind, steps):
    """Errors on a drifting map in float32, first and last tenth; asked before it is told."""
    g = torch.Generator().manual_seed(1)
    truth = torch.randn(K, K, generator=g) / K**0.5
    state, one = rule.init(initial(kind)), torch.ones(1, 1, 1)
    gate, errors = Gates(0.02 * one, 0.999 * one, 0.3 * one), []
    with torch.inference_mode():
        for _ in range(steps):
            truth = 0.999 * truth + (1 - 0.999**2) ** 0.5 * torch.randn(K, K, generator=g) / K**0.5
            key = unit(torch.randn(1, 1, K, generator=g))
            value = key @ truth
            errors.append((rule.read(state, key) - value).square().mean())
            state = rule.write(state, key, value, gate)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state))
    tenth = steps // 10
    errors = torch.stack(errors)
    return errors[:tenth].mean(), errors[-tenth:].mean()


@every_deep
def test_a_long_run_stays_finite(rule, kind):
    first, last = long_run(rule, kind, 400)
    assert last < 2 * first + 0.5


@pytest.mark.slow
@every_deep
def test_a_hundred_thousand_steps_stay_finite(rule, kind):
    first, last = long_run(rule, kind, 100_000)
    assert last < 2 * first + 0.5


@every_deep
@pytest.mark.parametrize("danger", ["zero keys", "duplicate keys", "gates of 0", "gates of 1"])
def test_dangerous_frames_leave_finite_states(rule, kind, danger):
    one, n = torch.ones(1, 1, 1), 1
    key = torch.zeros(1, n, K) if danger == "zero keys" else unit(torch.ones(1, n, K))
    rate, kept = (0.0, 0.0) if danger == "gates of 0" else (1.0, 1.0) if danger == "gates of 1" else (0.1, 0.9)
    state = rule.init(initial(kind))
    for _ in range(3):
        state = rule.write(state, key, torch.ones(1, n, K), Gates(rate * one, kept * one, 0 * one))
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state))
    assert rule.read(state, key).isfinite().all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RULES["titans"](chunk=0),
        lambda: FrozenGradient(RULES["gated_delta"](), 2),
        lambda: RULES["yaad"](form="sign"),
        lambda: RULES["moneta"](map="other"),
        lambda: RULES["moneta"](map="mirror", q=1.0),
        lambda: RULES["memora"](total=0.0),
        lambda: SwiGLU("relu"),
        lambda: HuberNorm(0.0),
        lambda: Polynomial(3),
        lambda: Polynomial(2, (1.0, 1.0)),
        lambda: Powers(-1),
        lambda: KernelSmoother(0),
        lambda: KernelSmoother(fit="cubic"),
        lambda: DeltaFormer(slots=0),
        lambda: DeltaFormer(normalised=True),
        lambda: Exp(0.0),
        lambda: RULES["continuum"](periods=(1,)),
        lambda: KalmanBank(()),
        lambda: KalmanBank(forget=1.0),
        lambda: Lq(4.0, 0.0),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ConfigError, match="wanted"):
        make()


def test_exp_of_itself_is_one():
    x = 5 * normal(4, K)
    close(Exp(16.0)(x, x).diagonal(), torch.ones(4, dtype=torch.float64), 1e-9)
    assert math.isclose(Exp(2.0)(x[:1], x[1:2]).item(), math.exp(-((x[0] - x[1]) ** 2).sum().item()), rel_tol=1e-9)
