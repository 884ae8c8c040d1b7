"""A colour camera alone, from the outside: the app, its state, its questions, and real pictures."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import ROOT
from nolook import NoHostLook
from safetensors.torch import load_file

from apps import cli, selfcheck, views
from streammem import build, config, tree
from streammem.errors import CheckpointError, ConfigError, ShapeError
from streammem.geometry import Camera, inverse_rigid, transform
from streammem.mapping import Mapper, MapSettings
from streammem.metrics import read_trajectory
from streammem.recon import golden, weights
from streammem.recon.config import PRESETS
from streammem.recon.intrinsics import Fitted
from streammem.recon.model import ReconModel
from streammem.recon.rays import ray_map
from streammem.recon.reconstructor import Reconstructor, camera_pose
from streammem.recon.ring import median, noted, ring
from streammem.recon.state import ReconReadout, ReconState
from streammem.recon.trust import Trust
from streammem.recon.update import Confidence, Replace
from streammem.recon.updates import UPDATES
from streammem.settings import ReconSettings
from streammem.sources import Synthetic, SyntheticColour, Video, frame_from, open_source
from streammem.types import Frame

MAP = ["map.max_bytes=33554432"]
TINY = PRESETS["tiny_linear"]


def network(update=Confidence(), seed=0, config=TINY):
    """Random weights."""
    torch.manual_seed(seed)
    return ReconModel(config, update).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of random weights, as `convert` would write it."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    weights.save(path, network(), "nobody's", "random")
    return path


def run(out, file, *more, frames=7, source="synthetic:rgb"):
    """Exit status of a small run."""
    words = ["--source", source, "--weights", str(file), "--out", str(out), f"source.frames={frames}"]
    return cli.main(["reconstruct", "--quiet", *words, *MAP, *more])


def stream(frames=6, height=48, width=64, **options):
    return SyntheticColour(frames, height, width, **options)


def same(a, b):
    return all(alike(x, y) for x, y in zip(tree.leaves(tuple(a)), tree.leaves(tuple(b)), strict=True))


def alike(x, y):
    """Bit for bit, where not a number is one value."""
    return torch.equal(x.nan_to_num(-7.25), y.nan_to_num(-7.25))


# ---- the app


@pytest.fixture(scope="module")
def whole(tmp_path_factory, file):
    """The folder of a run that was let be, with two resets."""
    out = tmp_path_factory.mktemp("whole")
    assert run(out, file, "recon.reset_every=3") == 0
    return out


def test_a_run_writes_what_a_depth_cameras_does_and_a_line_a_view(whole):
    names = {path.name for path in whole.iterdir()}
    assert names == {
        "mesh.ply", "trajectory.tum", "truth.tum", "views.tsv", "state.safetensors", "report.html", "run.yaml",
        "preview.png",
    }  # fmt: skip
    head, *rows = (whole / "views.tsv").read_text().splitlines()
    assert head.split("\t") == list(views.COLUMNS) and len(rows) == 7
    table = np.array([[float(x) for x in row.split("\t")] for row in rows])
    assert np.isfinite(table).all() and table[:, -4].tolist() == [0, 0, 0, 1, 1, 1, 2]
    gates = table[:, views.COLUMNS.index("gate_mean")]
    assert (gates == 1).tolist() == [True] + [False] * 6  # taken whole; a chunk's own first view is seen twice
    assert len(read_trajectory(whole / "trajectory.tum")[0]) == len(read_trajectory(whole / "truth.tum")[0]) == 7
    report = (whole / "report.html").read_text()
    assert "pose from the network" in report and "alignment with a scale" in report and "medians made equal" in report
    said = config.read(whole / "run.yaml")["run"]["weights"]
    assert said["licence"] == "nobody's" and len(said["fingerprint"]) == 16


def test_a_run_that_goes_on_ends_like_one_that_was_let_be(whole, file, tmp_path):
    out = tmp_path / "parts"
    assert run(out, file, "recon.reset_every=3", frames=4) == 0
    assert run(out, file, "recon.reset_every=3", "--resume", str(out / "state.safetensors")) == 0
    one, other = load_file(whole / "state.safetensors"), load_file(out / "state.safetensors")
    assert one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    for name in ("trajectory.tum", "views.tsv", "truth.tum"):
        assert (out / name).read_text() == (whole / name).read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--update", "replace"], "was learnt by Reconstructor(update=Confidence()"),
        (["recon.reset_every=4"], "reset_every=3"),
        (["other weights"], "fingerprint is"),
    ],
)
def test_a_state_goes_on_with_its_own_eye_only(more, said, whole, file, tmp_path, capsys):
    if more == ["other weights"]:
        file, more = tmp_path / "other.safetensors", []
        weights.save(file, network(seed=1), "nobody's", "random")
    more = ["recon.reset_every=3", *more]
    assert run(tmp_path / "o", file, "--resume", str(whole / "state.safetensors"), *more) == 2
    assert said in capsys.readouterr().err


def test_the_licence_is_said_once(file, tmp_path, capsys):
    words = ["--source", "synthetic:rgb", "--weights", str(file), "--out", str(tmp_path), "source.frames=2", *MAP]
    assert cli.main(["reconstruct", *words]) == 0
    assert capsys.readouterr().err.count("tiny.safetensors: nobody's") == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--update", "magic"], "recon.update is 'magic'; wanted one of replace, confidence"),
        (["recon.update_args={speed: 1}"], "speed is no argument of confidence; it has none"),
        (["recon.reset_every=1"], "reset_every is 1; wanted 0 (never) or at least 2"),
        (["recon.trust.drop=2"], "wanted shares in [0, 1)"),
        (["--weights", "/not/here.safetensors"], "/not/here.safetensors: there is no such file; wanted weights"),
        (["source.height=8"], "leaves no whole patches"),
    ],
)
def test_what_cannot_run_is_one_line_and_exit_2(more, said, file, tmp_path, capsys):
    assert run(tmp_path / "o", file, *more) == 2
    heard = capsys.readouterr().err
    assert said in heard and heard.count("\n") == 1


@pytest.mark.parametrize("rule", UPDATES)
def test_every_rule_can_be_named_and_goes_on_from_its_state(rule):
    model = network(build.update(ReconSettings(update=rule)))
    one, other = (Reconstructor(model, reset_every=3) for _ in range(2))
    wanted = seen_all(one, stream(5))
    seen_all(other, stream(4))
    third = Reconstructor(model, reset_every=3)
    third.adopt(other.state_tree())
    assert same(third.step(stream(5)[4]), wanted[4])


def test_rules_take_arguments():
    told = ReconSettings(update="constant", update_args={"gate": 0.5})
    assert build.update(told) == UPDATES["constant"](gate=0.5)
    with pytest.raises(ConfigError, match="constant cannot use them"):
        build.update(ReconSettings(update="constant", update_args={"gate": "much"}))


def test_a_depth_cameras_recording_can_be_seen_in_colour_alone(recordings, file, tmp_path):
    source = f"folder:{recordings / 'redkitchen'}"
    more = ["source.depth_scale=millimetres", "source.intrinsics=7scenes", "recon.lens=source", "source.every=10"]
    assert run(tmp_path, file, *more, frames=3, source=source) == 0
    row = (tmp_path / "views.tsv").read_text().splitlines()[1].split("\t")
    assert [float(x) for x in row[1:5]] == pytest.approx([585, 585, 320, 240], rel=1e-4)
    assert len(read_trajectory(tmp_path / "truth.tum")[0]) == 3


def test_views_are_written_as_they_come(file, tmp_path):
    assert run(tmp_path, file, "recon.save_views=true", "--no-mesh", "previews=0", frames=3) == 0
    files = sorted((tmp_path / "views").iterdir())
    assert [path.name for path in files] == ["000000.npz", "000001.npz", "000002.npz"]
    view, seen = np.load(files[2]), seen_all(Reconstructor(network()), stream(3))[2]
    assert np.allclose(view["points"], seen.points[0], rtol=1e-3, atol=1e-3) and view["image"].dtype == np.uint8
    assert np.array_equal(view["world_from_camera"], seen.frame.world_from_camera[0])
    assert np.allclose(view["depth"], seen.frame.depth[0], rtol=1e-3)


def test_masked_frames_leave_no_trace(file, tmp_path):
    assert run(tmp_path, file, "source.dropout=0.5", "recon.reset_every=2", frames=8) == 0
    counts = config.read(tmp_path / "run.yaml")["run"]["statuses"]
    assert counts["skipped"] >= 1 and counts["tracked"] + counts["skipped"] == 8


def test_pictures_are_located_in_a_finished_run(whole, capsys):
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    assert cli.main(["locate", str(whole), "--source", "synthetic:rgb", "--frames", "5"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[0] != "#"]
    assert len(rows) == 5 and all(len(row) == 9 and 0 <= float(row[-1]) <= 1 for row in rows)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before
    stored = load_file(whole / "state.safetensors")
    eye = Reconstructor(network(), reset_every=3)
    eye.adopt({name.removeprefix("recon."): x for name, x in stored.items() if name.startswith("recon.")})
    wanted = eye.peek(stream(5)[4]).frame.world_from_camera[0, :3, 3]
    assert [float(x) for x in rows[4][1:4]] == pytest.approx(wanted.tolist(), abs=1e-8)


def test_depth_frames_are_located_in_a_run_of_a_depth_camera(tmp_path, capsys):
    size = ["source.height=60", "source.width=80", "source.noise=none"]
    map_ = ["map.voxel_size_m=0.04", "map.write.sampling.band_m=0.1", "map.max_bytes=67108864", "map.window_blocks=64"]
    out = ["--out", str(tmp_path), "poses=find", "source.frames=6", "--no-mesh", "previews=0"]
    assert cli.main(["reconstruct", "--quiet", *out, *size, *map_]) == 0
    assert cli.main(["locate", str(tmp_path), "--source", "synthetic", "--frames", "1"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line[0] != "#"]
    assert float(row[-1]) > 0.5
    assert cli.main(["locate", str(tmp_path / "nothing"), "--source", "synthetic"]) == 2


def test_the_synthetic_room_needs_no_file_where_the_package_brings_one(tmp_path, capsys):
    words = ["--source", "synthetic:rgb", "--out", str(tmp_path), "source.frames=2", "previews=0", "--no-mesh", *MAP]
    status = cli.main(["reconstruct", "--quiet", *words])
    if build.TINY.is_file():
        assert status == 0 and "tiny.safetensors" in (tmp_path / "run.yaml").read_text()
    else:
        assert status == 2 and "no weights: download" in capsys.readouterr().err


# ---- the reconstructor


def seen_all(eye, source):
    return [eye.step(frame) for frame in source]


def test_step_equals_sequence_and_goes_on_from_a_saved_state():
    model, source = network(), stream(9)
    whole, first, second = (Reconstructor(model, reset_every=4) for _ in range(3))
    wanted = seen_all(whole, source)
    for i in range(5):
        first.step(source[i])
    named = {name: x.clone() for name, x in first.state_tree().items()}
    second.adopt(named)
    assert all(same(wanted[i], second.step(source[i])) for i in range(5, 9))


def test_peek_writes_nothing_and_says_what_step_would():
    eye, source = Reconstructor(network(), reset_every=3), stream(8)
    for i in range(4):
        eye.step(source[i])
    before = {name: x.clone() for name, x in eye.state_tree().items()}
    told = eye.peek(source[6])
    assert list(eye.revisit(source[i] for i in range(2)))
    after = eye.state_tree()
    assert all(alike(x, after[name]) for name, x in before.items())
    assert same(told, eye.step(source[6]))


def test_a_frame_is_found_again_in_a_saved_state(whole, file):
    """A state file, loaded by whoever has the weights, gives a frame's pose: as the run itself would have."""
    stored = {name: x for name, x in load_file(whole / "state.safetensors").items() if name.startswith("recon.")}
    eye = Reconstructor(weights.load(file, update=Confidence())[0], reset_every=3)
    eye.adopt({name.removeprefix("recon."): x for name, x in stored.items()})
    pose = eye.peek(stream(12)[10]).frame.world_from_camera
    again = Reconstructor(network(), reset_every=3)
    seen_all(again, stream(7))
    assert torch.equal(pose, again.peek(stream(12)[10]).frame.world_from_camera)
    with pytest.raises(CheckpointError, match="not of this network"):
        Reconstructor(network(), batch=2).adopt({name.removeprefix("recon."): x for name, x in stored.items()})


