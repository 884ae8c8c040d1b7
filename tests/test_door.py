"""Every convention of the door, every kind of bad input, and what the first frames give away."""

from collections import Counter

import numpy as np
import pytest
import torch
from bad_inputs import BAD_INPUTS, good_inputs

from streammem.errors import ConfigError, ShapeError, SourceError, StreamMemError
from streammem.geometry import inverse_rigid, rigid_error, se3_exp
from streammem.sources import Door, FirstFramesCheck, Folder, Synthetic, check_frames, frame_from


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_is_an_error_or_a_counted_skip(bad):
    counters = Counter()
    arguments = bad.change(good_inputs())
    if isinstance(bad.expected, str):
        frame = frame_from(**arguments, counters=counters)
        assert not frame.valid
        assert counters == {f"invalid: {bad.expected}": 1}
        assert frame.image.isfinite().all() and frame.depth.isfinite().all() and frame.time_s.isfinite().all()
        assert frame.world_from_camera.isfinite().all() or frame.world_from_camera.isnan().all()
        return
    with pytest.raises(bad.expected) as caught:
        frame_from(**arguments, counters=counters)
    assert isinstance(caught.value, StreamMemError)
    assert any(word in str(caught.value) for word in ("wanted", "say", "register"))
    assert not counters


def test_good_input_is_a_valid_frame():
    counters = Counter()
    frame = frame_from(**good_inputs(), counters=counters)
    assert frame.valid and not frame.reset and not counters
    assert frame.image.shape == (1, 3, 24, 32) and frame.image.dtype == torch.float32
    assert frame.depth.shape == (1, 24, 32) and frame.depth.dtype == torch.float32
    assert frame.intrinsics.shape == (1, 3, 3) and frame.intrinsics.dtype == torch.float32
    assert frame.world_from_camera.shape == (1, 4, 4) and frame.world_from_camera.dtype == torch.float64
    assert frame.time_s.tolist() == [1.0] and frame.time_s.dtype == torch.float64
    assert frame.image.min() == -1 and frame.image.max() == 1


def test_images_mean_the_same_in_every_layout_and_type():
    image = good_inputs()["image"]
    expected = frame_from(image).image
    read_only = image.copy()
    read_only.flags.writeable = False
    for same in (
        torch.from_numpy(image),
        image.transpose(2, 0, 1),
        image.astype(np.float32) / 255,
        image.astype(np.float64) / 255,
        torch.from_numpy(image).permute(2, 0, 1)[None],
        image[::-1][::-1],
        read_only,
    ):
        torch.testing.assert_close(frame_from(same).image, expected, rtol=0, atol=1e-6)
    grey = frame_from(image[..., 0]).image
    torch.testing.assert_close(grey, expected[:, :1].expand(1, 3, 24, 32))


@pytest.mark.parametrize(("scale", "factor"), [("millimetres", 1e-3), ("tum", 2e-4), ("metres", 1.0), (256, 1 / 256)])
def test_depth_is_in_metres_and_unknown_is_zero(scale, factor):
    raw = np.array([[0, 1, 2000], [65535, 65534, 7]], np.uint16)
    expected = torch.tensor([[[0, 1, 2000], [0, 65534, 7]]]) * factor
    frame = frame_from(np.zeros((2, 3, 3), np.uint8), raw, depth_scale=scale)
    torch.testing.assert_close(frame.depth, expected.float())
    floats = np.array([[-1.0, np.nan, 2.0], [np.inf, 9.0, 65535.0]], np.float32)
    frame = frame_from(np.zeros((2, 3, 3), np.uint8), floats, max_depth_m=5.0)
    torch.testing.assert_close(frame.depth, torch.tensor([[[0.0, 0, 2], [0, 0, 0]]]))


def test_big_endian_depth_is_read_right():
    raw = good_inputs()["depth"]
    frame = frame_from(np.zeros((24, 32, 3), np.uint8), raw.astype(">u2"), depth_scale=1000)
    torch.testing.assert_close(frame.depth[0], torch.from_numpy(raw.astype(np.float32) / 1000))


