"""Sources against what is known of them: analytic distances, made-up recordings, real ones."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from streammem import geometry
from streammem.errors import ConfigError, SourceError
from streammem.geometry import Camera, rigid_error, transform, unproject
from streammem.sources import TUM, Folder, Prefetch, Synthetic, Video, open_source
from streammem.sources.kinect import DISPARITY_M, Kinect
from streammem.sources.room import REMOVABLE
from streammem.sources.scene import Box, Cylinder, Room, Scene, Sphere
from streammem.sources.tum import associate

SOLIDS = {
    "box": Box((0.3, -0.2, 2.0), (0.3, 0.2, 0.4), 0.6),
    "cylinder": Cylinder((0.1, 0.1, 2.0), (0.25, 0.25, 0.3)),
    "sphere": Sphere((0.0, 0.2, 2.0), (0.4, 0.4, 0.4)),
    "room": Room((0.0, 0.0, 1.0), (2.0, 1.5, 1.8), 0.3),
}


def looking_along_z(height: int = 48, width: int = 64) -> Camera:
    K = torch.tensor([[60.0, 0, (width - 1) / 2], [0, 60, (height - 1) / 2], [0, 0, 1]])
    return Camera(K, torch.eye(4, dtype=torch.float64), height, width)


@pytest.fixture(scope="module")
def clean() -> Synthetic:
    return Synthetic(frames=400, height=60, width=80, noise="none")


@pytest.mark.parametrize("name", SOLIDS)
def test_rays_meet_solids_where_the_distance_is_zero(name):
    """The first zero of the distance along each ray, by sphere tracing, is the depth that is rendered."""
    scene, camera = Scene((SOLIDS[name],)), looking_along_z()
    _, direction = camera.rays()
    at = torch.zeros(48, 64)
    for _ in range(300):
        at = at + scene.distance(direction * at[..., None]).clamp(max=0.5) / direction.norm(dim=-1)
    met = scene.distance(direction * at[..., None]).abs() < 1e-5
    view = scene.render(camera)
    assert 200 < int(met.sum())
    assert ((view.depth > 0) == met).float().mean() > 0.998  # but for rays that graze
    both = met & (view.depth > 0)
    torch.testing.assert_close(view.depth[both], at[both], rtol=0, atol=2e-3)
    assert scene.distance(direction * view.depth[..., None])[view.depth > 0].abs().max() < 1e-5


@pytest.mark.parametrize("name", SOLIDS)
def test_normals_are_the_gradient_of_the_distance(name):
    scene, camera = Scene((SOLIDS[name],)), looking_along_z()
    view = scene.render(camera)
    _, direction = camera.rays()
    seen = view.depth > 0
    points = (direction * view.depth[..., None])[seen].double().requires_grad_()
    scene.distance(points).sum().backward()
    agreement = (points.grad * view.normal[seen]).sum(-1)
    assert (agreement > 0.999).double().mean() > 0.97  # but for pixels on an edge


def test_solids_beside_and_behind_the_camera():
    """A wall that reaches past the camera is seen where its face x = 1/2 is; what is behind is not seen."""
    beside, behind = Box((0.8, 0.0, 0.0), (0.3, 0.503, 2.0)), Sphere((0.0, 0.0, -2.0), (0.5, 0.5, 0.5))
    camera = looking_along_z()
    _, direction = camera.rays()
    depth = 0.5 / direction[..., 0]
    seen = (depth > 0) & (depth < 2) & ((direction[..., 1] * depth).abs() < 0.503)
    view = Scene((beside, behind)).render(camera)
    torch.testing.assert_close(view.depth, torch.where(seen, depth, 0.0))
    assert 100 < int(seen.sum())
    for nothing in (view.normal, view.colour):
        assert nothing[~seen].count_nonzero() == 0


@pytest.mark.parametrize("index", [0, 37, 199, 350])
def test_every_pixel_lies_on_a_surface(clean, index):
    frame = clean[index]
    points = transform(frame.world_from_camera[0], unproject(frame.depth[0], frame.intrinsics[0]).double())
    assert (frame.depth > 0).all()
    assert clean.scene.distance(points).abs().max() < 1e-4


def test_the_camera_walks_smoothly_in_free_space_and_comes_back(clean):
    poses = [clean.camera_at(i).world_from_camera for i in range(801)]
    centres = torch.stack(poses)[:, :3, 3]
    assert clean.scene.distance(centres).min() > 0.5
    assert (centres[1:] - centres[:-1]).norm(dim=-1).max() < 0.03  # metres a frame, at 30 a second
    turns = torch.stack([geometry.rotation_angle(a.T @ b) for a, b in itertools.pairwise(poses)])
    assert turns.rad2deg().max() < 2.5
    torch.testing.assert_close(centres[800], centres[0], atol=1e-9, rtol=0)
    assert max(float(rigid_error(pose)) for pose in poses) < 1e-12
    assert all(pose[2, 1] < 0 for pose in poses)  # the image's down is the world's


def test_frames_depend_on_the_seed_and_their_number_alone():
    make = {"frames": 9, "height": 24, "width": 32, "dropout": 0.3, "moving_objects": 2}
    streamed = list(Synthetic(**make, seed=3))
    resumed = list(Synthetic(**make, seed=3).since(5))
    for a, b in zip(streamed[5:], resumed, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b))
    other = Synthetic(**make, seed=4)
    assert not torch.equal(other[5].depth, streamed[5].depth)
    assert not torch.equal(streamed[5].depth, streamed[6].depth)


def test_dropouts_are_masked_and_counted():
    source = Synthetic(frames=80, height=6, width=8, dropout=0.25)
    frames = list(source)
    lost = [frame for frame in frames if not frame.valid]
    assert 8 < len(lost) < 32
    assert source.counters == {"frames": 80, "invalid: dropout": len(lost)}
    assert all(frame.depth.count_nonzero() == 0 for frame in lost)
    assert list(source.since(70)) and source.counters["frames"] == 10  # counted afresh


def test_a_removed_object_is_gone_and_moving_ones_move():
    source = Synthetic(frames=40, height=60, width=80, noise="none", removed_at=20, moving_objects=1)
    inside = torch.tensor([REMOVABLE.centre])
    assert source.scene_at(19).distance(inside) < 0 < source.scene_at(20).distance(inside)
    before, after = (source.scene_at(i).render(source.camera_at(20)) for i in (19, 20))
    assert 0.002 < ((before.depth - after.depth).abs() > 0.05).float().mean() < 0.2
    first, last = (source.scene_at(i).solids[-1].centre for i in (0, 39))
    assert np.linalg.norm(np.subtract(first, last)) > 0.1
    assert source.scene_at(5).distance(torch.tensor([source.scene_at(5).solids[-1].centre])) < 0
    assert source.scene.distance(torch.tensor([first])) > 0  # the still scene does not know them


def test_noise_of_depth_grows_with_its_square():
    sensor, random = Kinect(), torch.Generator().manual_seed(0)
    facing = torch.ones(200, 200)
    spread = {}
    for z in (1.0, 2.0, 4.0):
        depth = torch.full((200, 200), z) + torch.linspace(-0.05, 0.05, 200)  # over several levels
        measured = sensor.measure(depth, facing, random)
        kept = measured > 0
        assert 0.99 < kept.float().mean() < 1
        error = (measured - depth)[kept]
        spread[z] = float(error.std())
        assert abs(float(error.mean())) < 0.1 * spread[z]
        levels = measured[kept].unique()
        steps = levels.diff()
        torch.testing.assert_close(steps.median(), torch.tensor(z * z / DISPARITY_M), rtol=0.1, atol=0)
    assert 3.4 < spread[2.0] / spread[1.0] < 4.6 and 3.4 < spread[4.0] / spread[2.0] < 4.6
    assert 0.002 < spread[2.0] < 0.006  # metres, as a Kinect's


def test_depth_is_lost_at_edges_at_grazing_incidence_and_out_of_range():
    sensor, random = Kinect(), torch.Generator().manual_seed(0)
    facing = torch.ones(100, 100)
    step = torch.ones(100, 100)
    step[:, 50:] = 2.0
    kept = sensor.measure(step, facing, random) > 0
    assert kept[:, 49:51].float().mean() < 0.6 < 0.98 < kept[:, :48].float().mean()
    assert (sensor.measure(torch.ones(100, 100), 0.05 * facing, random) > 0).sum() == 0
    for out in (0.3, 6.0):
        assert (sensor.measure(torch.full((100, 100), out), facing, random) > 0).sum() == 0


@pytest.mark.parametrize("wrong", [{"noise": "lidar"}, {"frames": 0}, {"dropout": 1.5}])
def test_impossible_rooms_are_refused(wrong):
    with pytest.raises(ConfigError, match="wanted"):
        Synthetic(**wrong)


def write(folder, number: int, kind: str = "7scenes", depth_mm: int = 1500):
    """One frame of a made-up recording, 32x24 pixels, its red channel telling its number."""
    names = {
        "7scenes": ("frame-{:06d}.color.png", "frame-{:06d}.depth.png", "frame-{:06d}.pose.txt"),
        "plain": ("colour/{}.png", "depth/{}.png", "poses/{}.txt"),
    }[kind]
    colour, depth, pose = (folder / name.format(number) for name in names)
    for path in (colour, depth, pose):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((24, 32, 3), number, np.uint8)).save(colour)
    Image.fromarray(np.full((24, 32), depth_mm, np.uint16)).save(depth)
    np.savetxt(pose, np.eye(4) + np.eye(4, k=3) * number)
    np.savetxt(folder / "camera-intrinsics.txt", [[30, 0, 16], [0, 30, 12], [0, 0, 1]])
    return colour, depth, pose


def number_of(frame) -> int:
    return round((float(frame.image[0, 0, 0, 0]) + 1) * 127.5)


@pytest.mark.parametrize("kind", ["7scenes", "plain"])
def test_folders_are_read_in_the_order_of_their_numbers(tmp_path, kind):
    for number in (2, 10, 9, 100):
        write(tmp_path, number, kind)
    source = Folder(tmp_path)
    frames = list(source)
    assert [number_of(frame) for frame in frames] == [2, 9, 10, 100]
    assert [round(float(frame.time_s) * 30) for frame in frames] == [2, 9, 10, 100]
    assert [float(frame.world_from_camera[0, 0, 3]) for frame in frames] == [2, 9, 10, 100]
    assert float(frames[0].depth.max()) == pytest.approx(1.5)
    assert source.camera_intrinsics[0, 2] == 16
    assert [number_of(frame) for frame in Folder(tmp_path, every=2)] == [2, 10]
    assert [number_of(frame) for frame in Folder(tmp_path, limit=2).since(1)] == [9]


def test_damaged_files_cost_their_frames(tmp_path):
    for number in range(6):
        colour, depth, pose = write(tmp_path, number)
        if number in (0, 2):
            colour.write_bytes(colour.read_bytes()[:45])
        if number == 3:
            depth.unlink()
        if number == 4:
            pose.unlink()
        if number == 5:
            np.savetxt(pose, 2 * np.eye(4))
    source = Folder(tmp_path)
    frames = list(source)
    assert [bool(frame.valid) for frame in frames] == [False, True, False, False, True, False]
    assert source.counters == {
        "frames": 6,
        "invalid: unreadable file": 2,
        "invalid: no depth file": 1,
        "invalid: refused at the door": 1,
        "unposed": 1,
    }
    assert frames[4].world_from_camera.isnan().all()
    assert len({frame.image.shape for frame in frames}) == 1


def test_the_file_types_of_depth(tmp_path):
    write(tmp_path, 1)
    depth = tmp_path / "frame-000001.depth.png"
    values = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    Image.fromarray(values).save(depth)
    torch.testing.assert_close(Folder(tmp_path)[0].depth[0], torch.from_numpy(values / 1000).float())
    Image.fromarray(np.zeros((24, 32, 3), np.uint8)).save(depth)
    with pytest.raises(SourceError, match="looking at"):
        Folder(tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(SourceError, match="is not a folder"):
        Folder(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(SourceError, match="looked for frame-.* found notes.txt"):
        Folder(tmp_path)
    write(tmp_path, 1)
    (tmp_path / "camera-intrinsics.txt").unlink()
    with pytest.raises(SourceError, match=r"pass intrinsics=\(fx, fy, cx, cy\)"):
        Folder(tmp_path)
    assert Folder(tmp_path, intrinsics=(30, 30, 16, 12)).camera_intrinsics[1, 1] == 30
    with pytest.raises(SourceError, match="freiburg1"):
        Folder(tmp_path, intrinsics="gopro")
    (tmp_path / "poses.txt").write_text("1 2 3\n")
    (tmp_path / "frame-000001.pose.txt").unlink()
    with pytest.raises(SourceError, match="3 numbers a pose; wanted 8"):
        Folder(tmp_path, intrinsics=(30, 30, 16, 12))


def test_pictures_that_do_not_pair_are_refused(tmp_path):
    write(tmp_path, 1, "plain")
    (tmp_path / "depth" / "1.png").rename(tmp_path / "depth" / "7.png")
    with pytest.raises(SourceError, match="share no number"):
        Folder(tmp_path)


def test_seven_scenes_is_read(recordings):
    source = open_source(f"folder:{recordings / 'redkitchen'}", every=50)
    frames = list(source)
    assert len(source) == len(frames) == 3
    assert source.counters == {"frames": 3}
    assert [round(float(frame.time_s), 3) for frame in frames] == [0.0, 5.0, 10.0]
    for frame in frames:
        assert frame.image.shape == (1, 3, 480, 640) and frame.valid
        assert float(rigid_error(frame.world_from_camera).max()) < 1e-12
        assert 0.5 < float(frame.depth[frame.depth > 0].median()) < 4
        assert float(frame.depth.max()) < 20  # 65535 mm is not a depth
    assert source.camera_intrinsics.tolist() == [[585, 0, 320], [0, 585, 240], [0, 0, 1]]


def test_a_folder_with_a_trajectory_is_read(recordings):
    source = Folder(recordings / "tum_fr3_cabinet", depth_scale="tum", intrinsics="freiburg3", limit=3)
    frame = source[1]
    assert float(frame.time_s) == 1341841279.5107
    assert frame.world_from_camera[0, :3, 3].tolist() == [-2.4691, 1.0757, 1.0996]
    assert 0.5 < float(frame.depth[frame.depth > 0].median()) < 5


def tum_recording(folder, colour, depth, poses):
    """A recording in the format of TUM with the given stamps; the red channel of picture i is i."""
    for kind, stamps in (("rgb", colour), ("depth", depth)):
        (folder / kind).mkdir(parents=True)
        lines = ["# made up"]
        for i, stamp in enumerate(stamps):
            picture = np.full((24, 32, 3), i, np.uint8) if kind == "rgb" else np.full((24, 32), 5000 + i, np.uint16)
            Image.fromarray(picture).save(folder / kind / f"{i}.png")
            lines.append(f"{stamp:.6f} {kind}/{i}.png")
        (folder / f"{kind}.txt").write_text("\n".join(lines) + "\n")
    rows = [f"{stamp:.4f} {i} 0 0 0 0 0 1" for i, stamp in enumerate(poses)]
    (folder / "groundtruth.txt").write_text("# made up\n" + "\n".join(rows) + "\n")


def test_tum_pairs_by_nearest_stamp(tmp_path):
    """Stamps that are out of order, doubled, alone, and late."""
    folder = tmp_path / "freiburg1_made_up"
    colour = [10.00, 10.10, 10.05, 10.10, 10.20, 10.30]  # out of order; 10.10 doubled; 10.30 without depth
    depth = [10.001, 10.049, 10.061, 10.104, 10.19, 10.9]  # 10.061 loses 10.05 to 10.049; 10.9 alone
    tum_recording(folder, colour, depth, poses=[10.0, 10.05, 10.10, 10.5])
    source = TUM(folder, tolerance_s=0.02)
    frames = list(source)
    assert [float(frame.time_s) for frame in frames] == [10.001, 10.049, 10.104, 10.19]
    assert [number_of(frame) for frame in frames] == [0, 2, 1, 4]
    assert [float(frame.world_from_camera[0, 0, 3]) for frame in frames[:3]] == [0, 1, 2]
    assert frames[3].world_from_camera.isnan().all() and frames[3].valid
    assert source.counters == {"frames": 4, "paired": 4, "dropped": 2, "stale": 2, "unposed": 1}
    assert float(source.camera_intrinsics[0, 0]) == pytest.approx(517.3)
    with pytest.raises(SourceError, match="within 1e-05 s"):
        TUM(folder, tolerance_s=1e-5)


def test_tum_asks_for_what_it_cannot_know(tmp_path):
    tum_recording(tmp_path / "recording", [1.0], [1.0], [1.0])
    with pytest.raises(SourceError, match="does not name its camera"):
        TUM(tmp_path / "recording")
    assert TUM(tmp_path / "recording", intrinsics="freiburg2")[0].valid
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "rgb.txt").write_text("")
    with pytest.raises(SourceError, match="read it as a TUM recording"):
        Folder(tmp_path / "lists")
    with pytest.raises(SourceError, match="rgb.txt is missing"):
        TUM(tmp_path / "absent")
    (tmp_path / "recording" / "rgb.txt").write_text("one two three\n")
    with pytest.raises(SourceError, match="line 1"):
        TUM(tmp_path / "recording", intrinsics="freiburg2")


def test_association_prefers_the_closest_and_uses_each_once():
    assert associate([1.0, 1.1], [1.04], 0.1) == [(1.0, 1.04)]
    assert associate([1.0, 1.1], [1.06], 0.1) == [(1.1, 1.06)]
    assert associate([1.0, 1.1], [1.06], 0.1, once=False) == [(1.0, 1.06), (1.1, 1.06)]
    assert associate([2.0, 1.0], [1.01, 2.01], 0.02) == [(1.0, 1.01), (2.0, 2.01)]
    assert associate([1.0], [], 0.1) == associate([], [1.0], 0.1) == []
    assert associate([1.0], [1.5], 0.5) == [(1.0, 1.5)]


def test_a_folder_of_pictures_is_a_video(tmp_path):
    for number in (1, 3, 20):
        Image.fromarray(np.full((24, 32, 3), number, np.uint8)).save(tmp_path / f"{number}.jpg")
    (tmp_path / "7.jpg").write_bytes(b"not a picture")
    source = Video(tmp_path, rate_hz=10, intrinsics=(30, 30, 16, 12))
    frames = list(source)
    assert [bool(frame.valid) for frame in frames] == [True, True, False, True]
    assert source.counters == {"frames": 4, "invalid: unreadable file": 1}
    assert [round(float(frame.time_s), 3) for frame in frames] == [0, 0.1, 0.2, 0.3]
    assert frames[0].depth is None and frames[0].world_from_camera is None
    assert number_of(source[3]) == 20
    with pytest.raises(SourceError, match="no pictures"):
        (tmp_path / "empty").mkdir()
        Video(tmp_path / "empty")


def test_a_video_file_is_read(tmp_path):
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed (extra: video)")
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25.0, (64, 48))
    for number in range(12):
        picture = np.zeros((48, 64, 3), np.uint8)
        picture[..., 2] = 20 * number  # red, in OpenCV's order
        writer.write(picture)
    writer.release()
    source = Video(path)
    frames = list(source)
    assert len(source) == len(frames) == 12
    assert [abs(number_of(frame) - 20 * i) < 6 for i, frame in enumerate(frames)] == [True] * 12
    assert float(frames[3].time_s) == pytest.approx(3 / 25)
    assert float(frames[3].image[0, 2].max()) < -0.8  # no blue
    torch.testing.assert_close(source[7].image, frames[7].image)
    resumed = list(Video(path, every=3).since(2))
    torch.testing.assert_close(resumed[0].image, frames[6].image)
    (tmp_path / "broken.mp4").write_bytes(b"nothing")
    with pytest.raises(SourceError, match="cannot be read as a video"):
        Video(tmp_path / "broken.mp4")


def test_video_files_without_opencv_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("streammem.sources.video.cv2", None)
    with pytest.raises(SourceError, match="pip install"):
        Video(tmp_path / "clip.mp4")


def test_reading_ahead_changes_nothing(clean):
    ahead = Prefetch(itertools.islice(clean, 6), size=2)
    for i, frame in enumerate(ahead):
        assert torch.equal(frame.depth, clean[i].depth)
    assert i == 5 and not ahead.counters


def test_reading_ahead_stops_with_the_loop_and_passes_errors_on(clean):
    def failing():
        yield clean[0]
        raise SourceError("the cable is out")

    threads = threading.active_count()
    with pytest.raises(SourceError, match="cable"):
        list(Prefetch(failing()))
    for _ in Prefetch(clean, size=2):
        break
    for _ in range(100):
        if threading.active_count() == threads:
            break
        time.sleep(0.05)
    assert threading.active_count() == threads
    with pytest.raises(ConfigError, match="block or drop_oldest"):
        Prefetch(clean, policy="newest")


def test_a_slow_reader_gets_recent_frames():
    sent = threading.Event()

    def camera():
        yield from range(50)
        sent.set()
        time.sleep(0.2)
        yield 50

    ahead = Prefetch(camera(), size=3, policy="drop_oldest")
    frames = iter(ahead)
    first = next(frames)
    sent.wait(5)
    rest = list(frames)
    assert rest[-1] == 50 and len(rest) <= 5
    assert ahead.counters["overtaken"] == 51 - 1 - len(rest) and first < 50


def test_sources_are_opened_by_name(tmp_path):
    assert len(open_source("synthetic", frames=7, height=6, width=8)) == 7
    write(tmp_path, 1)
    assert isinstance(open_source(f"folder:{tmp_path}"), Folder)
    for wrong in ("kinect", "folder", "synthetic:room", ""):
        with pytest.raises(SourceError, match="folder:PATH"):
            open_source(wrong)