def test_streams_of_a_batch_are_independent():
    model, sources = network(), [stream(6, seed=s) for s in range(3)]
    together, alone = Reconstructor(model, 3, reset_every=3), Reconstructor(model, reset_every=3)
    for i in range(6):
        frames = [source[i] for source in sources]
        batch = tree.map(lambda *parts: torch.cat(parts), *frames)
        batch.valid[0] = i != 2  # one stream's trouble, on the frame of a reset
        seen, one = together.step(batch), alone.step(frames[1])
        for name, a, b in zip(seen._fields[1:], seen[1:], one[1:]):
            assert torch.allclose(a[1], b[0], atol=2e-5), name
        assert torch.allclose(seen.frame.depth[1], one.frame.depth[0], atol=2e-5)
    assert together.health()["resets"] == [1, 2, 2]


def test_a_reset_frame_starts_that_stream_over():
    model, source = network(), stream(3)
    eye = Reconstructor(model)
    fresh = eye.step(source[0])
    eye.step(source[1])
    again = eye.step(source[0]._replace(reset=torch.tensor([True])))
    assert same(fresh[1:], again[1:]) and torch.equal(fresh.frame.depth, again.frame.depth)


def test_what_follows_the_network_never_looks_from_the_host():
    eye, source = Reconstructor(network(), reset_every=3), stream(3)
    for frame in source:
        eye.step(frame)
    frame = eye._prepared(source[2]._replace(world_from_camera=torch.eye(4, dtype=torch.float64)[None]))
    with torch.no_grad(), NoHostLook():
        readout = eye._stream.step(frame)
        now, _ = eye._seen(frame, eye._now, readout)
        eye._turned(frame, readout, now)


