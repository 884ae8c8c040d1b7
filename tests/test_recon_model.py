"""The network as a step: streams, masks, sequences, memory; its parts against their definitions."""

import dataclasses

import numpy as np
import pytest
import reference_recon as reference
import torch
from nolook import never_looks
from torch.profiler import ProfilerActivity, profile

from streammem import store, tree
from streammem.errors import ConfigError, ShapeError
from streammem.recon import blocks
from streammem.recon.blocks import CrossAttention, SelfAttention
from streammem.recon.config import PRESETS, ReconConfig
from streammem.recon.dpt import doubled
from streammem.recon.model import ReconModel, revisit
from streammem.recon.rope import grid, rotate, rotate_in_half, rotation
from streammem.recon.state import View
from streammem.recon.update import Confidence, Constant, Replace
from streammem.recon.updates import UPDATES
from streammem.scan import scan
from streammem.stream import Stream
from streammem.types import Frame

CONFIG = PRESETS["tiny_linear"]
SMALL = dataclasses.replace(CONFIG, enc_depth=1, ray_enc_depth=1, rope_half_rounding=False)
H, W = 48, 32  # portrait, and three patches by two


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    return ReconModel(SMALL, Confidence()).requires_grad_(False)


def frames(count, batch=2, seed=0):
    """Frames of noise."""
    g, yes = torch.Generator().manual_seed(seed), torch.ones(batch, dtype=torch.bool)
    time = torch.zeros(batch, dtype=torch.float64)
    images = torch.rand(count, batch, 3, H, W, generator=g) * 2 - 1
    return [Frame(image, None, None, None, time, yes, ~yes) for image in images]


def rays(batch=2, seed=5):
    """A map of rays."""
    return torch.randn(batch, H, W, 6, generator=torch.Generator().manual_seed(seed))


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


# -- parts against their definitions


@pytest.mark.parametrize("heads, tokens, width", [(1, 1, 4), (3, 7, 20), (4, 5, 16)])
def test_rotary_positions_by_their_definition(heads, tokens, width):
    x = torch.randn(2, heads, tokens, width, dtype=torch.float64)
    position = torch.randint(-1, 30, (tokens, 2))
    position[0] = -1
    ours = rotate(x, rotation(position, width, x.dtype))
    for b in range(2):
        np.testing.assert_allclose(ours[b], reference.rope(x[b].numpy(), position.numpy()), rtol=1e-12, atol=1e-12)


def test_only_differences_of_positions_matter():
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)
    near = [
        (rotate(q, rotation(a, 16, q.dtype)) * rotate(k, rotation(b, 16, q.dtype))).sum()
        for a, b in (
            (torch.tensor([[-1, -1]]), torch.tensor([[3, 5]])),
            (torch.tensor([[0, 0]]), torch.tensor([[4, 6]])),
        )
    ]
    torch.testing.assert_close(*near, rtol=1e-12, atol=1e-12)


def test_half_rounding_goes_through_float16():
    x, by = torch.randn(1, 2, 6, 8), rotation(grid(2, 3), 8, torch.float32)
    ours = rotate_in_half(x, by)
    assert torch.equal(ours, ours.half().float()) and ours.dtype == x.dtype
    assert 1e-5 < (ours - rotate(x, by)).abs().max() < 5e-3


def test_self_attention_by_its_definition():
    layer, position = SelfAttention(24, 2).double(), grid(2, 3)
    x = torch.randn(1, 6, 24, dtype=torch.float64)
    q, k, v = (a.unflatten(-1, (2, -1)).transpose(1, 2)[0].detach().numpy() for a in layer.qkv(x).chunk(3, -1))
    place = position.numpy()
    read = reference.attention(reference.rope(q, place), reference.rope(k, place), v)
    wanted = layer.proj(torch.from_numpy(read).transpose(0, 1).flatten(1))
    torch.testing.assert_close(layer(x, rotation(position, 12, x.dtype))[0], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 3])
