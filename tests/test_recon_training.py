"""Random rooms, the rollout they are trained by, training that can be stopped, and the bench of update rules."""

import json
from dataclasses import replace
from itertools import islice

import pytest
import torch

from apps import train_recon
from apps.bench import gating
from apps.bench.gating_report import write_report
from apps.bench.workload import Gating
from apps.train_recon.data import DataSettings, Rooms, rendered, seeds
from apps.train_recon.loss import errors, misplaced, rollout, truth
from apps.train_recon.settings import ReconTrainSettings, Stage
from apps.train_recon.trainer import MIDDLE, ReconTrainer, rate_at
from streammem import tree
from streammem.errors import CheckpointError, ConfigError
from streammem.geometry import project, quaternion_from_motion
from streammem.recon import weights
from streammem.recon.config import ReconConfig
from streammem.recon.model import ReconModel
from streammem.recon.updates import UPDATES
from streammem.scan import scan
from streammem.sources.rooms import WALKS, RandomRoom

MODEL = ReconConfig(
    patch_size=8,
    enc_embed_dim=16,
    enc_depth=1,
    enc_num_heads=2,
    dec_embed_dim=16,
    dec_depth=4,
    dec_num_heads=2,
    state_dec_num_heads=4,
    ray_enc_depth=1,
    ray_enc_num_heads=2,
    state_size=9,
    local_mem_size=3,
    rope_half_rounding=False,
    image_size=(24, 32),
)
DATA = DataSettings(sequences=4, frames=5, height=24, width=32, wandering=1.0, known=True, ahead_rad=1.0)
STAGES = (Stage(2, 2, 1, "places", 2e-3), Stage(1, 2, 1, "room"), Stage(2, 2, 2, "scattered"), Stage(2, 2, 4, "walk"))
TINY = ReconTrainSettings(model=MODEL, data=DATA, stages=STAGES, warm_up=1, evaluate_every=3, evaluate_on=2)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    return Rooms(DATA, tmp_path_factory.mktemp("rooms"))


@pytest.mark.parametrize("walk", WALKS)
def test_a_room_is_the_same_again_and_another_for_another_seed(walk):
    a, b, c = (RandomRoom(seed, 24, 32, walk).render(7) for seed in (3, 3, 4))
    assert torch.equal(a.depth, b.depth) and torch.equal(a.colour, b.colour) and not torch.equal(a.depth, c.depth)
    assert a.depth.dtype == torch.float32


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("seed", range(6))
def test_cameras_are_in_free_space_and_see_something_everywhere(walk, seed):
    room = RandomRoom(seed, 24, 32, walk)
    for i in (0, 31, 200, 511):
        pose = room.camera_at(i).world_from_camera
        assert room.scene.distance(pose[:3, 3]) > 0.05
        view = room.render(i)
        assert (view.depth > 0).all() and ((view.colour >= 0) & (view.colour <= 1)).all()


def test_a_wandering_camera_stays_near_and_late_frames_are_like_early_ones():
    for seed in range(8):
        room = RandomRoom(seed)
        poses = torch.stack([room.camera_at(i).world_from_camera for i in range(600)])
        spread = [part[:, :3, 3].std(0).norm() for part in poses.split(300)]
        assert (poses[:, :2, 3] - poses[0, :2, 3]).norm(dim=-1).max() < 1.0 and 0.6 < spread[0] / spread[1] < 1.7


def test_an_unknown_walk_is_refused():
    with pytest.raises(ConfigError, match="wander"):
        RandomRoom(0, walk="fly")