def test_the_state_has_one_size():
    eye, source = Reconstructor(network(), reset_every=5), stream(2)
    size, named = eye.nbytes, eye.state_tree()
    for i in range(40):
        eye.step(source[i % 2])
    assert eye.nbytes == size and all(x.shape == named[name].shape for name, x in eye.state_tree().items())


class Scripted(torch.nn.Module):
    """A network that knows the truth of a synthetic stream, in the axes of each chunk's first camera, at a scale that
    each chunk draws anew: what remains is the adapter."""

    def __init__(self, source, scales, noise=0.0):
        super().__init__()
        self.source, self.scales, self.noise, self.calls, self.chunk = source, scales, noise, 0, 0
        self.config, self.update = dataclasses.replace(TINY), Replace()
        self.pose_token = torch.nn.Parameter(torch.zeros(1))
        self.at = 0

    def init_state(self, batch):
        tokens = torch.zeros(batch, 1, 1)
        return ReconState(tokens, tokens, torch.zeros(batch, dtype=torch.int64), ())

    def forward(self, state, frame):
        if int(state.frames) == 0:
            self.first = self.source.camera_at(self.at).world_from_camera
            self.scale = self.scales[self.chunk]
            self.chunk += 1
        camera = self.source.camera_at(self.at)
        depth = self.source.scene_at(self.at).render(camera).depth
        from streammem.geometry import quaternion_from_motion, unproject

        points = unproject(depth, camera.intrinsics)[None] * self.scale
        points = points * (1 + self.noise * torch.randn_like(points[..., :1]))
        t, xyzw = quaternion_from_motion(inverse_rigid(self.first) @ camera.world_from_camera)
        pose = torch.cat([t * self.scale, xyzw.roll(1, -1)])[None].float()
        ones = torch.ones_like(points[..., 0])
        readout = ReconReadout(points, ones * 2, points, ones, points, pose, ones[:, 0, :1])
        return state._replace(frames=state.frames + 1), readout


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_resets_keep_world_and_scale(noise):
    """Chunks of a true network at scales of their own end up in one world, at the scale of the first."""
    source = stream(19, noise="none")
    scales = [1.0, 0.7, 1.9, 0.4, 1.3, 2.2, 0.9, 1.0]
    model = Scripted(source, scales, noise)
    eye, mapper = Reconstructor(model, reset_every=6, lens=Fitted()), Mapper(MAP_SETTINGS)
    first = source.camera_at(0).world_from_camera
    worst_pose, worst_depth = 0.0, 0.0
    for i in range(19):
        model.at = i
        seen = eye.step(source[i])
        wanted = inverse_rigid(first) @ source.camera_at(i).world_from_camera
        worst_pose = max(worst_pose, float((seen.frame.world_from_camera[0] - wanted).abs().max()))
        truth = source.scene_at(i).render(source.camera_at(i)).depth
        known = seen.frame.depth[0] > 0
        worst_depth = max(worst_depth, float((seen.frame.depth[0] / truth - 1)[known].median().abs()))
        assert mapper.step(seen.frame).status == "tracked"
    assert eye.health()["resets"] == [3] and eye.health()["unaligned"] == [0]
    assert worst_pose < (1e-4 if noise == 0 else 0.05) and worst_depth < (1e-4 if noise == 0 else 0.02)
    camera = Camera(source.camera_intrinsics, inverse_rigid(first) @ source.camera_at(9).world_from_camera, 48, 64)
    view, truth = mapper.raycast(camera), source.scene_at(9).render(source.camera_at(9)).depth
    both, near = (view.depth > 0) & (truth < 3.5), truth < 3.5
    assert both.sum() > 0.8 * near.sum() and float((view.depth - truth)[both].abs().median()) < 0.05


