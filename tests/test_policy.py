"""MemoryPolicy: its steps are its sequence, faults change nothing but counters, time is what goes by."""

import numpy as np
import pytest
import reference_policy as reference
import torch
from nolook import never_looks

from streammem import tree
from streammem.errors import ConfigError, NoKernel, ShapeError
from streammem.nn.memory_layer import MemoryLayer
from streammem.policy.clock import Admission
from streammem.policy.encoders import ImageEncoder, Observation, Together, TokenEncoder, VectorEncoder
from streammem.policy.gate import GATES
from streammem.policy.gated_memory import GatedMemory
from streammem.policy.heads import ChunkHead, FlowHead, RegressionHead
from streammem.policy.memory_policy import MemoryPolicy, Residual
from streammem.rules import RULES

S, D, H, A, B, T, PERIOD = 6, 16, 2, 3, 3, 13, 0.04
STEPPED = {"titans": 0.05, "yaad": 0.1, "kalman": 1.0, "mesa": 1.0}  # rule: highest rate


def policy(rule="gated_delta", gate="hard", most=1.0, forget_s=None, head=None, admission=None, **options):
    torch.manual_seed(0)
    memory = GatedMemory(D, GATES[gate](D, H, **options), RULES[rule](), (8, 5), forget_s, most=most)
    head = RegressionHead(2 * D, A) if head is None else head
    return MemoryPolicy(VectorEncoder(S, D), memory, head, admission=admission).eval()


def episode(steps=T, batch=B, seed=1):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, steps, S, generator=g)
    confidence = (torch.rand(batch, steps, generator=g) > 0.5).float()
    time_s = (torch.arange(steps, dtype=torch.float64) * PERIOD).expand(batch, -1)
    return Observation(vector=x, confidence=confidence), time_s


def at(observation, t):
    return tree.map(lambda a: a[:, t], observation)


def stepped(net, observation, time_s, reset=None, valid=None, state=None):
    state, actions = net.init_state(len(time_s)) if state is None else state, []
    with torch.no_grad():
        for t in range(time_s.shape[1]):
            if reset is not None:
                state = net.reset(state, reset[:, t])
            state, action = net.step(state, at(observation, t), time_s[:, t], None if valid is None else valid[:, t])
            actions.append(action)
    return state, torch.stack(actions, 1)


def close(a, b, tolerance=1e-5):
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)


