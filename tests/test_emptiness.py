"""What was seen to be empty: blocks that rays passed whole, and surfaces that appear in them."""

import numpy as np
import torch
from test_map import HOW, LATTICE, field_of, shot

from streammem.mapping.emptiness import counted, frames_of, passed_blocks
from streammem.mapping.field import commit_, propose
from streammem.mapping.frames import Shot
from streammem.mapping.free_space import FreeSpace, inner
from streammem.mapping.keys import Lattice
from streammem.mapping.read import read
from streammem.mapping.state import empty

SMALL = Lattice(0.02, 32)


def hilly(height=240, width=320) -> Shot:
    """Boxes of all depths before a wall, with holes."""
    random = np.random.default_rng(0)
    depth = np.full((height, width), 2.9, np.float32)
    for _ in range(12):
        y, x = random.integers(0, height), random.integers(0, width)
        depth[y : y + 70, x : x + 50] = random.uniform(1.2, 2.8)
    depth[30:40, 100:140] = 0
    turn = torch.tensor([[0.8, 0.0, 0.6, 0.3], [0.0, 1.0, 0.0, -0.2], [-0.6, 0.0, 0.8, 0.1], [0.0, 0.0, 0.0, 1.0]])
    K = torch.tensor([[290.0, 0, 159.5], [0, 290.0, 119.5], [0, 0, 1]])
    zero, true = torch.tensor(0.0, dtype=torch.float64), torch.tensor(True)
    return Shot(torch.zeros(3, height, width), torch.from_numpy(depth), K, turn, zero, true)


def test_every_point_of_a_passed_block_is_before_what_its_pixel_saw():
    view, band_m = hilly(), 0.06
    block, whole = passed_blocks(FreeSpace(), SMALL, view, band_m)
    chosen = np.unique(block[whole].numpy(), axis=0)
    assert len(chosen) > 100
    random = np.random.default_rng(1)
    points = (chosen[:, None] + random.random((1, 200, 3))) * SMALL.block_size_m
    pose, K = view.world_from_camera.double().numpy(), view.intrinsics.double().numpy()
    local = (points.reshape(-1, 3) - pose[:3, 3]) @ pose[:3, :3]
    u, v = (np.rint(local[:, i] / local[:, 2] * K[i, i] + K[i, 2]).astype(int) for i in (0, 1))
    inside = (u >= 0) & (u < 320) & (v >= 0) & (v < 240)
    depth = view.depth.numpy()[v[inside], u[inside]]
    passed = (depth > 0) & (local[inside, 2] + band_m < depth)
    assert passed.mean() > 0.999, "near the camera a block is larger than the rays around it that are asked"
    assert not passed_blocks(FreeSpace(), SMALL, view._replace(trusted=torch.tensor(False)), band_m)[1].any()


def test_blocks_that_share_a_cell_do_not_share_their_numbers():
    passed = torch.zeros(SMALL.cells + 1, dtype=torch.int16)
    block, yes = torch.tensor([[1, 2, 3], [1, 2, 3], [5, 5, 5]]), torch.tensor([True, True, False])
    for _ in range(3):
        cell, number = counted(SMALL, passed, block, yes)
        passed[cell] = number
    cell = SMALL.cell_of_block(block)
    assert frames_of(SMALL, passed, cell, block).tolist() == [3, 3, 0], "one a frame, however many points are in it"
    other = block + torch.tensor([32, 0, 0])
    assert torch.equal(SMALL.cell_of_block(other), cell)
    assert frames_of(SMALL, passed, cell, other).tolist() == [0, 0, 0]
    cell, number = counted(SMALL, passed, other, yes)
    passed[cell] = number
    assert frames_of(SMALL, passed, cell[:1], other[:1]).tolist() == [1]
    for _ in range(300):
        cell, number = counted(SMALL, passed, other, yes)
        passed[cell] = number
    assert frames_of(SMALL, passed, cell[:1], other[:1]).tolist() == [255]


def test_inner_vertices_have_all_their_neighbours():
    passed = torch.rand(3, 512, generator=torch.Generator().manual_seed(0)) > 0.02
    cube, found = passed.view(3, 8, 8, 8).numpy(), inner(passed).view(3, 8, 8, 8).numpy()
    for b, x, y, z in np.ndindex(3, 8, 8, 8):
        around = cube[b, max(x - 1, 0) : x + 2, max(y - 1, 0) : y + 2, max(z - 1, 0) : z + 2]
        assert found[b, x, y, z] == around.all()


def appears(known_empty: int, shown: int, how=HOW) -> float:
    """Distance, long after, at a point of a wall that came half a metre nearer for some frames, and was then unseen."""
    state, away = empty(LATTICE, 600), torch.diag(torch.tensor([-1.0, 1, -1, 1]))
    wall = torch.full((112, 160), 1.5)
    K = torch.tensor([[140.0, 0, 79.5], [0, 140.0, 55.5], [0, 0, 1]])
    far = shot()._replace(image=torch.zeros(3, 112, 160), depth=wall, intrinsics=K)
    near = far._replace(depth=wall - 0.6)
    frames = [far] * known_empty + [near] * shown + [far._replace(world_from_camera=away)] * 20
    for i, frame in enumerate(frames):
        commit_(state, propose(LATTICE, how, state, frame._replace(time_s=torch.tensor(0.1 * i)), 512))
    there = read(field_of(state), torch.tensor([[0.03, 0.02, 0.9]]))
    return float(there.distance) if there.known else float("inf")


def test_what_appears_where_it_was_empty_must_stay_to_be_learnt():
    assert abs(appears(0, 3)) < 0.01, "nothing was known: believed at once"
    assert appears(20, 3) > 0.04, "it passed by"
    assert abs(appears(20, 60)) < 0.025, "it stayed"