MAP_SETTINGS = config.build(
    MapSettings,
    config.read(ROOT / "configs/recon/synthetic_rgb.yaml")["map"] | {"max_bytes": 32 * 2**20},
    "synthetic_rgb.yaml",
)


def test_poses_that_frames_bring_are_where_they_say_and_tell_the_scale():
    """A network at half the size of the world, in a world of its own; every third frame brings no pose."""
    source = stream(10, noise="none")
    model = Scripted(source, [0.5, 0.8, 1.7])
    eye = Reconstructor(model, reset_every=4, lens=Fitted())
    for i in range(10):
        model.at = i
        true = source.camera_at(i).world_from_camera
        given = torch.full_like(true, torch.nan) if i % 3 == 2 else true
        seen = eye.step(source[i]._replace(world_from_camera=given[None]))
        surely = given.isfinite().all() or i > 5  # until then it moves too little to tell a scale
        assert torch.allclose(seen.frame.world_from_camera[0], true, atol=1e-4 if surely else 0.01)
        truth, known = source.scene_at(i).render(source.camera_at(i)).depth, seen.frame.depth[0] > 0
        if i > 5:
            assert float((seen.frame.depth[0] / truth - 1)[known].abs().max()) < 1e-3
    model.at = 4
    assert torch.allclose(
        eye.peek(source[4]).frame.world_from_camera[0], source.camera_at(4).world_from_camera, atol=1e-4
    )


