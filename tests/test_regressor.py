"""Regressor: the posterior it should have, changes it should follow, faults it should survive."""

import numpy as np
import pytest
import torch

from apps.examples import payload
from streammem.errors import ConfigError, ShapeError
from streammem.policy.regressor import Regressor
from streammem.rules.kalman import Surprise

K, V, T, NOISE, PRIOR = 3, 2, 25, 0.3, 5.0


def pairs(seed=0):
    rng = np.random.default_rng(seed)
    x, truth = rng.standard_normal((T, K)), rng.standard_normal((K, V))
    return x, x @ truth + NOISE * rng.standard_normal((T, V)), rng.uniform(0.1, 1, T)


def test_it_is_the_posterior_of_bayes():
    x, y, share = pairs()
    regressor = Regressor(K, NOISE, V, prior=PRIOR)
    for t in range(T):
        regressor.observe(torch.from_numpy(x[t]), torch.from_numpy(y[t]), confidence=float(share[t]))
    precision = np.eye(K) / PRIOR**2 + (x.T * share) @ x / NOISE**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (x.T * share) @ y / NOISE**2
    ours, deviation = regressor.coefficients
    np.testing.assert_allclose(ours[0].numpy(), mean, rtol=1e-9)
    np.testing.assert_allclose(deviation[0].numpy(), np.sqrt(np.diag(covariance)), rtol=1e-9)
    value, variance = regressor.read(torch.from_numpy(x[0]))
    np.testing.assert_allclose(value.numpy(), x[0] @ mean, rtol=1e-9)
    np.testing.assert_allclose(variance.numpy(), [x[0] @ covariance @ x[0] + NOISE**2] * V, rtol=1e-9)


def test_drift_counts_seconds_and_not_observations():
    spreads = []
    for calls in (1, 10):
        regressor = Regressor(K, NOISE, drift_per_s=0.5, prior=PRIOR)
        for t, (x, y) in enumerate(zip(*pairs()[:2])):
            regressor.observe(torch.from_numpy(x), float(y[0]), time_s=0.1 * t)
        for i in range(calls):  # time goes by, nothing is taught
            regressor.observe(torch.ones(K), 0.0, confidence=0.0, time_s=2.4 + 1.0 * (i + 1) / calls)
        regressor.observe(torch.ones(K), 1.0, time_s=3.5)
        spreads.append(regressor.coefficients[1])
    torch.testing.assert_close(*spreads, rtol=1e-9, atol=0)
    still = Regressor(K, NOISE, prior=PRIOR)
    for t, (x, y) in enumerate(zip(*pairs()[:2])):
        still.observe(torch.from_numpy(x), float(y[0]), time_s=0.1 * t)
    assert (spreads[0] > still.coefficients[1]).all()


def test_faults_teach_nothing_and_are_counted():
    regressor, clean = Regressor(K, NOISE, batch=2, prior=PRIOR), Regressor(K, NOISE, batch=2, prior=PRIOR)
    x, y = torch.randn(2, K), torch.randn(2, 1)
    for one in (regressor, clean):
        one.observe(x, y)
    x[0, 1], y[1, 0] = torch.nan, torch.inf
    before = regressor.coefficients
    regressor.observe(x, y)
    regressor.observe(torch.randn(2, K), torch.randn(2, 1), confidence=torch.tensor([torch.nan, 1.5]))
    regressor.observe(torch.randn(2, K), torch.randn(2, 1), confidence=0.0)
    assert all(torch.equal(a, b) for a, b in zip(regressor.coefficients, before))
    assert regressor.state.refused.tolist() == [2, 2] and regressor.state.taken.tolist() == [1, 1]
    regressor.reset(torch.tensor([True, False]))
    assert torch.equal(regressor.coefficients[0][0], torch.zeros(K, 1).double())
    assert torch.equal(regressor.coefficients[0][1], clean.coefficients[0][1])


def test_a_payload_that_changes_in_mid_run_is_identified():
    rows = payload.identified()
    by_time = {round(time_s, 2): (truth, estimate, deviation) for time_s, truth, estimate, deviation in rows}
    for time_s, within in ((5.0, 0.03), (9.9, 0.03), (12.0, 0.1), (19.9, 0.05)):
        truth, estimate, deviation = by_time[time_s]
        assert abs(estimate - truth) < within and abs(estimate - truth) < 4 * deviation, time_s


def test_without_a_look_for_jumps_the_change_is_smeared():
    found = []
    for jumps in (None, Surprise(boost=0.05)):
        regressor = Regressor(1, 0.1, prior=3.0, jumps=jumps)
        for t in range(400):
            regressor.observe(torch.ones(1), 1.0 if t < 300 else 2.0)
        found.append(regressor.coefficients[0].item())
    assert found[0] < 1.4 and abs(found[1] - 2) < 0.1


def test_outliers_weigh_less_where_they_should():
    found = []
    for huber in (None, 1.5):
        regressor, g = Regressor(1, 0.1, prior=3.0, huber=huber), torch.Generator().manual_seed(0)
        for t in range(200):
            regressor.observe(torch.ones(1), 30.0 if t % 20 == 9 else 1 + 0.1 * torch.randn((), generator=g))
        found.append(abs(regressor.coefficients[0].item() - 1))
    assert found[1] < 0.1 < found[0]


def test_what_makes_no_sense_is_refused():
    for options in ({"noise": 0.0}, {"noise": 1.0, "drift_per_s": -1.0}, {"noise": 1.0, "values": 0}):
        with pytest.raises(ConfigError):
            Regressor(K, **options)
    with pytest.raises(ShapeError, match="features"):
        Regressor(K, NOISE).observe(torch.zeros(K + 1), 0.0)
    with pytest.raises(ShapeError, match="target"):
        Regressor(K, NOISE, batch=2).observe(torch.zeros(2, K), 0.0)