def test_the_gate_from_mean_keys_is_that_of_full_maps(heads):
    """Three layers; the context's first token stands at (-1, -1)."""
    dim, place = 12 * heads, torch.cat([torch.full((1, 2), -1), grid(2, 2)])
    own, layers, logits = grid(1, 7), [CrossAttention(dim, heads).double() for _ in range(3)], []
    x, context = torch.randn(1, 7, dim, dtype=torch.float64), torch.randn(1, 5, dim, dtype=torch.float64)
    for layer in layers:
        by = rotation(own, 12, x.dtype), rotation(place, 12, x.dtype)
        logits.append(layer(x, context, *by, frozenset({"logit"}))[1].logit)
    maps = []
    for layer in layers:
        q, k = (
            project(a).unflatten(-1, (heads, -1)).transpose(1, 2)[0].detach().numpy()
            for project, a in ((layer.projq, x), (layer.projk, context))
        )
        maps.append(reference.maps(reference.rope(q, own.numpy()), reference.rope(k, place.numpy())))
    ours = (sum(logits) / 3).sigmoid()[0].detach().numpy()
    np.testing.assert_allclose(ours, reference.gate(maps), rtol=1e-12)


@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 3), (5, 4)])
def test_doubling_by_its_definition(rows, columns):
    x = torch.randn(1, 1, rows, columns, dtype=torch.float64)
    np.testing.assert_allclose(doubled(x)[0, 0], reference.doubled(x[0, 0].numpy()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [(16, 16), (48, 80), (80, 48)])
def test_the_dense_head_takes_odd_grids(size):
    head = ReconModel(dataclasses.replace(PRESETS["tiny_dpt"], enc_depth=1)).requires_grad_(False)
    yes = torch.ones(1, dtype=torch.bool)
    readout = head(head.init_state(1), View(torch.randn(1, 3, *size), None, yes, ~yes, yes, ~yes))[1]
    assert readout.points_world.shape == (1, *size, 3) and readout.confidence_world.shape == (1, *size)


# -- the step


@pytest.mark.parametrize("rule", UPDATES)
def test_a_step_is_a_sequence_is_a_resumed_sequence(model, tmp_path, monkeypatch, rule):
    monkeypatch.setattr(model, "update", UPDATES[rule]())
    views, state, readouts = frames(5), model.init_state(2), []
    for view in views:
        state, readout = model(state, view)
        readouts.append(readout)
    scanned, stacked = scan(model, model.init_state(2), views)
    assert same(state, scanned) and all(same(r, tree.map(lambda x, t=t: x[t], stacked)) for t, r in enumerate(readouts))
    half, _ = scan(model, model.init_state(2), views[:3])
    store.save(tmp_path / "state", half, schema=1, rule=repr(model.update), fingerprint=store.fingerprint(model))
    stored = store.load(tmp_path / "state", schema=1, rule=repr(model.update), fingerprint=store.fingerprint(model))
    resumed, _ = scan(model, stored.into(model.init_state(2)), views[3:])
    assert same(resumed, state)


@pytest.mark.parametrize("rule", UPDATES)
def test_streams_of_a_batch_are_independent(model, monkeypatch, rule):
    monkeypatch.setattr(model, "update", UPDATES[rule]())
    both, alone = frames(4), [tree.map(lambda x: x[1:], view) for view in frames(4)]
    many, one = (scan(model, model.init_state(n), views) for n, views in ((2, both), (1, alone)))
    for a, b in zip(tree.leaves(tree.map(lambda x: x[1:], many[0])), tree.leaves(one[0])):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    other = [view._replace(image=torch.cat([view.image[1:], view.image[1:]])) for view in both]
    assert same(
        tree.map(lambda x: x[1:], scan(model, model.init_state(2), other)[0]), tree.map(lambda x: x[1:], many[0])
    )


def test_a_forced_gate_is_replace_bit_for_bit(model, monkeypatch):
    views = frames(4)
    monkeypatch.setattr(model, "update", Replace())
    plain = scan(model, model.init_state(2), views)
    monkeypatch.setattr(model, "update", Confidence())
    gated = scan(model, model.init_state(2), views)
    assert not torch.equal(gated[0].tokens, plain[0].tokens)
    monkeypatch.setattr(blocks, "mean_logit", lambda q, k: torch.full_like(q[:, 0, :, 0], torch.inf))
    forced = scan(model, model.init_state(2), views)
    assert same(forced, plain)


def test_each_stream_has_its_own_gate(model):
    state, readouts = scan(model, model.init_state(2), frames(3))
    assert (readouts.gate[1:, 0] != readouts.gate[1:, 1]).all() and (readouts.gate[0] == 1).all()


def test_outputs_do_not_depend_on_what_is_written_now(model, monkeypatch):
    views, state = frames(3), scan(model, model.init_state(2), frames(2, seed=3))[0]
    outputs = []
    for rule in (Replace(), Constant(0.2)):
        monkeypatch.setattr(model, "update", rule)
        outputs.append(model(state, views[0])[1]._replace(gate=None))
    assert same(*outputs)


def test_a_stream_resets_skips_and_refuses_each_for_itself(model):
    a, b, c, d = frames(4)
    stream = Stream(model, 2)
    stream.step(a)
    only = torch.tensor([True, False])
    stream.step(b._replace(reset=only))
    fresh = Stream(model, 2)
    fresh.step(b)
    first = [tree.map(lambda x: x[:1], x.snapshot().inner) for x in (stream, fresh)]
    for ours, theirs in zip(tree.leaves(first[0]), tree.leaves(first[1])):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    before = stream.snapshot().inner
    stream.step(c._replace(valid=only))
    bad = d.image.clone()
    bad[0, 0, 0, 0] = torch.nan
    after = stream.snapshot().inner
    assert same(tree.map(lambda x: x[1:], before), tree.map(lambda x: x[1:], after))
    assert not torch.equal(before.tokens[0], after.tokens[0])
    stream.step(d._replace(image=bad))
    assert torch.equal(stream.snapshot().inner.tokens[0], after.tokens[0])
    assert stream.health() == {"frames": [2, 3], "skipped": [0, 1], "nonfinite": [1, 0]}


def test_after_a_reset_the_next_frame_is_a_first_one(model):
    a, b = frames(2)
    stream, fresh = Stream(model, 2), Stream(model, 2)
    stream.step(a)
    assert same(stream.step(b._replace(reset=b.valid)), fresh.step(b))


def test_peek_query_and_revisit_write_nothing(model):
    views = frames(3)
    stream = Stream(model, 2)
    for view in views[:2]:
        stream.step(view)
    before = stream.snapshot()
    peeked = stream.peek(views[2])
    asked = model.query(before.inner, rays())
    again = list(revisit(model, before.inner, views))
    assert same(before, stream.snapshot()) and len(again) == 3
    assert asked.points_world.shape == (2, H, W, 3) and all(x.isfinite().all() for x in tree.leaves(asked))
    assert same(again[2], peeked) and same(stream.step(views[2]), peeked)


def test_a_query_looks_where_its_rays_look(model):
    state, _ = scan(model, model.init_state(2), frames(2))
    assert not torch.equal(model.query(state, rays()).points_world, model.query(state, rays(seed=6)).points_world)


def test_views_without_an_image_are_never_written(model):
    view, yes = frames(1)[0], torch.tensor([True, True])
    state, _ = scan(model, model.init_state(2), frames(2))
    mixed = View(view.image, rays(), torch.tensor([True, False]), yes, yes, ~yes)
    after, _ = model(state, mixed)
    assert same(tree.map(lambda x: x[1:], after), tree.map(lambda x: x[1:], state))
    assert not torch.equal(after.tokens[0], state.tokens[0])


def test_what_a_view_lacks_is_a_learned_token_or_nothing(model, monkeypatch):
    yes, image, ray_map = torch.ones(2, dtype=torch.bool), frames(1)[0].image, torch.full((2, H, W, 6), torch.nan)
    view = View(image, ray_map, yes, ~yes, yes, ~yes)
    plain = model.features(view._replace(ray_map=None))
    torch.testing.assert_close(model.features(view), plain + model.masked_ray_map_token)
    monkeypatch.setattr(model, "masked_tokens", False)
    torch.testing.assert_close(model.features(view), plain)


def test_an_image_of_odd_size_is_refused(model):
    view = frames(1)[0]
    with pytest.raises(ShapeError, match="47 x 32; wanted sides that are multiples of 16"):
        model(model.init_state(2), view._replace(image=view.image[:, :, 1:]))


@pytest.mark.parametrize("rule", UPDATES)
def test_the_host_never_looks(model, monkeypatch, rule):
    monkeypatch.setattr(model, "update", UPDATES[rule]())
    parameters = dict(model.state_dict())

    def step(weights, state, view):
        return torch.func.functional_call(model, dict(zip(parameters, weights)), (state, view))

    view = View(frames(1)[0].image, rays(), *(torch.ones(2, dtype=torch.bool) for _ in range(4)))
    with torch.no_grad():
        never_looks(step, tuple(parameters.values()), model.init_state(2), view)


def test_gradients_reach_every_part_that_a_view_uses():
    model = ReconModel(dataclasses.replace(SMALL, head_type="linear"))
    _, readouts = scan(model, model.init_state(2), frames(2))
    sum(x.square().mean() for x in tree.leaves(readouts)).backward()
    without = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is None}
    assert without == {
        "masked_img_token",
        "masked_ray_map_token",
        "patch_embed_ray_map",
        "enc_blocks_ray_map",
        "enc_norm_ray_map",
    }