def test_a_rejected_alignment_chains_poses():
    source = stream(8, noise="none")
    model = Scripted(source, [1.0, 1.0, 1.0])
    eye = Reconstructor(model, reset_every=4, align=dataclasses.replace(Reconstructor(network()).align, least_gap=10.0))
    for i in range(8):
        model.at = i
        seen = eye.step(source[i])
    wanted = inverse_rigid(source.camera_at(0).world_from_camera) @ source.camera_at(7).world_from_camera
    assert torch.allclose(seen.frame.world_from_camera[0], wanted, atol=1e-5)
    assert eye.health()["unaligned"] == [2]


def test_points_and_depth_are_in_one_world():
    eye = Reconstructor(network(), trust=Trust(drop=0, power=0))
    seen = seen_all(eye, stream(2))[-1]
    there = transform(inverse_rigid(seen.frame.world_from_camera), seen.points.double())
    written = seen.frame.depth > 0
    assert torch.allclose(there[..., 2].float()[written], seen.frame.depth[written], atol=1e-4)


def test_other_sizes_and_settings_are_refused():
    eye = Reconstructor(network())
    eye.step(stream(1)[0])
    with pytest.raises(ShapeError, match="as before"):
        eye.step(stream(1, height=96, width=128)[0])
    with pytest.raises(ConfigError, match="reset_every is -1"):
        Reconstructor(network(), reset_every=-1)
    with pytest.raises(ShapeError, match="no intrinsics, and no lens"):
        Reconstructor(network(), lens=None).step(stream(1)[0]._replace(intrinsics=None))


