"""The tutorial's figures, with the library's rules; the whole of them is `streammem bench targets`."""

import pytest
import torch

from apps.bench import characters, drift, recall, sureness
from apps.bench.drift import LEAST_SQUARES, Candidate
from apps.bench.streams import RECIPES, stream
from streammem.rules import RULES

TUTORIAL = {
    "uniform": (Candidate(LEAST_SQUARES), 0.9926),
    "decayed": (Candidate(LEAST_SQUARES, retention=0.95), 0.2947),
    "implicit": (Candidate(RULES["longhorn"]()), 0.2969),
}


@pytest.mark.parametrize("candidate, figure", TUTORIAL.values(), ids=TUTORIAL)
def test_the_drift_table_of_the_tutorial(candidate, figure):
    error = drift.follow(candidate, stream(RECIPES["S1 tutorial"], [2])).error[-500:].mean().item()
    assert error == pytest.approx(figure, abs=1e-3)


def test_titans_recalls_sixteen_pairs():
    for seed in range(10):
        before, after = recall.titans_recall(seed)
        assert before == pytest.approx(1 / 32, rel=1e-6) and after < before / 8


def test_momentum_overwrites_softly():
    shares = [recall.momentum_overwrites(writes, 30) for writes in (1, 2, 4)]
    assert shares == [pytest.approx(x, abs=0.08) for x in (1.0, 0.93, 0.19)]


def test_three_characters():
    found, truth = characters.fits(range(4))
    smoother, once, batch = found["smoother"], found["descent, 1"], found["batch"]
    assert (smoother.roughness > 4 * batch.roughness).all() and (smoother.roughness > 11 * once.roughness).all()
    assert (once.slope < torch.minimum(smoother.slope, batch.slope)).all()
    assert characters.learned_bandwidth() == pytest.approx(0.583, abs=0.005)


def test_the_bank_is_near_the_best_on_two_streams_that_want_opposite_settings():
    names = ["S3 small noise", "S6 outliers"]
    s = drift.joined(names, range(3))
    bank = drift.by_stream(Candidate(RULES["kalman_bank"]()), names, s)
    for name, r, ratio, huber in (("S3 small noise", 1e-4, 1.0, None), ("S6 outliers", 1e-2, 0.1, 1.0)):
        tuned = Candidate(RULES["kalman"](r, ratio * r, 1.0, 10.0, huber))
        assert bank[name][0] < 1.15 * drift.by_stream(tuned, names, s)[name][0]


def test_the_evidence_gate_ignores_a_spike_and_sees_a_change():
    false, caught, median = sureness.openings(200)
    assert false <= 0.002 and caught >= 0.99 and median <= 5
