"""Rules against public implementations by others; skipped, with a reason, where those are not there."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from streammem.rules import RULES
from streammem.rules.kalman import Kalman, Steady, Still
from streammem.scan import scan
from streammem.types import Gates, Tokens

T, H, K, V = 63, 2, 8, 8


def stream(dtype=torch.float32, retention=1):
    g = torch.Generator().manual_seed(0)

    def normal(width):
        return torch.randn(T, 1, H, 1, width, generator=g, dtype=torch.float64)

    def uniform(width):
        return torch.rand(T, 1, H, width, 1, generator=g, dtype=torch.float64)

    unit = torch.nn.functional.normalize
    gates = Gates(uniform(1), 0.8 + 0.2 * uniform(retention), uniform(1))
    x = Tokens(normal(K), unit(normal(K), dim=-1), normal(V), gates)
    return Tokens(*(a.to(dtype) for a in x[:3]), Gates(*(a.to(dtype) for a in gates[:3])))


def naive(module, name):
    """A function of fla's naive.py, loaded by its path: the package itself wants Triton even for these."""
    package = importlib.util.find_spec("fla")
    if package is None or importlib.util.find_spec("einops") is None:
        pytest.skip("fla-core or einops is not installed (extra: peers)")
    path = Path(package.submodule_search_locations[0]) / "ops" / module / "naive.py"
    if not path.is_file():
        pytest.skip(f"this fla-core has no naive {module}")
    spec = importlib.util.spec_from_file_location(f"fla_{module}_naive", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def by_head(a):
    """[T, 1, H, 1, w] -> [1, T, H, w], as fla has it."""
    return a[:, :, :, 0].movedim(0, 1)


def rates(x):
    """Logarithm of retention [1, T, H, K or 1], and lr [1, T, H]."""
    return x.gates.retention.log()[..., 0].movedim(0, 1), x.gates.lr[..., 0, 0].movedim(0, 1)


def agree(name, x, theirs, **args):
    """Our rule in chunks against what a peer said, [1, T, H, V]."""
    rule = RULES[name](**args)
    _, out = scan(rule, rule.init(torch.zeros(1, H, K, V)), x, 16)
    torch.testing.assert_close(by_head(out), theirs, rtol=1e-4, atol=1e-5)


def test_delta_is_flas():
    x = stream()
    parts = [by_head(a).transpose(1, 2) for a in x[:3]]
    out, _ = naive("delta_rule", "delta_rule_recurrence")(*parts, rates(x)[1].transpose(1, 2))
    agree("delta", x, K**0.5 * out.transpose(1, 2))


def test_gated_delta_is_flas():
    x = stream()
    g, beta = rates(x)
    function = naive("gated_delta_rule", "naive_recurrent_gated_delta_rule")
    agree("gated_delta", x, function(*(by_head(a) for a in x[:3]), beta, g[..., 0], scale=1.0)[0])


def test_kda_is_flas():
    x = stream(retention=K)
    agree("kda", x, naive("kda", "naive_recurrent_kda")(*(by_head(a) for a in x[:3]), *rates(x), scale=1.0)[0])


def test_gdn2_is_flas():
    x = stream(retention=K)
    g = torch.Generator().manual_seed(1)
    erase, write = (torch.rand(T, 1, H, 1, width, generator=g) for width in (K, V))
    x = x._replace(gates=x.gates._replace(lr=write, erase=erase))
    log_kept = x.gates.retention.log()[..., 0].movedim(0, 1)
    parts = (*(by_head(a) for a in x[:3]), log_kept, by_head(erase), by_head(write))
    agree("gdn2", x, naive("gdn2", "naive_recurrent_gdn2")(*parts, scale=1.0)[0])


def test_comba_is_flas():
    x = stream()
    g, beta = rates(x)
    query, key, value = (by_head(a) for a in x[:3])
    function = naive("comba", "naive_recurrent_comba")
    out = function(query - 0.02 * key, key, value, 0.7 * key, beta, g[..., 0], scale=1.0)[0]
    agree("comba", x, out, feedback=0.7, correction=0.02)


def test_gla_is_flas():
    x = stream(retention=K)
    parts = (by_head(x.query), by_head(x.key), by_head(x.value * x.gates.lr), rates(x)[0])
    agree("gated_hebbian", x, K**0.5 * naive("gla", "naive_recurrent_gla")(*parts)[0])


def test_mesa_is_flas():
    x = stream()
    g, beta = rates(x)
    ridge = torch.full((H, K), 0.7)
    parts = [by_head(a) for a in x[:3]]
    agree("mesa", x, naive("mesa_net", "naive_mesa_net_exact")(*parts, g[..., 0], ridge, beta)[0], ridge=0.7)


def test_nlms_and_rls_are_padasips():
    padasip = pytest.importorskip("padasip", reason="padasip is not installed (extra: peers)")
    g = np.random.default_rng(0)
    keys, values = g.normal(size=(60, K)), g.normal(size=60)
    one = torch.ones(60, 1, 1, dtype=torch.float64)
    tokens = Tokens(
        *(torch.from_numpy(a) for a in (keys[:, None], keys[:, None], values[:, None, None])), Gates(one, one, one)
    )
    cases = {
        "nlms": (RULES["nlms"](1e-3), padasip.filters.FilterNLMS(K, mu=0.5, eps=1e-3, w="zeros"), 0.5, 1.0),
        "rls": (RULES["rls"](0.1), padasip.filters.FilterRLS(K, mu=0.95, eps=0.1, w="zeros"), 1.0, 0.95),
    }
    for name, (rule, other, rate, kept) in cases.items():
        gates = Gates(rate * one, kept * one, one)
        state, _ = scan(rule, rule.init(torch.zeros(K, 1, dtype=torch.float64)), tokens._replace(gates=gates))
        other.run(values, keys)
        memory = state if isinstance(state, torch.Tensor) else state.memory
        np.testing.assert_allclose(memory[:, 0], other.w, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("steady", [False, True])
def test_kalman_is_opencvs(steady):
    """A map to one channel as the state of OpenCV's filter, measured through each key; with its velocity below it."""
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed (extra: peers)")
    g = np.random.default_rng(0)
    keys, values, keep = g.normal(size=(60, K)), g.normal(size=60), 0.97
    width = 2 * K if steady else K
    theirs = cv2.KalmanFilter(width, 1, 0, cv2.CV_64F)
    move = keep * np.eye(width)
    if steady:
        move[:K, K:], move[K:, K:] = keep * np.eye(K), np.eye(K)
    theirs.transitionMatrix = move
    theirs.processNoiseCov = np.diag([0.02] * K + [0.003] * (width - K))
    theirs.measurementNoiseCov = np.full((1, 1), 0.3)
    theirs.errorCovPost, theirs.statePost = 1.5 * np.eye(width), np.zeros((width, 1))
    rule = Kalman(0.3, 0.02, 1.5, 1e6, motion=Steady(0.003) if steady else Still())
    state, one = rule.init(torch.zeros(K, 1, dtype=torch.float64)), torch.ones(1, 1, dtype=torch.float64)
    for key, value in zip(keys, values):
        row = np.pad(key, (0, width - K))[None]
        theirs.measurementMatrix = row
        theirs.predict()
        theirs.correct(np.full((1, 1), value))
        state = rule.write(state, torch.from_numpy(key[None]), value * one, Gates(one, keep * one, one))
        np.testing.assert_allclose(state.memory.numpy(), theirs.statePost, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(state.covariance.numpy(), theirs.errorCovPost, rtol=1e-8, atol=1e-9)