def test_a_query_asks_by_rays_in_the_streams_world():
    eye = Reconstructor(network(), reset_every=3)
    source = stream(5)
    seen = seen_all(eye, source)[-1]
    camera = Camera(seen.frame.intrinsics[0], seen.frame.world_from_camera[0], 48, 64)
    before = {name: x.clone() for name, x in eye.state_tree().items()}
    told = eye.query(camera)
    assert told.points_world.shape == (1, 48, 64, 3) and all(x.isfinite().all() for x in told)
    assert all(alike(x, before[name]) for name, x in eye.state_tree().items())
    moved = dataclasses.replace(camera, world_from_camera=camera.world_from_camera + torch.eye(4).roll(1, 1) * 0.5)
    assert not torch.allclose(eye.query(moved).points_camera, told.points_camera)


def test_a_map_of_rays_is_the_one_the_weights_were_trained_with():
    path = ROOT.parent / "shared/golden/tiny.inputs.safetensors"
    K = torch.tensor([[[60.0, 0, 32], [0, 60, 24], [0, 0, 1]]])
    pose = torch.eye(4, dtype=torch.float64)[None]
    pose[0, :3, 3] = torch.tensor([0.3, -0.2, 0.1])
    made = ray_map(K, pose, 48, 64)
    u, v = 40, 10
    ahead = torch.tensor([(u - 32) / 60 + 0.3, (v - 24) / 60 - 0.2, 1.1])
    assert torch.allclose(made[0, v, u], torch.cat([pose[0, :3, 3].float(), ahead / ahead.norm()]))
    if path.is_file():
        rays = load_file(path).get("ray_map")
        assert rays is None or rays.shape[-1] == made.shape[-1]


def test_the_pose_of_a_readout_is_a_camera():
    readout = ReconReadout(*[torch.zeros(1)] * 5, torch.tensor([[1.0, 2, 3, 0.5, 0.5, 0.5, 0.5]]), None)
    wanted = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 2], [0, 1, 0, 3], [0, 0, 0, 1]], dtype=torch.float64)
    assert torch.allclose(camera_pose(readout)[0], wanted)


# ---- confidence as precision


def test_pixels_are_written_as_often_as_they_are_confident():
    confidence = 1 + torch.rand(1, 32, 48) * 9
    trust = Trust(drop=0.1, full=0.8, cell_px=4)
    state, count, views_ = trust.init(1), torch.zeros(1, 32, 48), 600
    for i in range(views_):
        state, written = trust.step(state, confidence, torch.tensor([i]))
        count += written
    share = (confidence / confidence.flatten().quantile(0.8)).square().clamp(max=1)
    dropped = confidence < confidence.flatten().quantile(0.1)
    assert int(count[dropped].max()) == 0
    assert float((count / views_ - share)[~dropped].abs().max()) < 0.01