def test_poses_are_made_rigid():
    pose = se3_exp(torch.tensor([1.0, 2, 3, 0.3, -0.2, 0.9]).double())
    rough = pose.clone()
    rough[:3, :3] += 4e-4 * torch.randn(3, 3)
    assert rigid_error(rough) > 1e-4
    frame = frame_from(**{**good_inputs(), "world_from_camera": rough})
    assert rigid_error(frame.world_from_camera).max() < 1e-12
    torch.testing.assert_close(frame.world_from_camera[0], pose, rtol=0, atol=1e-3)


def test_errors_say_by_how_much_and_what_would_be_right():
    def message(**change) -> str:
        with pytest.raises(StreamMemError) as caught:
            frame_from(**{**good_inputs(), **change})
        return str(caught.value)

    assert "by 0.33" in message(world_from_camera=np.diag([1.1, 1.1, 1.1, 1]))
    transposed = np.eye(4)
    transposed[3, :3] = 1
    assert "column by column" in message(world_from_camera=transposed)
    assert "append the row 0 0 0 1" in message(world_from_camera=np.eye(4)[:3])
    assert "millimetres" in message(depth_scale=None)
    assert "image is 32x24 and depth is 16x12" in message(depth=good_inputs()["depth"][::2, ::2])
    assert "drop the alpha" in message(image=np.zeros((24, 32, 4), np.uint8))
    assert "divide by 255" in message(image=good_inputs()["image"].astype(np.float32))


def test_a_frame_without_a_pose_is_valid_and_counted():
    counters = Counter()
    frame = frame_from(**{**good_inputs(), "world_from_camera": np.full((4, 4), np.nan)}, counters=counters)
    assert frame.valid and frame.world_from_camera.isnan().all()
    assert counters == {"unposed": 1}


def test_resampling_keeps_rays_where_they_were():
    """A plane that leans: after either way of resampling, each pixel's depth is that of its own ray."""
    u, v = np.meshgrid(np.arange(64), np.arange(48))
    plane = (1 + 0.01 * u + 0.02 * v).astype(np.float32)  # depth of pixel (u, v) at 64x48
    K = np.array([[60.0, 0, 31.5], [0, 60, 23.5], [0, 0, 1]])
    image = np.stack([plane / 3] * 3, -1)
    half = plane.reshape(24, 2, 32, 2).mean((1, 3))  # exact for a plane
    up = frame_from(image, half, K, resample="depth_to_colour")
    assert up.depth.shape == (1, 48, 64)
    torch.testing.assert_close(up.intrinsics[0], torch.from_numpy(K).float())
    assert np.abs(up.depth[0].numpy() - plane).max() <= 0.5 * (0.01 + 0.02) + 1e-6  # nearest: half a pixel off
    down = frame_from(image, half, K, resample="colour_to_depth")
    assert down.image.shape == (1, 3, 24, 32)
    torch.testing.assert_close(down.intrinsics[0, 0], torch.tensor([30.0, 0, 15.5]))
    torch.testing.assert_close((down.image[0, 0] + 1) / 2 * 3, down.depth[0], rtol=0, atol=1e-5)


def test_a_stream_keeps_its_structure():
    door = Door(depth_scale="millimetres")
    good = {k: v for k, v in good_inputs().items() if k != "depth_scale"}
    first = door(**good)
    other_size = {k: v for k, v in good_inputs(12, 16).items() if k != "depth_scale"}
    without_depth = {**good, "depth": None}
    for late in (door(**other_size), door(**without_depth), door.masked("unreadable file", 7.0)):
        assert not late.valid
        assert [None if x is None else x.shape for x in late] == [None if x is None else x.shape for x in first]
        assert late.depth.count_nonzero() == 0 and late.world_from_camera.isnan().all()
    assert late.time_s.item() == 7.0
    assert door.counters == {
        "invalid: image changed size": 1,
        "invalid: depth changed size": 1,
        "invalid: unreadable file": 1,
    }
    assert door(**good).valid
    with pytest.raises(SourceError, match="first frame"):
        Door().masked("unreadable file", 0.0)


