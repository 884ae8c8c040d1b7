"""The tracker: known motions on an analytic scene, honest statuses, nothing looked at from the host."""

import math

import pytest
import torch
from nolook import never_looks

from streammem.geometry import inverse_rigid, rotation_angle, se3_exp
from streammem.mapping import relocalise, verdict
from streammem.mapping.odometry import Reading
from streammem.mapping.pyramid import contrasted, halve
from streammem.mapping.track import Tracker
from streammem.types import Frame

H, W = 120, 160
FOCAL = 146.0
STEP_S = 0.1


def looking(x=0.0, y=0.0, z=0.0, right=0.0, down=0.0, roll=0.0):
    """world_from_camera of a camera near the corner that `walls` makes."""
    return se3_exp(torch.tensor([x, y, z, -down, right, roll], dtype=torch.float64))


def walls(points, directions):
    """Distance along rays, and albedo, of a corner: a wall ahead, one to the right, a floor; textured by position."""
    planes = torch.tensor([[0, 0, -1, 2.5], [-0.8, 0, -0.6, 2.2], [0, -1, 0, 0.9]], dtype=points.dtype)
    speed = directions @ planes[:, :3].mT
    t = -(points @ planes[:, :3].mT + planes[:, 3]) / torch.where(speed < 0, speed, -1e-9)
    t = torch.where((speed < 0) & (t > 0), t, math.inf).amin(-1)
    hit = points + t[..., None] * directions
    return t, texture(hit)


def texture(p):
    waves = [(7.0, 3.0, 5.0, 0.0), (2.0, 9.0, 4.0, 1.0), (11.0, 6.0, 8.0, 2.0), (3.0, 2.0, 13.0, 0.5)]
    return sum(torch.sin(a * p[..., 0] + b * p[..., 1] + c * p[..., 2] + d) for a, b, c, d in waves) / 8 + 0.5


def shot(pose, time_s=0.0, scene=walls, dtype=torch.float32, valid=True, size=(H, W)):
    """A noise-free frame of a scene."""
    h, w = size
    K = torch.tensor([[FOCAL * w / W, 0, (w - 1) / 2], [0, FOCAL * w / W, (h - 1) / 2], [0, 0, 1]], dtype=torch.float64)
    v, u = torch.meshgrid(torch.arange(h, dtype=torch.float64), torch.arange(w, dtype=torch.float64), indexing="ij")
    rays = torch.stack([(u - K[0, 2]) / K[0, 0], (v - K[1, 2]) / K[1, 1], torch.ones_like(u)], -1)
    depth, albedo = scene(pose[:3, 3].expand(h, w, 3), rays @ pose[:3, :3].mT)
    image = (albedo * 2 - 1).expand(3, h, w)
    return Frame(
        image=image[None].to(dtype),
        depth=torch.where(depth.isfinite(), depth, 0)[None].to(dtype),
        intrinsics=K[None].to(dtype),
        world_from_camera=None,
        time_s=torch.tensor([time_s], dtype=torch.float64),
        valid=torch.tensor([valid]),
        reset=torch.tensor([False]),
    )


def distance(points):
    """The corner's signed distance, as a map would tell it."""
    x, y, z = points.unbind(-1)
    o = torch.zeros_like(x)
    least, which = torch.stack([2.5 - z, 2.2 - 0.8 * x - 0.6 * z, 0.9 - y]).min(0)
    normals = torch.stack([torch.stack(n, -1) for n in ((o, o, o - 1), (o - 0.8, o, o - 0.6), (o, o - 1, o))])
    normal = normals.gather(0, which[None, :, None].expand(1, -1, 3))[0]
    return Reading(least, normal, torch.full_like(least, 1e8))


def path(frames):
    """A hand-held sort of motion: up to 4 cm and 2 degrees between frames."""
    t = [i / 4 for i in range(frames)]
    return [
        looking(
            0.12 * math.sin(a),
            0.06 * math.sin(1.3 * a),
            0.08 * math.sin(0.7 * a),
            0.1 * math.sin(0.9 * a),
            0.05 * a / 3,
        )
        for a in t
    ]


def run(tracker, poses, read=None, state=None, scene=walls, dtype=torch.float32, start=0):
    """Statuses, and errors in metres and radians, of a sequence."""
    state = tracker.init(H, W, dtype) if state is None else state
    said = []
    for i, pose in enumerate(poses):
        state, tracked = tracker(state, shot(pose, (start + i) * STEP_S, scene, dtype), read)
        said.append(tracked)
    return state, said


def errors(said, poses):
    off = [inverse_rigid(inverse_rigid(poses[0]) @ pose) @ s.world_from_camera for s, pose in zip(said, poses)]
    off = torch.stack(off)
    return off[:, :3, 3].norm(dim=-1), rotation_angle(off)


def codes(said):
    return [int(s.status) for s in said]