def test_a_view_that_doubts_everything_is_written_less():
    trust = Trust(drop=0)
    state, sure = trust.step(trust.init(1), torch.full((1, 40, 40), 4.0), torch.tensor([0]))
    for i in range(1, 8):
        state, sure = trust.step(state, torch.full((1, 40, 40), 4.0), torch.tensor([i]))
    _, doubtful = trust.step(state, torch.full((1, 40, 40), 2.0), torch.tensor([8]))
    assert sure.all() and float(doubtful.float().mean()) == pytest.approx(0.25, abs=0.08)
    _, nothing = trust.step(state, torch.full((1, 40, 40), float("nan")), torch.tensor([8]))
    assert not nothing.any()


def test_a_ring_keeps_the_last():
    state = ring(2, 3)
    assert median(state).isnan().all()
    for i in range(5):
        state = noted(state, torch.tensor([float(i + 1), float("nan")]))
    assert sorted(state.values[0].tolist()) == [3, 4, 5] and state.count.tolist() == [5, 0]
    assert float(median(state)[0]) == 4


# ---- sources


def test_the_synthetic_colour_camera_holds_depth_and_poses_back():
    one, other = open_source("synthetic:rgb", frames=3), Synthetic(3, 48, 64, noise="none")
    frame = one[1]
    assert frame.depth is None and frame.world_from_camera is None and torch.equal(frame.image, other[1].image)
    assert torch.equal(one.camera_at(1).world_from_camera, other.camera_at(1).world_from_camera)


def test_a_webcam_is_read_in_order_and_ends_when_it_is_gone(monkeypatch, file, tmp_path, capsys):
    from streammem.errors import SourceError
    from streammem.sources import webcam

    class Capture:
        def __init__(self, number):
            self.left = [np.full((48, 64, 3), i, np.uint8) for i in range(4)] if number == 0 else []

        def isOpened(self):
            return True

        def set(self, what, value):
            return True

        def read(self):
            picture = self.left.pop(0) if self.left else None
            return (False, None) if picture is None or picture[0, 0, 0] == 2 else (True, picture)

    class Library:
        VideoCapture, CAP_PROP_FPS = Capture, 5

    monkeypatch.setattr(webcam, "cv2", Library)
    monkeypatch.setattr(webcam, "PATIENCE", 2)
    camera = open_source("webcam")
    frames = list(camera)
    assert [bool(f.valid[0]) for f in frames] == [True, False, True, False, False] and not camera.again
    assert camera.counters["invalid: no picture arrived"] == 3
    times = [float(f.time_s[0]) for f in frames]
    assert times == sorted(times)
    with pytest.raises(SourceError, match="is live"):
        camera[0]
    with pytest.raises(SourceError, match="webcam 3 cannot be opened"):
        open_source("webcam:3")
    live = tmp_path / "live"
    assert cli.main(["reconstruct", "--source", "webcam", "--weights", str(file), "--out", str(live), *MAP]) == 0
    assert "live, until it is ended" in capsys.readouterr().err and "frames, live" in (live / "report.html").read_text()
    monkeypatch.setattr(webcam, "cv2", None)
    with pytest.raises(SourceError, match="pip install opencv"):
        open_source("webcam")


def test_pictures_are_turned_as_the_camera_was_held(tmp_path):
    from PIL import Image

    picture = Image.fromarray(np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3))
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.save(tmp_path / "1.png", exif=turned)
    assert Video(tmp_path)[0].image.shape == (1, 3, 6, 4)


# ---- real pictures


