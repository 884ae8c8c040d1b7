"""What holds for every row of the catalogue, or for every tuple of axes, beside the fifteen properties."""

import itertools
import math

import pytest
import torch
from cases import CASES, start
from material import B, V, matrix, mlp
from torch.utils._python_dispatch import TorchDispatchMode

from streammem import tree
from streammem.memory.algorithm import Descent, Momentum, Muon, MuonMomentum
from streammem.memory.architecture import MLP, Matrix
from streammem.memory.bias import L2, Dot, Huber
from streammem.memory.retention import KL, Decay, Keep, UnitNorm
from streammem.memory.rule import Composed
from streammem.rules import RULES
from streammem.rules.moneta import Lp
from streammem.rules.yaad import HuberNorm
from streammem.types import Gates

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

MEMORIES = {"matrix": (Matrix(), matrix), "mlp": (MLP(), mlp)}
BIASES = {"dot": Dot(), "l2": L2(), "huber": Huber(1.0), "huber norm": HuberNorm(1.0), "lp": Lp(3)}
RETENTIONS = {"keep": Keep(), "decay": Decay(), "kl": KL(), "norm": UnitNorm()}
ALGORITHMS = {"descent": Descent(), "momentum": Momentum(), "muon": Muon(), "muon momentum": MuonMomentum()}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("bias", BIASES)
def test_any_tuple_of_axes_is_a_rule(memory, bias):
    for retention, algorithm in itertools.product(RETENTIONS, ALGORITHMS):
        architecture, weights = MEMORIES[memory]
        rule = Composed(architecture, BIASES[bias], RETENTIONS[retention], ALGORITHMS[algorithm])
        frames, _ = start(CASES[0])
        memory_of = weights(B, torch.Generator().manual_seed(0))
        state = rule.init(tree.map(lambda a: a.softmax(-2), memory_of) if retention == "kl" else memory_of)
        for frame in frames[:3]:
            before = rule.read(state, frame.query)
            state, out = rule.step(state, frame)
        assert out.shape == (B, frame.query.shape[-2], V) and out.isfinite().all()
        assert not torch.equal(out, before), (retention, algorithm)


class Counted(TorchDispatchMode):
    """Counts operations and the numbers in what they return."""

    def __init__(self):
        super().__init__()
        self.count = self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += 1
        self.numbers += out.numel() if isinstance(out, torch.Tensor) else 0
        return out


@every
def test_a_step_costs_the_same_at_any_time(case):
    frames, state = start(case)
    costs = []
    for t in range(20):
        with Counted() as counted:
            state, _ = case.rule.step(state, frames[t % len(frames)])
        costs.append((counted.count, counted.numbers))
    assert costs[0] == costs[1] == costs[7] == costs[-1] and costs[0][0] > 0


DANGERS = {
    "zero keys": lambda f: f._replace(key=0 * f.key),
    "duplicate keys": lambda f: f._replace(key=f.key[:, :1].expand_as(f.key)),
    "gates of 0": lambda f: f._replace(gates=tree.map(lambda a: 0 * a, f.gates)),
    "gates of 1": lambda f: f._replace(
        gates=tree.map(lambda a: 0 * a + 1, f.gates)._replace(momentum=0 * f.gates.momentum)
    ),
}


@every
@pytest.mark.parametrize("danger", DANGERS.values(), ids=DANGERS)
def test_dangerous_frames_leave_finite_states_in_float32(case, danger):
    frames, state = start(case, dtype=torch.float32)
    for frame in frames[:3]:
        state, out = case.rule.step(state, danger(frame))
        assert out.isfinite().all()
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state))


def test_titans_that_forgets_all_and_learns_nothing_is_its_momentum():
    """Retention and rate 0: what is left of the memory is the last update, weakened."""
    g, rule = torch.Generator().manual_seed(0), RULES["titans"](Matrix())
    frames, _ = start(CASES[0])
    state = rule.write(rule.init(matrix(B, g)), *frames[0][1:])
    gone = Gates(0 * frames[1].gates.lr, 0 * frames[1].gates.retention, frames[1].gates.momentum)
    after = rule.write(state, frames[1].key, frames[1].value, gone)
    torch.testing.assert_close(after.dual, frames[1].gates.momentum * state.algorithm, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("q", [0.01, 0.05, 0.2])
def test_the_best_retention_for_a_target_that_forgets_is_the_targets_own(q):
    """Normalised rate and retention together, by the formula that `test_leaky_nlms_tracks_as_the_theory_says` holds."""
    d, s2, a = 8, 0.04, math.sqrt(1 - q)
    mu = torch.linspace(0.01, 1.5, 600, dtype=torch.float64)[:, None]
    keep = torch.linspace(0.5, 1.0, 2001, dtype=torch.float64)
    c = (a * (a - keep) + q) / (1 - a * keep * (1 - mu / d))
    lag = (a - keep) ** 2 + 2 * keep * (a - keep) * (1 - mu / d) * c
    error = (lag + keep**2 * mu**2 * s2 / (d - 2) + q) / (1 - keep**2 * (1 - (2 * mu - mu**2) / d))
    best = keep[error.amin(0).argmin()]
    assert best.item() == pytest.approx(a, abs=5e-4)


def test_kernels_of_one_width_and_as_many_pairs_retrieve_as_measured():
    """Keys as many as channels, 64: squared error of a value vector, by kernel; the linear one is (N - 1) / d."""
    g, d = torch.Generator().manual_seed(0), 64
    kernels = {
        "linear": (lambda c: c, 0.977),
        "relu": (lambda c: c.clamp_min(0), 0.487),
        "square": (torch.square, 0.045),
    }
    key, value = (
        torch.nn.functional.normalize(torch.randn(60, d, d, generator=g, dtype=torch.float64), dim=-1) for _ in range(2)
    )
    for name, (kernel, wanted) in kernels.items():
        error = (kernel(key @ key.mT) @ value - value).square().sum(-1).mean().item()
        assert error == pytest.approx(wanted, rel=0.1), name
