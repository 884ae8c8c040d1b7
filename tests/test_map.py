"""The map against its definition: keys, reads and writes in loops, TSDF fusion as the special case, analytic scenes."""

import numpy as np
import pytest
import reference_map as reference
import torch
from nolook import NoHostLook, fakes

from streammem import tree
from streammem.errors import ConfigError
from streammem.geometry import Camera
from streammem.mapping import Mapper, MapSettings
from streammem.mapping.evidence import evidence, reach
from streammem.mapping.field import commit_, propose
from streammem.mapping.frames import Shot
from streammem.mapping.free_space import FreeSpace
from streammem.mapping.gate import Gate
from streammem.mapping.keys import BLOCK, CORNERS, WIDE, Lattice
from streammem.mapping.raycast import Cast
from streammem.mapping.read import Field, gradient, read
from streammem.mapping.residency import allocate
from streammem.mapping.retention import Evidence, Present, Retention, learn, present
from streammem.mapping.state import ROWS, empty
from streammem.mapping.table import table
from streammem.mapping.tokens import Sampling, rays_of, tokens_of
from streammem.mapping.write import Write
from streammem.sources import Synthetic

LATTICE = Lattice(0.05, 32)
HOW = Write(sampling=Sampling(band_m=0.12), most_new_blocks=512)
K = torch.tensor([[30.0, 0, 15.3], [0, 31.0, 11.2], [0, 0, 1]])


def shot(seed=0, height=23, width=31, time_s=0.0, pose=None) -> Shot:
    """A wavy wall 1.5 m away, with a hole in it."""
    random = torch.Generator().manual_seed(seed)
    v, u = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    depth = (
        1.5 + 0.1 * torch.sin(u / 5.0) + 0.05 * torch.cos(v / 3.0) + 0.01 * torch.rand(height, width, generator=random)
    )
    depth[8:11, 12:15] = 0
    pose = torch.eye(4) if pose is None else pose
    image = torch.rand(3, height, width, generator=random) * 2 - 1
    return Shot(image, depth, K, pose, torch.tensor(time_s, dtype=torch.float64), torch.tensor(True))


def written(frames: int = 3, how: Write = HOW, blocks: int = 400):
    state = empty(LATTICE, blocks)
    for i in range(frames):
        commit_(state, propose(LATTICE, how, state, shot(i, time_s=0.1 * i), 256))
    return state


def field_of(state, how=HOW, now_s=None, share=0.5) -> Field:
    now_s = state.now_s if now_s is None else now_s
    now = table(LATTICE, how.retention, state, now_s, len(state.live) - 1)
    return Field(LATTICE, now, how.known_precision, share, 3.0)