def equal(a, b):
    def alike(x, y):
        return torch.equal(torch.nan_to_num(x), torch.nan_to_num(y)) if x.is_floating_point() else torch.equal(x, y)

    return all(alike(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


RESETS = torch.zeros(B, T, dtype=torch.bool)
RESETS[1, 4] = RESETS[2, 9] = RESETS[0, 0] = True
CASES = [("gated_delta", gate, 1.0) for gate in GATES] + [(rule, "hard", most) for rule, most in STEPPED.items()]


@pytest.mark.parametrize("rule, gate, most", CASES)
def test_the_loop_gives_the_actions_of_the_sequence(rule, gate, most):
    net, (observation, time_s) = policy(rule, gate, most, forget_s=2.0), episode()
    state, actions = stepped(net, observation, time_s, RESETS)
    assert state.counters.written.sum() > 0 or gate == "evidence"
    chunks = (None,) if gate == "surprise" or rule in ("titans", "yaad", "kalman") else (None, 1, 5, 64)
    for chunk in chunks:
        whole = net.sequence(net.init_state(B), observation, time_s, reset=RESETS, chunk=chunk)
        close(whole, (state, actions))


@pytest.mark.parametrize("chunk", [None, 4])
def test_segments_of_odd_lengths_carry_the_state(chunk):
    net, (observation, time_s) = policy(forget_s=2.0), episode()
    _, wanted = stepped(net, observation, time_s, RESETS)
    state, parts, start = net.init_state(B), [], 0
    for length in (1, 5, 3, 1, 3):  # T = 1 among them
        span = slice(start, start + length)
        part = tree.map(lambda a, s=span: a[:, s], observation)
        state, actions = net.sequence(state, part, time_s[:, span], reset=RESETS[:, span], chunk=chunk)
        parts.append(actions)
        state, start = tree.map(torch.Tensor.detach, state), start + length
    close(torch.cat(parts, 1), wanted)


@pytest.mark.parametrize("chunk", [None, 4])
def test_faults_in_a_sequence_are_those_of_the_loop(chunk):
    net, (observation, time_s) = policy(forget_s=2.0), episode()
    time_s, valid = time_s.clone(), torch.ones(B, T, dtype=torch.bool)
    valid[0, 3:6] = False
    time_s[1, 5], time_s[1, 8] = time_s[1, 4], time_s[1, 6] + 0.001  # a duplicate, a late one
    observation.vector[2, 7, 2] = torch.nan
    loop, sequence = (
        stepped(net, observation, time_s, valid=valid),
        net.sequence(net.init_state(B), observation, time_s, valid=valid, chunk=chunk),
    )
    close(loop, sequence)
    counters = loop[0].counters
    assert counters.invalid.tolist() == [3, 0, 0] and counters.nonfinite.tolist() == [0, 0, 1]
    assert counters.duplicate.tolist() == [0, 1, 0] and counters.late.tolist() == [0, 1, 0]
    assert counters.taken.tolist() == [10, 12, 12]


def test_the_memory_is_its_equation():
    net, (observation, time_s) = policy(gate="soft", forget_s=0.5).double(), episode()
    observation = tree.map(torch.Tensor.double, observation)
    memory, x = net.memory, net.encoder(observation)
    frames = memory.writable(x, None)
    query = memory.layer.tokens((), x)[1].query.transpose(0, 1)
    elapsed = np.array([0.0] + [PERIOD] * (T - 1))
    _, h, ruled = net.features(net.init_state(B), observation, time_s)
    heads = []
    for head in range(H):
        one = [a[0, :, head, 0].detach().numpy() for a in (frames.key, frames.value, query)]
        heads.append(reference.gated_delta(*one, ruled.rate[0, :, head, 0, 0].detach().numpy(), elapsed, 1 / 0.5))
    wanted = np.concatenate(heads, -1) @ memory.layer.out.weight.detach().numpy().T
    np.testing.assert_allclose(h[0, :, D:].detach().numpy(), wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("rule, most", [("gated_delta", 1.0), *STEPPED.items()])
def test_a_thousand_shut_frames_leave_no_trace(rule, most):
    net, (observation, _) = policy(rule, "given", most), episode()
    state, _ = stepped(net, *episode())
    shut = at(observation, 0)._replace(confidence=torch.zeros(B))
    before = state.memory.memory
    with torch.no_grad():
        for t in range(T, T + (1_000 if rule == "gated_delta" else 20)):
            state = net.observe(state, shut, torch.full((B,), t * PERIOD, dtype=torch.float64))
    assert equal(state.memory.memory, before)
    assert state.counters.written.tolist() == episode()[0].confidence.sum(1).long().tolist()


def test_forgetting_counts_seconds_and_not_calls():
    net, (observation, time_s) = policy(gate="given", forget_s=0.5), episode()
    start, _ = stepped(net, observation, time_s)
    shut, ends = at(observation, 0)._replace(confidence=torch.zeros(B)), []
    for calls in (1, 10):
        state = start
        for i in range(calls):
            when = time_s[:, -1] + 1.0 * (i + 1) / calls
            state = net.observe(state, shut, when)
        ends.append(net.memory.read(state.memory, start.seen))
    close(*ends)
    close(ends[0], np.exp(-1.0 / 0.5).item() * net.memory.read(start.memory, start.seen), 1e-4)


def test_nothing_that_is_not_finite_reaches_the_state():
    net, (observation, time_s) = policy("gated_delta", "soft"), episode()
    state, _ = stepped(net, observation, time_s)
    for poison in (torch.nan, torch.inf, -torch.inf, 3e38):
        bad = Observation(vector=torch.full((B, S), poison))
        after = net.observe(state, bad, time_s[:, -1] + 1)
        assert all(leaf.isfinite().all() for leaf in tree.leaves((after.memory, after.seen))), poison
        assert net.act(after, bad).isfinite().all() and net.act(after).isfinite().all()
    at_nan = net.observe(state, at(observation, 0), torch.full((B,), torch.nan, dtype=torch.float64))
    assert equal(at_nan._replace(counters=state.counters), state) and at_nan.counters.invalid.tolist() == [1] * B


def test_a_memory_that_would_diverge_is_refused():
    net, (observation, time_s) = policy("titans", "soft", most=50.0), episode(40)
    state, actions = stepped(net, tree.map(lambda a: 10 * a, observation), time_s)
    assert state.counters.refused.sum() > 0 and actions.isfinite().all()
    assert all(leaf.isfinite().all() for leaf in tree.leaves(state.memory))


def test_what_is_refused_changes_a_counter_and_nothing_else():
    net, (observation, time_s) = policy(admission=Admission(late_limit_s=0.1, period_s=PERIOD)), episode()
    state, _ = stepped(net, observation, time_s)
    now, seen = time_s[:, -1], at(observation, 3)
    faults = {
        "duplicate": (seen, now, None),
        "stale": (seen, now - 0.2 + 0.001, None),
        "invalid": (seen, now + 1, torch.zeros(B, dtype=torch.bool)),
        "nonfinite": (seen._replace(vector=seen.vector * torch.nan), now + 1, None),
    }
    for name, fault in faults.items():
        after = net.observe(state, *fault)
        assert getattr(after.counters, name).tolist() == [1] * B, name
        assert equal(after._replace(counters=state.counters), state), name
    gap = net.observe(state, seen, now + 4 * PERIOD)
    assert gap.counters.missing.tolist() == [3] * B and state.counters.missing.tolist() == [0] * B


def test_a_late_observation_is_written_but_not_acted_on():
    net, (observation, time_s) = policy(gate="given"), episode()
    state, _ = stepped(net, observation, time_s)
    taught = at(observation, 3)._replace(confidence=torch.ones(B))
    after = net.observe(state, taught, time_s[:, -1] - 0.021)
    assert after.counters.late.tolist() == [1] * B and torch.equal(after.seen, state.seen)
    assert (after.counters.written - state.counters.written).tolist() == [1] * B
    assert not equal(after.memory.memory, state.memory.memory)


def test_one_stream_starts_over_by_itself():
    net, (observation, time_s) = policy(), episode()
    state, _ = stepped(net, observation, time_s)
    after = net.reset(state, torch.tensor([False, True, False]))
    fresh = net.init_state(B)
    for row, wanted in enumerate((state, fresh, state)):
        pick = lambda s, row=row: tree.map(lambda a: a[row], s)  # noqa: E731
        assert equal(pick(after), pick(wanted))
    with pytest.raises(ShapeError, match="mask"):
        net.reset(state, torch.tensor([1, 0, 0]))


@pytest.mark.parametrize("gate", GATES)
def test_the_host_never_looks(gate):
    net, (observation, time_s) = policy(gate=gate, forget_s=2.0), episode()
    for p in net.parameters():
        p.requires_grad_(False)
    state, mask = net.init_state(B), torch.tensor([True, False, True])
    names, values = zip(*[*net.named_parameters(), *net.named_buffers()])

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, state, seen, time_s, mask):
            state = self.net.reset(state, mask)
            return self.net.step(state, seen, time_s, mask)

    wrapped = Step()

    def step(parameters, *arguments):
        named = {f"net.{name}": value for name, value in zip(names, parameters)}
        return torch.func.functional_call(wrapped, named, arguments)

    never_looks(step, values, state, at(observation, 0), time_s[:, 0], mask)


def test_gradients_reach_every_parameter_through_segments():
    for gate in GATES:
        net, (observation, time_s) = policy(gate=gate, forget_s=2.0).train(), episode()
        if gate == "evidence":
            net.memory.gate.high = net.memory.gate.low = -9.0
        _, h, ruled = net.features(net.init_state(B), observation, time_s, chunk=None if gate == "surprise" else 4)
        loss = net.head.loss(h, torch.zeros(B, T, A), torch.ones(B, T)) + 0.1 * ruled.cost.mean()
        loss.backward()
        idle = {name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
        assert idle <= {f"memory.layer.rates.momentum.{part}" for part in ("weight", "bias")}, (gate, idle)
        assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_the_wrapper_changes_nothing_at_the_start():
    memory = MemoryLayer(D, H, RULES["delta"](), torch.randn(H, 4, 4))
    wrapped, x = Residual(memory, 0.0), torch.randn(B, 2, D)
    assert torch.equal(wrapped(wrapped.init_state(B), x)[1], x)
    wrapped, steps = Residual(memory), torch.randn(B, T, D)
    state, outs = wrapped.init_state(B), []
    for t in range(T):
        state, y = wrapped(state, steps[:, t : t + 1])
        outs.append(y)
    close(wrapped.sequence(wrapped.init_state(B), steps, chunk=4), (state, torch.cat(outs, 1)))
    said = memory.sequence(memory.init_state(B), steps)[1]
    close(torch.cat(outs, 1), steps + np.tanh(1e-3).item() * said)
    (grad,) = torch.autograd.grad(torch.cat(outs, 1).square().sum(), wrapped.alpha)
    assert grad.abs() > 0


def test_images_and_tokens_are_observations_too():
    torch.manual_seed(0)
    encoder = Together(VectorEncoder(S, D, 8), ImageEncoder(D, 4), TokenEncoder(2, D))
    memory = GatedMemory(D, GATES["soft"](D, H), RULES["gated_delta"](), (8, 5))
    net = MemoryPolicy(encoder, memory, RegressionHead(2 * 5 * D, A), tokens=5).eval()
    seen = Observation(torch.randn(B, T, S), torch.rand(B, T, 3, 17, 23), torch.randn(B, T, 3, 2))
    time_s = episode()[1]
    for chunk in (None, 4):
        close(net.sequence(net.init_state(B), seen, time_s, chunk=chunk), stepped(net, seen, time_s))
    seen.image[1, 4, 2, 3, 3] = torch.nan
    assert stepped(net, seen, time_s)[0].counters.nonfinite.tolist() == [0, 1, 0]
    with pytest.raises(ShapeError, match="tokens = 1"):
        MemoryPolicy(encoder, memory, RegressionHead(2 * D, A)).observe(net.init_state(B), at(seen, 0), time_s[:, 0])


def test_an_image_encoder_says_where_things_are():
    torch.manual_seed(0)
    encoder = ImageEncoder(8, width=4, stages=2)
    optimiser = torch.optim.Adam(encoder.parameters(), 1e-2)
    g = torch.Generator().manual_seed(0)
    for i in range(401):
        where = torch.randint(1, 15, (64, 2), generator=g)
        image = -torch.ones(64, 3, 16, 16)
        image[torch.arange(64), :, where[:, 0], where[:, 1]] = 1
        loss = (encoder(Observation(image=image))[:, 0, :2] - where / 15).square().mean()
        if i < 400:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert loss.sqrt() < 0.1  # of the width; guessing the middle gives .27


def test_heads_learn_what_they_are_for():
    torch.manual_seed(0)
    h, target = torch.randn(256, D), torch.randn(256, A)
    for head, wanted in (
        (RegressionHead(D, A), target),
        (ChunkHead(D, A, 4), target[:, None].expand(-1, 4, -1)),
        (FlowHead(D, A), target),
    ):
        shape = (256, 4, A) if isinstance(head, ChunkHead) else (256, A)
        assert head(h).shape == shape
        weight = torch.ones(256)
        weight[128:] = 0  # they do not count, whatever they are
        broken = torch.where(weight.reshape(-1, *[1] * (wanted.ndim - 1)) > 0, wanted, 1e3)
        torch.manual_seed(1)
        first = head.loss(h, broken, weight)
        torch.manual_seed(1)
        if not isinstance(head, FlowHead):  # whose noise is another for fewer rows
            torch.testing.assert_close(first, head.loss(h[:128], wanted[:128], weight[:128]), rtol=1e-4, atol=1e-4)
        optimiser = torch.optim.Adam(head.parameters(), 3e-3)
        for _ in range(60):
            optimiser.zero_grad()
            loss = head.loss(h, broken, weight)
            loss.backward()
            optimiser.step()
        assert loss < 0.7 * first


def test_a_flow_head_has_several_answers():
    torch.manual_seed(0)
    head, h = FlowHead(1, 1, steps=10, hidden=64), torch.zeros(512, 1)
    optimiser = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(300):
        target = torch.randint(0, 2, (512, 1)) * 2.0 - 1
        optimiser.zero_grad()
        head.loss(h, target, torch.ones(512)).backward()
        optimiser.step()
    with torch.no_grad():
        actions = head(h, torch.randn(512, 1))
    assert ((actions.abs() - 1).abs() < 0.3).float().mean() > 0.8  # the mean of both answers, 0, is neither
    assert 0.35 < (actions > 0).float().mean() < 0.65


def test_a_policy_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="keeps everything"):
        policy("delta", forget_s=1.0)
    with pytest.raises(ConfigError, match="late_limit_s"):
        Admission(late_limit_s=-1)
    net, (observation, time_s) = policy("comba"), episode()
    with pytest.raises(NoKernel, match="chunk=None"):
        net.sequence(net.init_state(B), observation, time_s, chunk=4)
    net = policy(gate="surprise")
    with pytest.raises(ConfigError, match="asks the memory"):
        net.sequence(net.init_state(B), observation, time_s, chunk=4)