@pytest.mark.parametrize("read", [None, distance], ids=["views", "map"])
def test_known_motions_are_recovered(read):
    poses = path(12)
    _, said = run(Tracker(), poses, read)
    metres, radians = errors(said, poses)
    assert codes(said) == [verdict.TRACKED] * len(poses)
    assert metres.max() < 1e-3
    assert radians.max() < math.radians(0.05)


def test_a_map_holds_back_what_views_alone_let_drift():
    poses = path(12)
    start = looking(0.02, 0.01, -0.015)
    moved = [start @ pose for pose in poses]  # the world starts at the identity, the scene's map says otherwise
    _, free = run(Tracker(), moved)
    _, held = run(Tracker(), moved, distance)
    metres = [(said[-1].world_from_camera - moved[-1])[:3, 3].norm() for said in (free, held)]
    assert metres[0] > 0.02  # only relative poses can be known
    assert metres[1] < 0.4 * metres[0]


def plain_wall(points, directions):
    t = (2.0 - points[..., 2]) / directions[..., 2]
    return t, torch.full_like(t, 0.5)


def test_a_bare_wall_is_weak_and_says_why():
    poses = [looking(x=0.01 * i) for i in range(4)]
    _, said = run(Tracker(), poses, scene=plain_wall)
    assert codes(said)[1:] == [verdict.WEAK] * 3
    assert verdict.words(said[-1].status, said[-1].reason) == ("weak", verdict.REASON[verdict.DEGENERATE])
    assert said[-1].world_from_camera.isfinite().all()
    assert abs(said[-1].world_from_camera[2, 3]) < 1e-3  # what does show is still known: the distance to the wall


@pytest.mark.parametrize("fault", ["invalid", "nan", "zero", "infinite", "far", "negative"])
def test_a_frame_without_depth_is_skipped_and_changes_nothing(fault):
    tracker, poses = Tracker(), path(3)
    state, _ = run(tracker, poses)
    frame = shot(poses[-1], 0.3)
    values = {"nan": math.nan, "zero": 0.0, "infinite": math.inf, "far": 65.535, "negative": -1.0}
    bad = frame._replace(
        depth=torch.full_like(frame.depth, values.get(fault, 1.0)), valid=torch.tensor([fault != "invalid"])
    )
    after, said = tracker(state, bad)
    assert verdict.words(said.status, said.reason) == ("skipped", verdict.REASON[verdict.EMPTY])
    assert all(torch.equal(a, b) for a, b in zip(flat(state), flat(after)))


def flat(state):
    return [leaf for part in state for leaf in (part if isinstance(part, tuple) else (part,))]


def test_nan_in_the_picture_does_not_spread():
    tracker, poses = Tracker(), path(3)
    state, _ = run(tracker, poses[:2])
    frame = shot(poses[2], 0.2)
    frame.image[:, :, 10:20, 10:20] = math.nan
    frame.depth[:, 40:50, 40:50] = math.nan
    state, said = tracker(state, frame)
    assert said.status == verdict.TRACKED
    assert all(leaf.isfinite().all() for leaf in flat(state))


def test_a_camera_carried_away_is_lost_then_found_again():
    tracker, poses = Tracker(), path(10)
    state, _ = run(tracker, poses)
    away = se3_exp(torch.tensor([0.3, 0.0, 0.5, 0.0, -2.2, 0.0], dtype=torch.float64))
    before = state
    state, gone = run(tracker, [away] * 3, state=state, scene=elsewhere, start=10)
    assert codes(gone) == [verdict.LOST] * 3
    assert not any(verdict.writes(s.status, s.reason) for s in gone)
    assert torch.equal(state.keys.depth, before.keys.depth)
    assert torch.equal(state.world_from_camera, before.world_from_camera)
    assert state.lost == 3

    back = list(reversed(poses))
    _, said = run(tracker, back, state=state, start=13)
    metres, _ = errors([*said[:1], *said], [poses[0], *back])  # the world is the first pose's
    assert codes(said)[0] == verdict.WEAK and said[0].reason == verdict.AGAIN
    assert not verdict.writes(said[0].status, said[0].reason)
    assert codes(said)[-1] == verdict.TRACKED
    assert metres[1:].max() < 2e-3


def elsewhere(points, directions):
    """Balls on a floor: nothing like the corner."""
    centres = torch.tensor([[0.8, 0.1, 1.2], [-0.4, -0.2, 1.5], [0.1, 0.5, 0.9]], dtype=points.dtype)
    t = torch.full(points.shape[:-1], math.inf, dtype=points.dtype)
    for centre in centres:
        b = (directions * (points - centre)).sum(-1) / (directions * directions).sum(-1)
        c = ((points - centre).square().sum(-1) - 0.16) / (directions * directions).sum(-1)
        root = (b * b - c).clamp(min=0).sqrt()
        t = torch.where((b * b > c) & (-b - root > 0), torch.minimum(t, -b - root), t)
    floor = (1.0 - points[..., 1]) / directions[..., 1]
    t = torch.where(floor > 0, torch.minimum(t, floor), t)
    hit = points + torch.where(t.isfinite(), t, 0)[..., None] * directions
    return t, texture(3 * hit + 7)


