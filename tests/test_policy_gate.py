"""Write gates, each against its equation in float64."""

import numpy as np
import pytest
import reference_policy as reference
import torch

from streammem.errors import ConfigError
from streammem.policy.gate import GATES, Checked, Confirmed, Evidence, HardConcrete, HardThreshold, Surprise

D, H, N, B, T, V = 5, 3, 2, 4, 9, 6


def gate(name, **options):
    torch.manual_seed(0)
    made = GATES[name](D, H, **options).double().eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
        made.alignment.queries.mul_(3)
    return made


def frames(seed=1):
    return torch.randn(B, T, N, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def told(made, x):
    """Alignments by the reference, [B, T, H, N]."""
    first, _, second = made.alignment.keys
    weights = [p.detach().numpy() for p in (first.weight, first.bias, second.weight, second.bias)]
    queries, bias = made.alignment.queries.detach().numpy(), made.alignment.bias.detach().numpy().reshape(-1)
    out = np.zeros((B, T, H, N))
    for b, t, n in np.ndindex(B, T, N):
        out[b, t, :, n] = reference.aligned(x[b, t, n].numpy(), *weights, queries, bias)
    return out


def same(ours, wanted):
    np.testing.assert_allclose(ours.detach().numpy(), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["soft", "hard", "hard_concrete", "given", "checked"])
def test_a_gate_without_a_state_is_its_equation(name):
    made, x = gate(name), frames()
    a, c = told(made, x), np.linspace(0, 1, B * T).reshape(B, T)
    _, ruled = made.rate((), made.logits(x, torch.from_numpy(c)), torch.zeros(B, T))
    wanted = {
        "soft": reference.sigmoid(a),
        "hard": np.vectorize(reference.hard)(a, 0.5),
        "hard_concrete": np.vectorize(reference.hard_concrete)(a)[0],
        "given": c[:, :, None, None] * reference.sigmoid(a),
        "checked": c[:, :, None, None] * np.vectorize(reference.hard)(a, 0.5),
    }[name]
    same(ruled.rate[..., 0], wanted)
    if name != "soft":
        assert (ruled.rate == 0).any() and (ruled.rate > 0).any()
    if name == "hard_concrete":
        same(ruled.cost[..., 0], np.vectorize(reference.hard_concrete)(a)[1])


def test_evidence_is_its_equation_and_opens_with_hysteresis():
    made, x = gate("evidence", memory_s=0.1, high=0.3, low=-0.1), frames()
    a, elapsed = told(made, x), torch.rand(B, T, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 0.2
    state, rates, held = made.init_state(B, N), [], False
    logits = made.logits(x)
    for t in range(T):
        state, ruled = made.rate(state, logits[:, t], elapsed[:, t])
        rates.append(ruled.rate[..., 0])
        held = held or ((ruled.rate > 0) & (state.score <= 0.3)).any().item()  # open below what it takes to open
    ours = torch.stack(rates, 1)
    for b, h, n in np.ndindex(B, H, N):
        same(ours[b, :, h, n], reference.evidence(a[b, :, h, n], elapsed[b].numpy(), 0.1, 0.3, -0.1))
    assert (ours == 0).any() and (ours > 0).any() and held


def test_evidence_counts_seconds_and_not_frames():
    made = Evidence(D, H, memory_s=0.1).double()
    logits = torch.full((1, H, 1, 1), 2.0, dtype=torch.float64)
    scores = []
    for frames_, elapsed in ((4, 0.05), (20, 0.01)):
        state = made.init_state(1, 1)
        for _ in range(frames_):
            state, _ = made.rate(state, logits, torch.full((1,), elapsed, dtype=torch.float64))
        scores.append(state.score)
    torch.testing.assert_close(*scores, rtol=1e-12, atol=1e-12)


def test_one_false_frame_opens_nothing():
    made = Evidence(D, H)
    low, high = torch.full((1, H, 1, 1), -3.0), torch.full((1, H, 1, 1), 3.0)
    state, at = made.init_state(1, 1), torch.full((1,), 0.04)
    opened = []
    for logits in [low, low, high, low, low, high, high, high]:
        state, ruled = made.rate(state, logits, at)
        opened.append(bool((ruled.rate > 0).all()))
    assert opened == [False] * 6 + [True] * 2


def test_surprise_is_its_equation():
    made, x = gate("surprise"), frames()
    a, error = told(made, x), torch.randn(B, T, H, N, V, dtype=torch.float64)
    _, ruled = made.rate((), made.logits(x), torch.zeros(B), error)
    weight, known = (p.detach().numpy().reshape(-1) for p in (made.weight, made.known))
    for b, t, h, n in np.ndindex(B, T, H, N):
        wanted = reference.surprise(a[b, t, h, n], error[b, t, h, n].numpy(), weight[h], known[h], 0.5, 4.0)
        assert ruled.rate[b, t, h, n, 0].item() == pytest.approx(wanted, rel=1e-10)
    assert (ruled.rate == 0).any() and (ruled.rate > 0).any()


@pytest.mark.parametrize("name", ["hard", "evidence", "surprise"])
def test_a_shut_gate_still_learns_to_open(name):
    made = gate(name, bias=-3.0)
    error = torch.zeros(B, H, N, V, dtype=torch.float64)
    state = made.init_state(B, N)
    _, ruled = made.rate(state, made.logits(frames()[:, 0]), torch.full((B,), 0.04, dtype=torch.float64), error)
    assert (ruled.rate == 0).any()
    (grad,) = torch.autograd.grad(ruled.rate[ruled.rate == 0].sum(), made.alignment.bias)
    assert (grad > 0).any()


def test_a_gate_that_is_not_seen_through_learns_from_what_is_open_alone():
    made = gate("hard", through=False)
    _, ruled = made.rate((), made.logits(frames()), torch.zeros(B, T))
    shut = ruled.rate == 0
    (grad,) = torch.autograd.grad(ruled.rate[shut].sum(), made.alignment.bias, retain_graph=True)
    (rest,) = torch.autograd.grad(ruled.rate[~shut].sum(), made.alignment.bias)
    assert shut.any() and (grad == 0).all() and (rest > 0).all()


def test_hard_concrete_is_open_as_often_as_it_says():
    made = HardConcrete(D, 1).train()
    logits = torch.linspace(-3, 3, 7)[:, None, None, None].expand(7, 20_000, 1, 1)
    _, ruled = made.rate((), logits, torch.zeros(7))
    often = (ruled.rate > 0).float().mean((1, 2, 3))
    torch.testing.assert_close(often, ruled.cost[:, 0, 0, 0], rtol=0, atol=0.02)
    assert (ruled.rate == 0).any() and (ruled.rate == 1).any()


def test_a_threshold_is_raised_from_soft_to_hard():
    made, soft, x = gate("hard"), gate("soft"), frames()
    made.alignment.load_state_dict(soft.alignment.state_dict())
    wanted = soft.rate((), soft.logits(x), torch.zeros(B, T))[1].rate
    for raised in (0.0, 0.5, 1.0):
        made.raised.fill_(raised)
        rate = made.rate((), made.logits(x), torch.zeros(B, T))[1].rate
        assert torch.equal(rate, torch.where(wanted > 0.5 * raised, wanted, 0.0))


def test_confirmed_is_its_equation():
    made, x = gate("confirmed", memory_s=0.1, high=1.0), frames()
    g = torch.Generator().manual_seed(2)
    confidence, elapsed = (torch.rand(B, T, dtype=torch.float64, generator=g) * most for most in (1.0, 0.2))
    a, state, rates = told(made, x), made.init_state(B, N), []
    logits = made.logits(x, confidence)
    for t in range(T):
        state, ruled = made.rate(state, logits[:, t], elapsed[:, t])
        rates.append(ruled.rate[..., 0])
    ours = torch.stack(rates, 1)
    for b, h, n in np.ndindex(B, H, N):
        same(ours[b, :, h, n], reference.confirmed(a[b, :, h, n], confidence[b].numpy(), elapsed[b].numpy(), 0.1, 1.0))
    assert (ours == 0).any() and (ours > 0).any()


@pytest.mark.parametrize("times", [(0, 1, 2), (0, 2), (0, 1), (1, 2)])
def test_two_confident_frames_of_three_open_and_one_does_not(times):
    made = Confirmed(D, H)
    logits = torch.zeros(1, H, 1, 2)
    logits[..., 1] = 1.0
    for count, wanted in ((len(times), True), (1, False)):
        state, before = made.init_state(1, 1), times[0]
        for at in times[:count]:
            state, ruled = made.rate(state, logits, torch.tensor([0.04 * (at - before)]))
            before = at
        assert (ruled.rate > 0).all() == wanted
    _, apart = made.rate(state, logits, torch.tensor([1.0]))  # a second later it counts as alone
    assert (apart.rate == 0).all()


def test_numbers_that_make_no_sense_are_refused():
    for make in (
        lambda: HardThreshold(D, H, threshold=1.5),
        lambda: Surprise(D, H, threshold=-0.1),
        lambda: Checked(D, H, threshold=2.0),
        lambda: Confirmed(D, H, memory_s=0.0),
        lambda: Evidence(D, H, memory_s=0.0),
        lambda: Evidence(D, H, high=0.0, low=1.0),
    ):
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(ConfigError, match="no confidence"):
        GATES["given"](D, H).logits(torch.zeros(1, 1, D))