def test_clips_hold_together(rooms):
    clips = rooms.draw(torch.Generator().manual_seed(1), 3, 4)
    assert clips.image.shape == (3, 4, 3, 24, 32) and clips.image.abs().max() <= 1
    wanted = truth(clips)
    _, _, depth = project(wanted.points_camera, clips.intrinsics)
    torch.testing.assert_close(depth, clips.depth, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(wanted.points_world[:, 0], wanted.points_camera[:, 0], rtol=1e-4, atol=1e-4)


def test_a_rollout_is_the_steps(rooms):
    torch.manual_seed(2)
    model, clips = ReconModel(MODEL), rooms.draw(torch.Generator().manual_seed(1), 2, 4)
    with torch.no_grad():
        _, stepped = scan(model, model.init_state(2), gating.views(clips.image))
        together = rollout(model, clips.image)
        part = rollout(model, clips.image, [1, 3])
    for ours, theirs in zip(tree.leaves(together), tree.leaves(stepped)):
        torch.testing.assert_close(ours, theirs.transpose(0, 1), rtol=1e-3, atol=1e-4)
    assert part.pose.shape[1] == 4 and part.points_world.shape[1] == 2
    torch.testing.assert_close(part.points_world, together.points_world[:, [1, 3]], rtol=1e-3, atol=1e-4)


def test_a_perfect_readout_has_no_error(rooms):
    clips = rooms.draw(torch.Generator().manual_seed(1), 2, 3)
    wanted = truth(clips)
    t, xyzw = quaternion_from_motion(wanted.camera)
    with torch.no_grad():
        said = rollout(ReconModel(MODEL), clips.image)
    right = said._replace(
        points_camera=wanted.points_camera,
        points_world=wanted.points_world,
        pose=torch.cat([t, xyzw.roll(1, -1)], -1),
        confidence_camera=torch.ones_like(said.confidence_camera),
        confidence_world=torch.ones_like(said.confidence_world),
        colour=clips.image.movedim(2, -1),
    )
    assert sum(errors(right, wanted, clips.image)) < 1e-5 < sum(errors(said, wanted, clips.image))


def test_training_that_was_stopped_goes_on_as_if_it_had_not(rooms, tmp_path):
    whole, first = ReconTrainer(TINY, rooms), ReconTrainer(TINY, rooms)
    for trainer, steps in ((whole, TINY.steps), (first, 4)):
        for _ in range(steps):
            trainer.advance()
    first.save(tmp_path / "checkpoint")
    rest = ReconTrainer(TINY, rooms)
    rest.load(tmp_path / "checkpoint")
    while not rest.done:
        rest.advance()
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), rest.model.parameters()))
    other = ReconTrainer(ReconTrainSettings(model=MODEL, data=DATA, stages=TINY.stages, seed=1), rooms)
    with pytest.raises(CheckpointError, match="seed was 0, is 1"):
        other.load(tmp_path / "checkpoint")


def test_the_rate_falls_from_stage_to_stage_and_rises_at_each_beginning():
    told = replace(TINY, stages=(Stage(10, 2, 1, "places", 2e-3), Stage(10, 2, 4, rate=1e-3)), warm_up=3)
    rates = [rate_at(told, step) for step in range(told.steps + 1)]
    assert rates[0] < rates[1] < rates[2] and 1e-3 < rates[9] < rates[5] < 2e-3
    assert rates[10] == pytest.approx(1e-3 / 3) and rates[13] < 1e-3 and rates[-1] < 1e-9
    assert [told.stage(i).frames for i in (0, 9, 10, 19)] == [1, 1, 4, 4]


def test_the_first_stage_teaches_the_encoder_alone(rooms):
    trainer = ReconTrainer(TINY, rooms)
    before = {name: x.clone() for name, x in trainer.model.state_dict().items()}
    trainer.advance()
    moved = {
        name.partition(".")[0] for name, x in trainer.model.state_dict().items() if not torch.equal(x, before[name])
    }
    assert moved == {"patch_embed", "enc_blocks", "enc_norm"}


def test_a_memory_that_is_shut_stays_as_it_begins(rooms):
    trainer = ReconTrainer(replace(TINY, shut=True, stages=(Stage(2, 2, 3),)), rooms)
    while not trainer.done:
        trainer.advance()
    model, view = trainer.model, next(gating.views(torch.rand(2, 1, 3, 24, 32)))
    first = model.init_state(2)
    assert torch.equal(model(first, view)[0].pose_memory, first.pose_memory)
    assert not torch.equal(model(first, view)[0].tokens, first.tokens)


def test_a_perfect_reading_of_places_has_no_error(rooms):
    clips = rooms.draw(torch.Generator().manual_seed(1), 3, 1)
    wanted = truth(clips, MIDDLE)
    columns = 32 // MODEL.patch_size
    points = wanted.points_world[:, 0].unflatten(1, (-1, MODEL.patch_size)).unflatten(3, (columns, -1))
    right = points.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)  # [B, N, 3 patch^2]
    assert misplaced(lambda _: right, torch.zeros(1), wanted, MODEL.patch_size) < 1e-6
    assert misplaced(lambda _: right.flip(0), torch.zeros(1), wanted, MODEL.patch_size) > 0.05