# -- memory


def test_the_state_of_the_full_model_is_3_9_megabytes():
    with torch.device("meta"):
        state = ReconModel(PRESETS["full512_dpt"]).init_state(1)
    assert PRESETS["full512_dpt"].state_bytes == tree.nbytes((state.tokens, state.pose_memory)) == 3_932_160


def peak_bytes(step) -> int:
    """Most that was allocated at once during a step, of what was allocated in it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def test_a_gated_step_needs_no_more_memory(monkeypatch):
    """Within 2 %; keeping one layer's map would already show."""
    config = dataclasses.replace(SMALL, state_size=192)
    model = ReconModel(config).requires_grad_(False)
    yes = torch.ones(1, dtype=torch.bool)
    view, state = View(torch.randn(1, 3, 160, 160), None, yes, ~yes, yes, ~yes), model.init_state(1)
    needed = {}
    for name, rule in (("replace", Replace()), ("confidence", Confidence()), ("maps", Confidence())):
        model.update, kept = rule, []

        def with_maps(query, key, kept=kept):
            kept.append(query @ key.mT * query.shape[-1] ** -0.5)
            return kept[-1].mean((1, 3))

        if name == "maps":
            monkeypatch.setattr(blocks, "mean_logit", with_maps)
        model(state, view)
        needed[name] = peak_bytes(lambda: model(state, view))
    assert needed["confidence"] <= 1.02 * needed["replace"], needed
    assert needed["maps"] > 1.02 * needed["replace"], needed


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_memory_is_flat(model, count):
    stream, view = Stream(model, 1), frames(1, 1)[0]
    sizes, g = set(), torch.Generator().manual_seed(3)
    peaks = []
    for i in range(count):
        view = view._replace(image=torch.rand(view.image.shape, generator=g))
        if i in (5, count - 1):
            peaks.append(peak_bytes(lambda now=view: stream.step(now)))
        else:
            stream.step(view)
        sizes.add(tree.nbytes(stream.snapshot()))
    assert len(sizes) == 1 and peaks[1] <= peaks[0] and stream.health()["nonfinite"] == [0]


@pytest.mark.parametrize(
    "changed", [{"dec_num_heads": 5}, {"dec_depth": 6}, {"head_type": "dpt", "patch_size": 8}, {"state_size": 0}]
)
def test_impossible_configurations_are_refused(changed):
    with pytest.raises(ConfigError, match="wanted"):
        ReconConfig(**{**dataclasses.asdict(CONFIG), **changed})
