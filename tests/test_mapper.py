"""The mapper as its users meet it: bad input, peeking, snapshots, files, a full memory, missing poses."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from bad_inputs import BAD_INPUTS, good_inputs

from streammem import tree
from streammem.errors import CheckpointError, ShapeError, StreamMemError
from streammem.geometry import Camera
from streammem.mapping import Mapper, MapSettings
from streammem.mapping.tokens import Sampling
from streammem.mapping.write import Write
from streammem.sources import Folder, Synthetic, frame_from
from streammem.sources.room import REMOVABLE
from streammem.sources.scene import Scene

SETTINGS = MapSettings(
    voxel_size_m=0.05, max_bytes=40 * 2**20, window_blocks=64, write=Write(Sampling(band_m=0.12, stride_px=2))
)


@pytest.fixture(scope="module")
def source() -> Synthetic:
    return Synthetic(frames=400, height=60, width=80)


def fed(source, frames, settings=SETTINGS) -> Mapper:
    mapper = Mapper(settings)
    for i in frames:
        mapper.step(source[i])
    return mapper


def same(a: Mapper, b: Mapper) -> bool:
    """Whether two mappers remember the same to the bit, NaN included."""
    left, right = a.state_tree(), b.state_tree()
    return left.keys() == right.keys() and all(_equal(left[name], right[name]) for name in left)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_changes_not_a_bit(source, bad):
    mapper = fed(source, range(2))
    before, counters = mapper.snapshot(), Counter()
    try:
        frame = frame_from(**bad.change(good_inputs(60, 80)), counters=counters)
    except StreamMemError as error:
        assert not isinstance(bad.expected, str) and isinstance(error, bad.expected)
    else:
        readout = mapper.step(frame)
        assert readout.status == "skipped" and readout.reason
        assert mapper.health()["skipped"] == 1
    assert all(_equal(a, b) for a, b in zip(tree.leaves(before.map), tree.leaves(mapper.snapshot().map)))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -1.0, 1e30])
def test_poisoned_depth_is_never_learnt(source, poison):
    mapper, frame = fed(source, range(2)), source[2]
    depth = frame.depth.clone()
    depth[:, ::2] = poison
    mapper.step(frame._replace(depth=depth))
    kept = mapper.snapshot().map
    assert kept.field.isfinite().all() and kept.wander.isfinite().all() and kept.colour.isfinite().all()
    before = mapper.snapshot().map
    readout = mapper.step(frame._replace(depth=torch.full_like(depth, poison)))
    assert (readout.status, readout.reason) == ("skipped", "no depth in range")
    assert all(_equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(mapper.snapshot().map)))


def test_a_poisoned_picture_does_not_reach_the_colours(source):
    mapper, frame = fed(source, range(2)), source[2]
    mapper.step(frame._replace(image=torch.full_like(frame.image, float("nan"))))
    assert mapper.snapshot().map.colour.isfinite().all()


def test_peek_says_what_step_would_and_writes_nothing(source):
    mapper = fed(source, range(3))
    before = mapper.state_tree()
    peeked = mapper.peek(source[3])
    after = mapper.state_tree()
    assert all(_equal(before[name], after[name]) for name in before)
    stepped = mapper.step(source[3])
    assert all(torch.equal(a, b) for a, b in zip(peeked, stepped))


def test_a_snapshot_goes_on_as_if_nothing_had_happened(source):
    mapper = fed(source, range(4))
    snapshot = mapper.snapshot()
    mapper.step(source[4])
    other = fed(source, range(2))
    other.restore(snapshot)
    other.step(source[4])
    assert same(mapper, other)
    with pytest.raises(ShapeError):
        other.restore(Mapper(replace(SETTINGS, max_bytes=60 * 2**20)).snapshot())


@pytest.mark.parametrize("posed", [True, False], ids=["given", "tracked"])
def test_a_file_goes_on_as_if_nothing_had_happened(source, tmp_path, posed):
    def frame(i):
        return source[i] if posed else source[i]._replace(world_from_camera=None)

    mapper = Mapper(SETTINGS)
    for i in range(4):
        mapper.step(frame(i))
    mapper.save(tmp_path / "s.safetensors", notes={"at": "4"})
    other, notes = Mapper.load(tmp_path / "s.safetensors", SETTINGS)
    assert notes == {"at": "4"} and same(mapper, other)
    for i in range(4, 7):
        a, b = mapper.step(frame(i)), other.step(frame(i))
        assert a.status == b.status and torch.equal(a.world_from_camera, b.world_from_camera)
    assert same(mapper, other)
    with pytest.raises(CheckpointError, match="voxel_size_m"):
        Mapper.load(tmp_path / "s.safetensors", MapSettings())
    (tmp_path / "foreign").write_bytes(b"not a state")
    with pytest.raises(CheckpointError):
        Mapper.load(tmp_path / "foreign", SETTINGS)


def test_memory_is_fixed_and_what_leaves_comes_back(source):
    """A map with room for a part of the room: blocks go to the host and return to the bit, and nothing is refused."""
    small = MapSettings(
        voxel_size_m=0.05,
        max_bytes=10 * 2**20,
        window_blocks=64,
        write=Write(Sampling(band_m=0.12, stride_px=2), most_new_blocks=512),
    )
    mapper, sizes = Mapper(small), set()
    for i in range(0, 400, 8):
        mapper.step(source[i])
        sizes.add(mapper.nbytes)
    health = mapper.health()
    assert len(sizes) == 1 and sizes.pop() <= small.max_bytes
    assert health["evicted"] > 0 and health["returned"] > 0
    assert health["resident_blocks"] + health["host_blocks"] > health["resident_blocks"]
    assert health["evicted"] - health["returned"] - health["merged"] == health["host_blocks"]
    assert health["merged"] < 0.02 * health["evicted"]


def test_blocks_move_to_the_host_and_back_bit_for_bit(source):
    mapper = fed(source, range(3))
    state, host = mapper._state, mapper._host
    before = mapper.state_tree()
    host.evict(state, state.live.nonzero()[:, 0][::2])
    assert len(host.rows) > 10 and not torch.equal(mapper.state_tree()["resident.block"], before["resident.block"])
    host.settle(state, source[2].world_from_camera[0].float())
    after = mapper.state_tree()
    assert not host.rows
    names = [name for name in before if name.startswith("resident")]
    assert all(_equal(before[name], after[name]) for name in names)


def test_the_mesh_is_the_whole_map_on_the_surfaces_of_the_room(source):
    mapper = fed(source, range(0, 40, 4))
    mesh = mapper.mesh()
    assert len(mesh.vertices) > 2000 and mesh.triangles.max() < len(mesh.vertices)
    assert source.scene.distance(mesh.vertices.double()).abs().median() < 0.015
    assert ((mesh.colours >= 0) & (mesh.colours <= 1)).all() and mesh.colours.std() > 0.02
    step = 0.1 * mesh.normals
    outside = source.scene.distance((mesh.vertices + step).double()) > source.scene.distance(
        (mesh.vertices - step).double()
    )
    assert outside.float().mean() > 0.95, "normals look into the free side"
    whole = len(mesh.vertices)
    mapper._host.evict(mapper._state, mapper._state.live.nonzero()[:, 0][::2])
    assert len(mapper.mesh().vertices) == whole, "blocks on the host belong to the mesh"
    assert len(mapper.points().points) == whole
    assert len(Mapper(SETTINGS).mesh().vertices) == 0


def test_frames_start_over_and_drop_out(source):
    mapper = fed(source, range(3))
    mapper.step(source[3]._replace(reset=torch.tensor([True])))
    alone = fed(source, [3])
    assert _equal(mapper.state_tree()["resident.field"], alone.state_tree()["resident.field"])
    assert mapper.step(source[4]._replace(valid=torch.tensor([False]))).reason == "frame invalid"


def test_a_hole_in_the_poses_is_skipped_and_said(source):
    mapper = fed(source, range(3))
    none = torch.full((1, 4, 4), float("nan"), dtype=torch.float64)
    readout = mapper.step(source[3]._replace(world_from_camera=none))
    assert readout.status == "skipped" and "no pose" in readout.reason
    assert mapper.step(source[4]).status == "tracked"


def test_without_poses_the_map_is_tracked(source):
    big = Synthetic(frames=400, height=120, width=160)
    mapper = Mapper(MapSettings(voxel_size_m=0.04, write=Write(Sampling(band_m=0.12, stride_px=2))))
    start = big[0].world_from_camera[0]
    for i in range(0, 16, 2):
        readout = mapper.step(big[i]._replace(world_from_camera=None))
        error = (start @ readout.world_from_camera[0] - big[i].world_from_camera[0])[:3, 3].norm()
        assert readout.status == "tracked" and error < 0.03, (i, readout.status, readout.reason, error)


def test_shapes_are_checked_at_the_door(source):
    mapper, frame = Mapper(SETTINGS), source[0]
    for bad in (
        frame._replace(depth=None),
        frame._replace(intrinsics=None),
        frame._replace(image=frame.image[..., :-1]),
        frame._replace(world_from_camera=torch.eye(4)),
        tree.map(lambda x: torch.cat([x, x]), frame),
    ):
        with pytest.raises(ShapeError, match="wanted|wants"):
            mapper.step(bad)


def test_an_object_that_is_taken_away_is_gone_within_thirty_frames():
    """Looked at all the while; and a wall beside it, looked at as long, does not fade."""
    still = Synthetic(frames=200, height=90, width=120)
    gone = Synthetic(frames=200, height=90, width=120, removed_at=0)
    views = [i for i in range(200) if (Scene((REMOVABLE,)).render(still.camera_at(i)).depth > 0).sum() > 60][:40]
    assert len(views) == 40
    mapper = Mapper(MapSettings(voxel_size_m=0.03, write=Write(Sampling(band_m=0.09, stride_px=1))))
    for i in views[:10]:
        mapper.step(still[i])
    at = views[10]
    camera = Camera(still[at].intrinsics[0], still[at].world_from_camera[0], 90, 120)
    truth = Scene(still.room.solids).render(camera).depth
    parcel = still.scene.render(camera).depth < truth - 0.05

    def ghost() -> float:
        depth = mapper.raycast(camera).depth
        return ((depth > 0) & (depth < truth - 0.05) & parcel).float().sum() / parcel.sum()

    assert ghost() > 0.7
    for i in views[10:40]:
        mapper.step(gone[i])
    assert ghost() < 0.05


def test_real_frames_go_through(recordings):
    source = Folder(recordings / "redkitchen", limit=4)
    mapper = Mapper(MapSettings(max_depth_m=3.5))
    for frame in source:
        assert mapper.step(frame).status == "tracked"
    view = mapper.raycast(Camera(frame.intrinsics[0], frame.world_from_camera[0], 480, 640))
    both = (view.depth > 0) & (frame.depth[0] > 0) & (frame.depth[0] < 3.5)
    assert both.sum() / ((frame.depth[0] > 0) & (frame.depth[0] < 3.5)).sum() > 0.95
    assert (view.depth - frame.depth[0])[both].abs().median() < 0.006


def test_a_frame_is_written_whole_however_many_blocks_it_wants():
    source = Synthetic(frames=40, height=120, width=160)
    one, roomy = Mapper(SETTINGS), Mapper(SETTINGS)
    one._rows = 8
    for mapper in (one, roomy):
        mapper.step(source[0])
    assert one.health() == roomy.health() and one.health()["resident_blocks"] > 64 and one.health()["crowded"] == 0
    assert torch.equal(one._state.field, roomy._state.field) and torch.equal(one._state.colour, roomy._state.colour)