def test_a_keyframe_beyond_the_last_frame_finds_the_camera():
    """After a turn away and a jump back the last frame is of no help: only the ring is."""
    tracker = Tracker()
    there = [looking(x=0.03 * i, right=0.06 * i) for i in range(12)]
    state, said = run(tracker, there)
    assert codes(said) == [verdict.TRACKED] * len(there)
    state, said = run(tracker, [looking(x=0.01, right=0.02, down=0.02)], state=state, start=12)
    assert int(said[0].candidate) >= 3
    off = inverse_rigid(looking(x=0.01, right=0.02, down=0.02)) @ said[0].world_from_camera
    assert off[:3, 3].norm() < 2e-3


def test_precisions_agree():
    poses = path(6)
    _, single = run(Tracker(), poses)
    _, double = run(Tracker(), poses, dtype=torch.float64)
    for a, b in zip(single, double):
        assert int(a.status) == int(b.status)
        torch.testing.assert_close(a.world_from_camera, b.world_from_camera, atol=2e-5, rtol=0)


def test_the_step_is_pure_and_repeats():
    tracker, poses = Tracker(), path(3)
    state, _ = run(tracker, poses)
    copies = [leaf.clone() for leaf in flat(state)]
    frame = shot(poses[-1], 0.3)
    one, two = tracker(state, frame, distance), tracker(state, frame, distance)
    assert all(torch.equal(a, b) for a, b in zip(copies, flat(state)))
    assert all(torch.equal(a, b) for a, b in zip(flat(one[0]), flat(two[0])))
    assert [x.shape for x in copies] == [x.shape for x in flat(one[0])]
    assert [x.dtype for x in copies] == [x.dtype for x in flat(one[0])]


@pytest.mark.parametrize("read", [None, distance], ids=["views", "map"])
def test_a_step_never_looks(read):
    tracker = Tracker()
    never_looks(lambda state, frame: tracker(state, frame, read), tracker.init(H, W), shot(looking()))


def test_a_colour_camera_beside_the_depth_camera_is_learnt():
    """Colour of another focal length: learnt, and the motion does not suffer."""
    poses, ratio = path(32), 0.93
    tracker = Tracker()
    state = tracker.init(H, W)
    said = []
    for i, pose in enumerate(poses):
        frame, wide = shot(pose, i * STEP_S), wide_shot(pose, ratio)
        state, tracked = tracker(state, frame._replace(image=wide))
        said.append(tracked)
    metres, _ = errors(said, poses)
    assert state.colour.value[0] == pytest.approx(ratio, abs=0.03)
    assert metres.max() < 4e-3


def wide_shot(pose, ratio):
    u, v = torch.arange(W, dtype=torch.float64), torch.arange(H, dtype=torch.float64)[:, None]
    x, y = (u - (W - 1) / 2) / (FOCAL * ratio), (v - (H - 1) / 2) / (FOCAL * ratio)
    rays = torch.stack([x.expand(H, W), y.expand(H, W), torch.ones(H, W, dtype=torch.float64)], -1)
    _, albedo = walls(pose[:3, 3].expand(H, W, 3), rays @ pose[:3, :3].mT)
    return (albedo * 2 - 1).expand(1, 3, H, W).float()


def test_drift_that_may_have_added_up_is_said():
    poses = path(4)
    tracker = Tracker()
    state, said = run(tracker, poses)
    assert codes(said)[-1] == verdict.TRACKED
    vague = state.keys._replace(variance=torch.full_like(state.keys.variance, 0.01))
    state = state._replace(keys=vague, variance=torch.full_like(state.variance, 0.01))
    _, said = run(tracker, poses[-1:], state=state, start=4)
    assert verdict.words(said[0].status, said[0].reason) == ("weak", verdict.REASON[verdict.DRIFT])


def test_sizes_that_do_not_halve_evenly_are_cropped():
    tracker = Tracker(width_px=80)
    assert tracker.size(122, 165) == (60, 80)
    poses = path(3)
    state = tracker.init(122, 165)
    for i, pose in enumerate(poses):
        state, said = tracker(state, shot(pose, i * STEP_S, size=(122, 165)))
    assert said.status == verdict.TRACKED
    off = inverse_rigid(poses[-1]) @ said.world_from_camera
    assert off[:3, 3].norm() < 0.01


@pytest.mark.parametrize("right, down", [(0.12, 0.0), (0.0, -0.1), (-0.1, 0.07)])
def test_pictures_say_how_far_the_camera_turned(right, down):
    tracker = Tracker()
    tiny = [halve(halve(tracker.picture(shot(pose)))) for pose in (looking(), looking(right=right, down=down))]
    turn, fit = relocalise.slide(contrasted(tiny[1]), contrasted(tiny[0]))
    pixel = 1 / float(tiny[0].intrinsics[0, 0, 0])
    assert float(turn[0, 0, 2].asin()) == pytest.approx(right, abs=pixel)
    assert float(turn[0, 1, 2].asin()) == pytest.approx(down, abs=pixel)
    assert fit[0] > 0.8