def as_dict(state, how=HOW) -> dict:
    """vertex -> (value, precision) of everything a state holds, now."""
    now = present(how.retention, state.field, state.wander, state.seen_s, state.now_s)
    return {
        tuple((torch.tensor(state.block[slot].tolist()) * 8 + torch.tensor([i // 64, i // 8 % 8, i % 8])).tolist()): (
            float(now.value[slot, i]),
            float(now.precision[slot, i]),
        )
        for slot in state.live.nonzero()[:, 0].tolist()
        for i in now.precision[slot].nonzero()[:, 0].tolist()
    }


def test_keys_are_trilinear_and_find_their_vertices():
    points = torch.randn(57, 3, generator=torch.Generator().manual_seed(1))
    keys = LATTICE.keys(points)
    torch.testing.assert_close(keys.weight().sum(0), torch.ones(57))
    for p, point in enumerate(points.numpy()):
        corners = list(reference.trilinear(point, LATTICE.voxel_size_m))
        first = torch.tensor(corners[0][0]) >> 3
        assert keys.cell[p] == LATTICE.cell_of_block(first)
        for c, (vertex, weight) in enumerate(corners):
            inner = torch.tensor(vertex) - 8 * first  # 0 to 8
            start = torch.stack([keys.start[p] // WIDE**2, keys.start[p] // WIDE % WIDE, keys.start[p] % WIDE])
            assert torch.equal(start + torch.tensor(CORNERS[c]), inner)
            assert abs(float(keys.weight()[c, p]) - weight) < 1e-4
        last = (torch.tensor(corners[-1][0]) >> 3) - first
        assert keys.across[p] == (last * torch.tensor([4, 2, 1])).sum()


def test_blocks_of_cells_and_codes_invert():
    block = torch.randint(-15, 15, (200, 3), generator=torch.Generator().manual_seed(2)).int()
    near = torch.tensor([0.1, -0.2, 0.3])
    assert torch.equal(LATTICE.block_of_cell(LATTICE.cell_of_block(block), near), block)
    assert len(LATTICE.code_of_block(*block.mT).unique()) == len(block.unique(dim=0))


def test_a_linear_field_is_read_exactly_across_blocks():
    """Trilinear interpolation is exact on affine functions, also where the corners lie in several blocks."""
    state = empty(LATTICE, 64)
    block = torch.cartesian_prod(*[torch.arange(-1, 2)] * 3).int()
    slot = torch.randperm(len(block), generator=torch.Generator().manual_seed(0))
    state.block[slot], state.live[slot] = block, True
    state.directory[LATTICE.cell_of_block(block)] = slot.int()
    normal = torch.tensor([0.3, -0.5, 0.8])
    state.field[slot, :, 0] = LATTICE.vertices(block.long()) @ normal + 0.1
    state.field[slot, :, 1] = 1000.0
    points = torch.rand(300, 3, generator=torch.Generator().manual_seed(3)) * 1.1 - 0.38
    sample = read(field_of(state), points)
    assert sample.known.all()
    torch.testing.assert_close(sample.distance, points @ normal + 0.1, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient(field_of(state), sample), normal.expand(300, 3), atol=1e-4, rtol=0)
    assert not read(field_of(state), points + 32 * LATTICE.block_size_m).known.any(), (
        "the directory wraps; points must not"
    )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_read_equals_the_definition(share):
    state = written()
    known = as_dict(state)
    points = torch.rand(250, 3, generator=torch.Generator().manual_seed(4)) * torch.tensor([1.0, 0.8, 0.5])
    points = points + torch.tensor([-0.5, -0.4, 1.3])
    sample = read(field_of(state, share=share), points)
    wanted = [reference.read(known, point, 0.05, HOW.known_precision, share) for point in points.numpy()]
    assert 20 < sum(w is not None for w in wanted) < 250
    for i, w in enumerate(wanted):
        assert bool(sample.known[i]) == (w is not None)
        if w is not None:
            np.testing.assert_allclose(float(sample.distance[i]), w[0], atol=1e-6)
            np.testing.assert_allclose(float(sample.precision[i]), w[1], rtol=1e-4)


def test_evidence_equals_the_definition():
    state, capacity = written(), 256
    frame = shot(7, time_s=0.3)
    rays = rays_of(frame, HOW.sampling, state.frames)
    tokens = tokens_of(rays, frame.world_from_camera, HOW.sampling, state.frames)
    keys = LATTICE.keys(tokens.point)
    near = frame.world_from_camera[:3, 3]
    reached, room = allocate(LATTICE, state, keys, tokens.usable, near, HOW.most_new_blocks, capacity)
    block = state.block.index_copy(0, room.slot, room.block)
    active = reach(LATTICE, state, block, reached, frame, capacity)
    old = present(
        HOW.retention, state.field[active.slot], state.wander[active.slot], state.seen_s[active.slot], torch.tensor(0.3)
    )
    found, _ = evidence(HOW, old, tokens, keys, reached.local, active.beside)

    state.now_s.fill_(0.3)
    J, R = HOW.sampling.samples, len(rays.depth)
    keep = rays.usable.expand(J, -1).reshape(-1).nonzero()[:, 0].tolist()
    listed = [(tokens.point[i].tolist(), float(tokens.value[i]), float(tokens.sigma_m[i])) for i in keep]
    retention, gate = HOW.retention, HOW.gate
    how = {
        "known_precision": HOW.known_precision,
        "frame_noise_m": retention.frame_noise_m,
        "wander_m": retention.wander_m,
        "evenness": gate.evenness,
        "floor": gate.floor,
        "huber": HOW.huber,
    }
    wanted = reference.write(as_dict(state), listed, int(rays.usable.sum()), how, 0.05)
    assert len(keep) < J * R and len(wanted) > 300
    places = {tuple(b): i for i, b in enumerate(block[active.slot].tolist())}
    total = 0
    for vertex, (error, weight) in wanted.items():
        v = torch.tensor(vertex)
        i, j = places[tuple((v >> 3).tolist())], int(((v & 7) * torch.tensor([64, 8, 1])).sum())
        np.testing.assert_allclose(float(found.weight[i, j]), weight, rtol=2e-3, atol=1.0)
        np.testing.assert_allclose(float(found.error[i, j]), error, rtol=2e-3, atol=0.3)
        total += weight
    np.testing.assert_allclose(float(found.weight.sum()), total, rtol=1e-4)


def test_slow_value_is_the_weighted_average_and_time_takes_the_fast_one():
    """Without a floor of noise the slow value is uniform least squares; after a long time nothing else is read."""
    how = Retention(wander_m=0.01, wander_s=1.0, frame_noise_m=1e-9, memory_frames=1e9, yielding=0)
    random = np.random.default_rng(0)
    values, weights = random.normal(0, 0.01, 20), random.uniform(100, 1000, 20)
    field, wander, seen = (
        torch.zeros(1, 1, 2, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.zeros(1, 1),
    )
    for i, (value, weight) in enumerate(zip(values, weights)):
        old = present(how, field, wander, seen, torch.tensor(0.1 * i))
        weight = torch.tensor([[weight]], dtype=torch.float64)
        new = learn(how, old, Evidence((old.value - value) * weight, weight), 1.0)
        field, wander = torch.stack([new.slow, new.precision], -1), new.value - new.slow
        seen = torch.full((1, 1), 0.1 * i)
    np.testing.assert_allclose(float(field[0, 0, 0]), np.average(values, weights=weights), rtol=1e-6)
    np.testing.assert_allclose(float(field[0, 0, 1]), weights.sum(), rtol=1e-6)
    later = present(how, field, wander, seen, seen[0, 0] + 40.0).value
    np.testing.assert_allclose(float(later), float(field[0, 0, 0]), atol=1e-9)


def test_what_was_just_seen_is_read_where_it_was_seen():
    """After a jump the value follows at once, fades back to the average with time, and the average hardly moves."""
    how = Retention(wander_m=0.01, wander_s=1.0, frame_noise_m=0.002, yielding=0)
    field, wander, seen = torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 1)
    weight, none = torch.full((1, 1), 1e7), torch.zeros(1, 1)
    for i, value in enumerate([0.0] * 30 + [0.01] * 3):
        old = present(how, field, wander, seen, torch.tensor(0.1 * i))
        new = learn(how, old, Evidence((old.value - value) * weight, weight), 1.0)
        field, wander, seen = torch.stack([new.slow, new.precision], -1), new.value - new.slow, none + 0.1 * i
    just, soon, later = (present(how, field, wander, seen, seen[0, 0] + s).value.item() for s in (0.0, 1.0, 40.0))
    assert just > 0.009 and later < 0.0015
    np.testing.assert_allclose(soon - later, (just - later) * np.exp(-1), rtol=1e-4)
    past = present(how, field, wander, seen, seen[0, 0] - 1.0).value.item()
    np.testing.assert_allclose(
        past, soon, rtol=1e-5, err_msg="as of a second before, it is known as badly as a second after"
    )


def test_what_was_farther_off_than_a_surface_wanders_says_nothing_of_the_past():
    how, none = Retention(wander_m=0.01, wander_s=1.0), torch.zeros(1, 1)
    field = torch.tensor([[[0.08, 1e6]]])
    now, past = (present(how, field, none - 0.15, none + 9, torch.tensor(t)).value.item() for t in (9.0, 8.999))
    np.testing.assert_allclose([now, past], [0.08 - 0.15, 0.08 - 3 * 0.01], atol=1e-4)


def test_one_hot_dot_is_the_running_average():
    how = Write(Sampling(band_m=0.12), free_space=FreeSpace(0), keys="one_hot", bias="dot")
    state, shots = empty(LATTICE, 400), [shot(i, time_s=0.1 * i) for i in range(4)]
    for i, frame in enumerate(shots):
        commit_(state, propose(LATTICE, how, state, frame, 256))
        if i == 0:  # a block that is made later has missed the frames before
            slot = state.live.nonzero()[:, 0]
    vertices = LATTICE.vertices(state.block[slot].long()).view(-1, 3).double().numpy()
    value, count = reference.running_average(
        [s.depth.numpy().astype(np.float64) for s in shots], [np.eye(4)] * 4, K, vertices, 0.12
    )
    mine = state.field[slot].view(-1, 2).numpy()
    same = mine[:, 1] == count  # a vertex whose pixel is a tie may round to either side
    assert same.mean() > 0.995 and (count > 0).sum() > 1000
    assert (np.abs(mine[same, 0] - value[same]) < 2e-6).mean() > 0.999


def test_one_hot_dot_is_open3d_tsdf():
    """The special case: Open3D's integration of the same frames, voxel by voxel."""
    o3d = pytest.importorskip("open3d")
    source = Synthetic(frames=40, height=96, width=128, noise="none")
    band, voxel = 0.12, 0.03
    lattice = Lattice(voxel, 64)
    how = Write(Sampling(band_m=band, stride_px=1), free_space=FreeSpace(0), keys="one_hot", bias="dot")
    state = empty(lattice, 4000)
    grid = o3d.t.geometry.VoxelBlockGrid(("tsdf", "weight"), (o3d.core.float32,) * 2, ((1), (1)), voxel, 8, 6000)
    for i in (0, 4, 8):
        frame = source[i]
        pose = frame.world_from_camera[0]
        one = Shot(
            frame.image[0], frame.depth[0], frame.intrinsics[0], pose.float(), frame.time_s[0], torch.tensor(True)
        )
        commit_(state, propose(lattice, how, state, one, 3000))
        # Open3D cuts pixel coordinates off where we round them: half a pixel more gives it the same pixels
        centred = frame.intrinsics[0].double().clone()
        centred[:2, 2] += 0.5
        K, T = o3d.core.Tensor(centred.numpy()), o3d.core.Tensor(pose.inverse().numpy())
        image = o3d.t.geometry.Image(o3d.core.Tensor(frame.depth[0].contiguous().numpy()))
        blocks = grid.compute_unique_block_coordinates(image, K, T, 1.0, 10.0, band / voxel)
        grid.integrate(blocks, image, K, T, 1.0, 10.0, band / voxel)
    table_ = grid.hashmap()
    active = table_.active_buf_indices().numpy()
    theirs = {tuple(key): i for key, i in zip(table_.key_tensor().numpy()[active].tolist(), active)}
    tsdf, weight = (table_.value_tensor(i).numpy() for i in (0, 1))
    compared = agree = 0
    for slot in state.live.nonzero()[:, 0].tolist():
        i = theirs.get(tuple(state.block[slot].tolist()))
        if i is None:
            continue
        value, count = state.field[slot].view(8, 8, 8, 2).permute(2, 1, 0, 3).numpy()[..., 0], None
        count = state.field[slot].view(8, 8, 8, 2).permute(2, 1, 0, 3).numpy()[..., 1]
        both = (count == 3) & (weight[i][..., 0] == 3)
        compared += both.sum()
        agree += (np.abs(value - tsdf[i][..., 0] * band)[both] < 1e-4).sum()
    assert compared > 20000
    assert agree / compared > 0.98, f"{agree} of {compared} voxels agree"


def test_raycast_sees_the_analytic_room():
    source = Synthetic(frames=400, height=120, width=160, noise="none")
    mapper = Mapper(MapSettings(voxel_size_m=0.04, write=Write(Sampling(band_m=0.12, stride_px=1))))
    for i in range(0, 40, 2):
        assert mapper.step(source[i]).status == "tracked"
    frame = source[21]
    camera = Camera(frame.intrinsics[0], frame.world_from_camera[0], 120, 160)
    view, truth = mapper.raycast(camera), frame.depth[0]
    seen = (view.depth > 0) & (truth > 0) & (truth < 4)
    assert seen.sum() / ((truth > 0) & (truth < 4)).sum() > 0.9
    error = (view.depth - truth)[seen].abs()
    assert error.median() < 0.004
    assert (error < 0.02).float().mean() > 0.9
    centre, direction = camera.rays()
    slope = (view.normal * direction).sum(-1)[seen]
    assert (slope < 0).float().mean() > 0.99, "normals look at the camera"
    assert view.variance[view.depth == 0].isinf().all() and view.variance[seen].isfinite().all()
    colour = frame.image[0].permute(1, 2, 0) * 0.5 + 0.5
    assert (view.colour - colour)[seen].abs().mean() < 0.12
    distance, variance = mapper.sdf((centre + direction * (truth[..., None])).view(-1, 3).float()[seen.view(-1)])
    assert distance[variance.isfinite()].abs().median() < 0.004
    assert mapper.sdf(torch.tensor([[50.0, 50.0, 50.0]]))[1].isinf().all(), "never seen is not free"


def test_free_space_takes_away_what_left():
    """A wall comes nearer by half a metre and goes back: what stood there is gone, and what nobody looked at stays."""
    state = empty(LATTICE, 600)
    far, near = shot(0), shot(1)._replace(depth=shot(1).depth - 0.5)
    half = near.depth.clone()
    half[:, :15] = 0
    near = near._replace(depth=half)
    for i in range(5):
        commit_(state, propose(LATTICE, HOW, state, near._replace(time_s=torch.tensor(0.1 * i)), 256))
    z = float(near.depth[11, 24])
    point = torch.tensor([[(24 - 15.3) / 30 * z, (11 - 11.2) / 31 * z, z]])

    def ghost():
        return read(field_of(state), point).distance.item()

    before = ghost()
    for i in range(5, 35):
        commit_(state, propose(LATTICE, HOW, state, far._replace(time_s=torch.tensor(0.1 * i)), 256))
    assert before < 0.03 < ghost(), (before, ghost())
    now_s = state.now_s + 1000
    assert read(field_of(state, now_s=now_s), point).distance > 0.01, "and it does not come back when nobody looks"


def test_where_no_ray_passes_nothing_changes():
    state = written()
    turned = torch.diag(torch.tensor([-1.0, 1, -1, 1]))  # the camera looks the other way
    before = tree.clone(state)
    commit_(state, propose(LATTICE, HOW, state, shot(9, time_s=500.0, pose=turned), 256))
    old = before.live
    for name in ("block", *ROWS):
        assert torch.equal(getattr(state, name)[old], getattr(before, name)[old]), name
    assert state.live.sum() > before.live.sum()


def test_untrusted_frame_changes_not_a_bit():
    state = written()
    before = tree.clone(state)
    update = propose(LATTICE, HOW, state, shot(5, time_s=3.0)._replace(trusted=torch.tensor(False)), 256)
    commit_(state, update)
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(state)))


def test_a_full_map_refuses_blocks_and_counts_them():
    state = empty(LATTICE, 8)
    update = propose(LATTICE, HOW, state, shot(0), 8)
    commit_(state, update)
    assert state.live.sum() == 8 and update.refused > 0
    assert state.field.isfinite().all()


def test_a_step_never_looks():
    state, frame = written(), shot(5, time_s=0.5)

    def step(state, frame):
        update = propose(LATTICE, HOW, state, frame, 256)
        commit_(state, update)
        return update, read(field_of(state), torch.ones(5, 3))

    with NoHostLook():
        step(tree.clone(state), frame)
    with fakes(state, frame) as (fake_state, fake_frame):
        step(fake_state, fake_frame)


def test_gate_closes_on_what_disagrees():
    how = Gate(evenness=4.0, floor=0.1)
    from streammem.mapping.gate import confidence

    surprise = torch.tensor([[0.0, 3.0, 9.0, 9.0], [0.0, 3.0, 9.0, 9.0]])
    known = torch.tensor([[True, True, True, False], [True, True, True, False]])
    gate = confidence(how, surprise, known)
    torch.testing.assert_close(
        gate, torch.tensor([torch.tensor(4.0).sigmoid(), torch.tensor(-0.5).sigmoid(), 0.1, 1.0])
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lattice(0.0),
        lambda: Lattice(0.02, 100),
        lambda: Sampling(samples=1),
        lambda: Gate(floor=1.5),
        lambda: FreeSpace(-1.0),
        lambda: Retention(wander_s=0.0),
        lambda: Write(keys="one_hot"),
        lambda: Cast(polish=0),
        lambda: MapSettings(max_bytes=10_000),
        lambda: MapSettings(near_m=5.0),
        lambda: MapSettings(voxel_size_m=0.01, window_blocks=32),
        lambda: MapSettings(voxel_size_m=0.05),
    ],
)
def test_impossible_settings_are_refused_with_a_reason(make):
    with pytest.raises(ConfigError, match="wanted"):
        make()


def test_learn_passes_over_what_no_evidence_reaches():
    old = Present(*(torch.rand(3, BLOCK) for _ in range(4)), torch.zeros(3, BLOCK, dtype=torch.bool))
    new = learn(Retention(), old, Evidence(torch.zeros(3, BLOCK), torch.zeros(3, BLOCK)), 1.0)
    assert torch.equal(new.slow, old.slow) and torch.equal(new.precision, old.precision) and not new.touched.any()