def real(recordings, every=40):
    """Colour of the recordings, by name."""
    from streammem.sources import Folder

    kitchen = Folder(recordings / "redkitchen", depth_scale="millimetres", intrinsics="7scenes", every=every)
    cabinet = Folder(
        recordings / "tum_fr3_cabinet", depth_scale="tum", intrinsics="freiburg3", every=max(1, every // 4)
    )
    return {"redkitchen": kitchen, "tum_fr3_cabinet": cabinet}


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["redkitchen", "tum_fr3_cabinet"])
def test_the_whole_path_runs_on_real_pictures(name, every, recordings):
    """With the small network of the package, or random weights of its like where there is none."""
    model = weights.load(build.TINY, update=Confidence())[0] if build.TINY.is_file() else network()
    eye, mapper = Reconstructor(model, reset_every=3), Mapper(MAP_SETTINGS)
    source = real(recordings, every)[name]
    assert len(source) >= 3
    for frame in source:
        check_seen(eye.step(frame), mapper, (48, 64))


def check_seen(seen, mapper, size):
    """Finite, of the right sizes, and taken by the map."""
    assert seen.frame.depth.shape[1:] == size and seen.points.shape[1:] == (*size, 3)
    for x in (seen.frame.depth, seen.frame.world_from_camera, seen.intrinsics, seen.points, seen.confidence, seen.gate):
        assert x.isfinite().all()
    assert mapper.step(seen.frame).status in ("tracked", "skipped")


@pytest.mark.slow
def test_the_full_network_runs_on_real_pictures(recordings):
    """793 million random weights, 512 pixels, three frames; no accuracy is claimed."""
    eye, mapper = Reconstructor(network(config=PRESETS["full512_dpt"]), reset_every=2), Mapper(MAP_SETTINGS)
    for frame in list(real(recordings)["redkitchen"])[:3]:
        check_seen(eye.step(frame), mapper, (384, 512))
    assert eye.health()["resets"] == [1]
    network_bytes = sum(x.numel() * 4 for x in eye._stream.snapshot().inner[:2])
    assert network_bytes == PRESETS["full512_dpt"].state_bytes == 3932160


# ---- selfcheck


def test_selfcheck_without_references_compares_the_device_with_float64(capsys):
    assert cli.main(["selfcheck"]) == 0
    said = capsys.readouterr().out
    assert "no --golden DIR" in said and "points_world, relative L2" in said and "tolerance 1e-04" in said


def test_selfcheck_finds_a_device_that_computes_wrongly(monkeypatch, capsys):
    kept = selfcheck._walk

    def wrong(model, device, dtype):
        made = kept(model, device, dtype)
        return made if dtype == torch.float64 else {**made, "pose": made["pose"] * 1.001}

    monkeypatch.setattr(selfcheck, "_walk", wrong)
    assert cli.main(["selfcheck"]) == 1
    assert capsys.readouterr().out.count("MISS") == 1


def test_selfcheck_runs_what_is_present_and_exits_1_on_a_miss(monkeypatch, capsys, tmp_path):
    assert cli.main(["selfcheck", "--golden", str(tmp_path)]) == 2
    monkeypatch.setattr(golden, "runs", lambda folder: ["one", "other"])
    errors = {"one": 1e-6, "other": float("nan")}
    monkeypatch.setattr(golden, "run", lambda name, *_: [golden.Difference("pose, largest", errors[name], 1e-5)])
    assert cli.main(["selfcheck", "--golden", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "ok   pose, largest" in said and "MISS pose, largest" in said and "1 of 2 runs within tolerance" in said
    assert cli.main(["selfcheck", "--golden", str(tmp_path), "--only", "one"]) == 0
    assert cli.main(["selfcheck", "--golden", str(tmp_path), "--only", "three"]) == 2


def test_selfcheck_with_the_references(capsys):
    folder = ROOT.parent / "shared/golden"
    if not folder.is_dir():
        pytest.skip("no golden runs: ../shared/golden does not exist beside the project")
    assert cli.main(["selfcheck", "--golden", str(folder), "--only", "tiny_linear.ttt3r"]) == 0
    assert "tiny_linear.ttt3r_reset" in capsys.readouterr().out


def test_an_unchanged_frame_type():
    """A colour frame through the door, with nothing known of its lens."""
    frame = frame_from(np.zeros((48, 64, 3), np.uint8))
    assert isinstance(frame, Frame) and Reconstructor(network()).step(frame).frame.depth.shape == (1, 48, 64)
