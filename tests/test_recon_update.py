"""Update rules: each against its equation in numpy, and what all of them must keep to."""

import pickle

import numpy as np
import pytest
import reference_recon as reference
import torch
from nolook import never_looks

from streammem import tree
from streammem.errors import ConfigError
from streammem.recon.adaptive import FrameGate, Kalman, Orthogonal, TemporalSpatial
from streammem.recon.state import Evidence
from streammem.recon.update import Confidence, Constant, Replace
from streammem.recon.updates import UPDATES, TopK

T, B, S, D, E = 9, 3, 7, 5, 11
every = pytest.mark.parametrize("rule", [make() for make in UPDATES.values()], ids=list(UPDATES))


def drawn(seed=0, frames=T):
    """Candidates, summaries, logits and reads of T views."""
    g = torch.Generator().manual_seed(seed)
    draw = [torch.randn(frames, B, *shape, generator=g, dtype=torch.float64) for shape in ((S, D), (E,), (S,), (S, D))]
    return list(zip(*draw))


def followed(rule, views, own=None, tokens=None, since=0):
    """State after each view; streams start at the first."""
    tokens = torch.zeros(B, S, D, dtype=torch.float64) if tokens is None else tokens
    own = rule.init(tokens, E) if own is None else own
    found = []
    for t, (candidate, summary, logit, read) in enumerate(views, since):
        evidence = Evidence(torch.full((B,), t == 0), summary, logit, read)
        own, tokens, gate = rule.update(own, tokens, candidate, evidence)
        found.append((own, tokens, gate))
    return found


def compared(rule, reference_of):
    views = drawn()
    ours = followed(rule, views)[-1][1]
    candidates, summaries, _, reads = (torch.stack(x).numpy() for x in zip(*views))
    for b in range(B):
        wanted = reference_of(candidates[:, b].copy(), summaries[:, b], reads[:, b])
        np.testing.assert_allclose(ours[b].numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_kalman_by_its_equation():
    compared(Kalman(0.2, 0.7, 0.8), lambda c, s, r: reference.kalman(c, 0.2, 0.7, 0.8))


def test_frame_by_its_equation():
    compared(FrameGate(0.4, 0.8), lambda c, s, r: reference.frame_gate(c, s, 0.4, 0.8))


def test_temporal_spatial_by_its_equation():
    compared(TemporalSpatial(0.8), lambda c, s, r: reference.temporal_spatial(c, r, 0.8))


def test_orthogonal_by_its_equation():
    compared(Orthogonal(0.4, 0.6), lambda c, s, r: reference.orthogonal(c, 0.4, 0.6))


def test_topk_by_its_equation():
    compared(TopK(0.6), lambda c, s, r: reference.topk(c, 0.6))


def test_topk_keeps_the_others_exactly():
    rule = TopK(0.5, within=Constant(0.3))
    (_, before, _), (_, after, gate) = followed(rule, drawn())[-2:]
    kept = gate == 0
    assert kept.sum(-1).tolist() == [S - round(0.5 * S)] * B
    assert torch.equal(after[kept], before[kept]) and (after[~kept] != before[~kept]).all()


def test_confidence_by_its_equation():
    views = drawn()
    found = followed(Confidence(), views)
    for t in range(1, T):
        candidate, _, logit, _ = views[t]
        gate = 1 / (1 + np.exp(-logit.numpy()))[..., None]
        wanted = candidate.numpy() * gate + found[t - 1][1].numpy() * (1 - gate)
        np.testing.assert_allclose(found[t][1].numpy(), wanted, rtol=1e-12)


def test_confidence_that_is_sure_is_replace_bit_for_bit():
    views = [(c, s, torch.full_like(x, torch.inf), r) for c, s, x, r in drawn()]
    for ours, theirs in zip(followed(Confidence(), views), followed(Replace(), views)):
        assert torch.equal(ours[1], theirs[1]) and (ours[2] == 1).all()


def test_constant_of_one_is_replace_bit_for_bit():
    views = drawn()
    for ours, theirs in zip(followed(Constant(1.0), views), followed(Replace(), views)):
        assert torch.equal(ours[1], theirs[1])


def test_a_steady_filter_has_the_gain_of_its_equation():
    views = [(c * 0 + t % 2, s, x, r) for t, (c, s, x, r) in enumerate(drawn(frames=60))]  # the same drift for ever
    gain = followed(Kalman(0.1), views)[-1][2]
    torch.testing.assert_close(gain**2 / (1 - gain), torch.full_like(gain, 0.1), rtol=1e-6, atol=0)


@every
def test_the_first_view_is_taken_whole(rule):
    views = drawn()
    own, tokens, gate = followed(rule, views)[0]
    assert torch.equal(tokens, views[0][0]) and (gate == 1).all()


@every
def test_streams_are_independent(rule):
    views, others = drawn(), drawn(1)
    mixed = [tree.map(lambda a, b: torch.cat([a[:1], b[1:]]), v, o) for v, o in zip(views, others)]
    for whole, part in zip(followed(rule, views), followed(rule, mixed)):
        assert torch.equal(whole[1][0], part[1][0])


@every
def test_it_goes_on_from_where_it_was(rule):
    views = drawn()
    whole, half = followed(rule, views), followed(rule, views[:4])
    rest = followed(rule, views[4:], *half[-1][:2], since=4)
    assert torch.equal(whole[-1][1], rest[-1][1])


@every
def test_arguments_stay_as_they_were_and_size_stays(rule):
    views, own = drawn(), rule.init(torch.zeros(B, S, D, dtype=torch.float64), E)
    before = tree.clone((views[0], own))
    followed(rule, views[:1], own)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves((views[0], own))))
    assert {tree.nbytes(x[0]) for x in followed(rule, views)} == {tree.nbytes(own)}


@every
def test_a_standing_scene_stays_finite(rule):
    views = [drawn()[0]] * 12
    for own, tokens, gate in followed(rule, views):
        assert tokens.isfinite().all() and all(x.isfinite().all() for x in tree.leaves(own))
        assert ((gate >= 0) & (gate <= 1 + 1e-12)).all()


@every
def test_the_host_never_looks(rule):
    candidate, summary, logit, read = drawn()[0]
    own = rule.init(candidate, E)
    never_looks(rule.update, own, candidate, candidate + 1, Evidence(torch.zeros(B) > 1, summary, logit, read))


@every
def test_a_rule_is_a_frozen_value(rule):
    assert pickle.loads(pickle.dumps(rule)) == rule and hash(rule) == hash(type(rule)()) and repr(rule)


@pytest.mark.parametrize(
    "make", [lambda: Constant(0), lambda: Constant(1.5), lambda: Kalman(0), lambda: Kalman(memory=1), lambda: TopK(0)]
)
def test_impossible_numbers_are_refused(make):
    with pytest.raises(ConfigError, match="wanted"):
        make()