@pytest.fixture(scope="module")
def walk() -> list:
    source = Synthetic(frames=30, height=60, width=80)
    return [source[i] for i in range(0, 24, 2)]


def change(frames: list, **fields) -> list:
    return [frame._replace(**{name: f(getattr(frame, name)) for name, f in fields.items()}) for frame in frames]


def test_nothing_is_found_in_a_good_stream(walk):
    assert check_frames(walk) == []


WRONG = [
    ("time", {"time_s": lambda x: -x}, "runs backwards"),
    ("time", {"time_s": lambda x: 0 * x}, "stands still"),
    ("intrinsics", {"intrinsics": lambda x: x * torch.tensor([[8.0], [8], [1]])}, "for about 632x472 pixels"),
    ("depth", {"depth": lambda x: 0 * x}, "valid depth"),
    ("depth_scale", {"depth": lambda x: 1000 * x}, "millimetres"),
    ("depth_scale", {"depth": lambda x: x / 1000}, "metres already"),
    ("depth_scale", {"depth": lambda x: 5 * x}, "5 times too large"),
    ("depth_scale", {"depth": lambda x: x / 5}, "5 times too small"),
    ("pose_direction", {"world_from_camera": inverse_rigid}, "inverted"),
    ("pose_units", {"world_from_camera": lambda x: x * torch.tensor([1, 1, 1, 1000.0])}, "in metres"),
]


@pytest.mark.parametrize(("kind", "fields", "words"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_wrong_is_said_in_words(walk, kind, fields, words):
    found = check_frames(change(walk, **fields))
    assert [(f.kind, f.severity) for f in found] == [(kind, "severe")]
    assert words in found[0].message


def test_poses_that_stand_still_are_worth_a_look(walk):
    still = walk[0].world_from_camera
    turned = [f._replace(image=f.image.roll(40 * (i % 2), -1)) for i, f in enumerate(walk)]
    found = check_frames(change(turned, world_from_camera=lambda x: still))
    assert [(f.kind, f.severity) for f in found] == [("still_poses", "warning")]
    assert check_frames([walk[0]._replace(time_s=frame.time_s) for frame in walk]) == []


def test_a_fault_stops_the_stream_warns_or_is_let_through(walk):
    bad = change(walk, depth=lambda x: 1000 * x)
    with pytest.raises(SourceError, match="median depth is .* is it in millimetres"):
        list(FirstFramesCheck(bad, first=4))
    warned = FirstFramesCheck(iter(bad), first=4, check="warn")
    assert len(list(warned)) == len(bad)
    assert [f.kind for f in warned.findings] == ["depth_scale"]
    off = FirstFramesCheck(bad, check="off")
    assert len(list(off)) == len(bad) and off.findings == []
    with pytest.raises(ConfigError, match="raise, warn or off"):
        FirstFramesCheck(bad, check="maybe")
    with pytest.raises(SourceError, match="no frames"):
        list(FirstFramesCheck([]))


def test_checked_frames_are_those_of_the_source_in_order(walk):
    assert [f.time_s.item() for f in FirstFramesCheck(walk, first=4)] == [f.time_s.item() for f in walk]


@pytest.mark.parametrize(
    ("folder", "options"),
    [("redkitchen", {}), ("tum_fr3_cabinet", {"depth_scale": "tum", "intrinsics": "freiburg3"})],
)
def test_real_recordings_pass_and_their_inverted_poses_do_not(recordings, folder, options):
    source = Folder(recordings / folder, **options, limit=12)
    frames = list(source)
    assert check_frames(frames) == []
    assert [f.kind for f in check_frames(change(frames, world_from_camera=inverse_rigid))] == ["pose_direction"]


def test_frame_from_makes_the_caller_choose_a_size():
    with pytest.raises(ShapeError, match="resample="):
        frame_from(np.zeros((24, 32, 3), np.uint8), np.ones((12, 16), np.float32))