def test_an_origin_in_the_room_tells_views_apart_that_begin_a_clip(rooms):
    clips = rooms.draw(torch.Generator().manual_seed(1), 3, 2)
    anchored, own = truth(clips, MIDDLE), truth(clips)
    torch.testing.assert_close(own.camera[:, 0], torch.eye(4).expand(3, 4, 4), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(MIDDLE @ anchored.camera, clips.world_from_camera, rtol=1e-4, atol=1e-4)
    assert (anchored.camera[:, 0] - anchored.camera[:1, 0]).abs().amax((1, 2))[1:].min() > 1e-3


def test_scattered_views_are_of_the_room_and_of_no_walk(rooms):
    clips = rooms.scattered(torch.Generator().manual_seed(1), 8, 3)
    assert clips.image.shape == (8, 3, 3, 24, 32) and clips.world_from_camera.shape == (8, 3, 4, 4)
    _, _, depth = project(truth(clips).points_camera, clips.intrinsics)
    torch.testing.assert_close(depth, clips.depth, rtol=1e-4, atol=1e-4)
    moved = truth(clips).camera[:, 1:, :3, 3].norm(dim=-1)
    walked = truth(rooms.draw(torch.Generator().manual_seed(1), 8, 3)).camera[:, 1:, :3, 3].norm(dim=-1)
    assert moved.mean() > 2 * walked.mean()


def test_walks_that_look_ahead_do(rooms):
    for seed, walk in islice(seeds(0, "wander", 50, 0.8), 3):
        poses = torch.stack([RandomRoom(seed, 24, 32, walk, True).camera_at(i).world_from_camera for i in range(50)])
        assert torch.atan2(poses[:, 1, 2], poses[:, 0, 2]).abs().max() <= 0.8
    assert [seed for seed, _ in islice(seeds(7, "round", 5, None), 3)] == [7, 8, 9]
    for walk, ahead in (("round", 1.0), ("wander", 0.1)):
        with pytest.raises(ConfigError, match="ahead_rad"):
            next(seeds(0, walk, 5, ahead))


@pytest.mark.parametrize(
    "stage, data, words",
    [
        (Stage(1, 1, 2, "room"), DATA, "single views"),
        (Stage(1, 1, 1, "guess"), DATA, "kind"),
        (Stage(1, 1, 2, rate=0.0), DATA, "rate"),
        (Stage(1, 1, 2, "scattered"), DataSettings(), "data.known"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stage, data, words):
    with pytest.raises(ConfigError, match=words):
        ReconTrainSettings(model=MODEL, data=data, stages=(stage,))


def test_the_program_trains_resumes_and_writes_weights_that_load(tmp_path, capsys):
    argv = ["--out", str(tmp_path / "run"), "--rooms", str(tmp_path / "rooms"), *overrides()]
    assert train_recon.main(argv) == 0
    assert {"checkpoint.safetensors", "curve.svg", "run.yaml", "weights.safetensors"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    with pytest.raises(ConfigError, match="holds a run"):
        train_recon.main(argv)
    assert train_recon.main([*argv, "--resume"]) == 0
    model, said = weights.load(tmp_path / "run" / "weights.safetensors")
    assert model.config == MODEL and "synthetic rooms" in said.licence
    assert "from step 2 of 2" in capsys.readouterr().out


def overrides() -> list[str]:
    """The settings of these tests, as the command line takes them."""
    model = {name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__}
    told = [f"model.{name}={json.dumps(value)}" for name, value in model.items()]
    told += ["data.sequences=2", "data.frames=3", "data.height=24", "data.width=32", "evaluate_on=2"]
    return [*told, 'stages=[{"steps": 2, "batch": 1, "frames": 2}]']


def test_the_bench_scores_a_perfect_walk_as_perfect():
    told = Gating(lengths=(4, 8), sequences=2)
    seen = gating.clips(told, "wander")
    cameras = gating.truth(seen)
    right = gating.Walked(cameras, torch.zeros(2, 8), torch.ones(2, 8))
    for length in told.lengths:
        found = gating.scores(right, cameras, length)
        assert max(x.abs().max() for x in found) < 1e-3
    moved = cameras.clone()
    moved[:, :, 0, 3] += 0.5
    off = gating.scores(right._replace(pose=moved), cameras, 8)
    torch.testing.assert_close(off.late, torch.full((2,), 0.5))
    assert off.ate.max() < 1e-3  # an alignment takes a shift away


def test_the_bench_walks_under_every_rule(tmp_path):
    torch.manual_seed(0)
    model = ReconModel(MODEL).requires_grad_(False)
    seen = rendered(5, 6, 24, 32, "round")
    for rule in (*(make() for make in UPDATES.values()), gating.Frozen()):
        said = gating.walked(model, rule, seen)
        assert said.pose.shape == (1, 6, 4, 4) and all(x.isfinite().all() for x in said)
    anew = gating.walked_anew(model, UPDATES["replace"](), seen, 100)
    plain = gating.walked(model, UPDATES["replace"](), seen)
    torch.testing.assert_close(anew.pose, plain.pose, rtol=0, atol=1e-2)  # pictures are rounded to bytes
    torch.testing.assert_close(anew.depth, plain.depth, rtol=1e-2, atol=1e-2)
    assert gating.walked_anew(model, UPDATES["replace"](), seen, 3).pose.isfinite().all()
    assert gating.walked(model, gating.Frozen(), seen).gate[0].tolist() == [1.0, 0, 0, 0, 0, 0]


def test_the_report_of_the_bench_tells_means_and_spreads(tmp_path):
    table = {"replace": {4: gating.Scores(*torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.5, 0.5], [0.1, 0.3]]))}}
    (tmp_path / "a.svg").write_text("<svg/>")
    write_report(tmp_path / "report.html", {"wander": tmp_path / "a.svg"}, {"wander": table})
    text = (tmp_path / "report.html").read_text()
    assert "<svg/>" in text and all(cell in text for cell in ("1.500 &plusmn; 0.707", "4.000 &plusmn; 1.414"))
