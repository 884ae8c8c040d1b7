"""The tracker on real frames: no drift worth a word, no silent loss, found again after a stranger's frames."""

import pytest
import torch

from streammem.geometry import inverse_rigid
from streammem.mapping import verdict
from streammem.mapping.track import Tracker
from streammem.sources.folder import Folder


@pytest.fixture(scope="module")
def kitchen(recordings):
    return list(Folder(recordings / "redkitchen", limit=45))


def track(frames, state=None):
    tracker = Tracker()
    state = tracker.init(*frames[0].depth.shape[1:]) if state is None else state
    said = []
    for i, frame in enumerate(frames):
        state, tracked = tracker(state, frame._replace(time_s=torch.full_like(frame.time_s, 0.1 * i)))
        said.append(tracked)
    return said


def off_m(said, frames):
    """Position errors in metres, the first poses taken as one."""
    truth = [frame.world_from_camera[0] for frame in frames]
    found = [truth[0] @ inverse_rigid(said[0].world_from_camera) @ one.world_from_camera for one in said]
    return torch.stack([(a - b)[:3, 3].norm() for a, b in zip(found, truth)])


def test_a_hand_held_kitchen_stays_tracked(kitchen):
    said = track(kitchen)
    assert [int(one.status) for one in said] == [verdict.TRACKED] * len(kitchen)
    assert off_m(said, kitchen).max() < 0.1  # of which 0.04 is a jump in the recorded poses


def test_a_strangers_frames_are_lost_and_the_kitchen_is_found_again(kitchen):
    strangers = [frame._replace(image=frame.image.flip(-1), depth=frame.depth.flip(-1)) for frame in kitchen[15:18]]
    frames = [*kitchen[:15], *strangers, *kitchen[10:20]]
    said = track(frames)
    codes = [int(one.status) for one in said]
    assert codes[15:18] == [verdict.LOST] * 3
    assert int(said[18].reason) == verdict.AGAIN
    assert codes[-5:] == [verdict.TRACKED] * 5
    own = [*range(15), *range(18, len(frames))]
    assert off_m([said[i] for i in own], [frames[i] for i in own]).max() < 0.06


def test_what_cannot_be_known_is_never_called_tracked(kitchen):
    """Every seventh frame in a scrambled order: whatever is believed must be true."""
    frames = [kitchen[i * 7 % len(kitchen)] for i in range(20)]
    said = track(frames)
    errors = off_m(said, frames)
    believed = torch.tensor([bool(verdict.writes(one.status, one.reason)) for one in said])
    assert errors[believed].max() < 0.1
