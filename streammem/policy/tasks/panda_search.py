"""PandaSearch: the search task with a Franka Panda, a peg and a board it touches, in MuJoCo. Needs the extra `[robot]`.

`register()` makes `streammem/PandaSearch-v0` known:

>>> env = gymnasium.make("streammem/PandaSearch-v0", holes=6, delay=1000)
"""

from itertools import pairwise

import gymnasium
import mujoco
import torch
from torch import Tensor

from streammem.policy.tasks.board import BOARD, CAPTURE_M, DEPTH, HOLES, PLACES
from streammem.policy.tasks.panda import MujocoArm, PandaEnv, PandaState, model
from streammem.policy.tasks.search import VISITS, SearchTask

ID = "streammem/PandaSearch-v0"
PEG_M = 0.012  # radius of the peg's tip, whose end is where the hand is
HALF_M = CAPTURE_M + PEG_M  # of a hole, which is square
EDGES_X, EDGES_Y = (0.33, 0.67), (-0.34, 0.34)  # of the board, metres
UPRIGHT = 0.7  # a contact whose normal is as upright as that is with the top of something
PEG = f'<geom name="peg" type="sphere" size="{PEG_M}" pos="0 0 {0.21 - PEG_M}" mass="0.001" rgba=".8 .3 .1 1"/>'


def boards() -> str:
    """A board with square holes over a floor, and a lid for each hole."""
    rows, columns = sorted({x for x, _ in PLACES}), sorted({y for _, y in PLACES})
    gaps_x = [EDGES_X[0], *(x + s * HALF_M for x in rows for s in (-1, 1)), EDGES_X[1]]
    gaps_y = [EDGES_Y[0], *(y + s * HALF_M for y in columns for s in (-1, 1)), EDGES_Y[1]]
    boxes = [_box(a, b, *EDGES_Y, BOARD - 0.06, BOARD) for a, b in list(pairwise(gaps_x))[::2]]
    boxes += [
        _box(x - HALF_M, x + HALF_M, a, b, BOARD - 0.06, BOARD) for x in rows for a, b in list(pairwise(gaps_y))[::2]
    ]
    boxes.append(_box(*EDGES_X, *EDGES_Y, BOARD - 0.06, BOARD - DEPTH - 0.005))
    lids = [
        f'<body name="lid{i}" mocap="true" pos="{x} {y} {BOARD - 0.01}">'
        f'<geom name="lid{i}" type="box" size="{HALF_M} {HALF_M} .01" rgba=".75 .75 .8 1"/></body>'
        for i, (x, y) in enumerate(PLACES)
    ]
    return "".join(boxes + lids)


def _box(x0: float, x1: float, y0: float, y1: float, z0: float, z1: float) -> str:
    half = f"{(x1 - x0) / 2} {(y1 - y0) / 2} {(z1 - z0) / 2}"
    middle = f"{(x0 + x1) / 2} {(y0 + y1) / 2} {(z0 + z1) / 2}"
    return f'<geom type="box" size="{half}" pos="{middle}" rgba=".55 .5 .45 1"/>'


class PandaBoard(MujocoArm):
    """Pandas in MuJoCo with a peg over boards, as `OverBoard` is called; contacts are the simulator's."""

    def __init__(self):
        super().__init__(board_model())
        self._lids = [self.model.body(f"lid{i}").mocapid[0] for i in range(HOLES)]
        self._peg = self.model.geom("peg").id

    def reset(self, batch: int, open_hole: Tensor) -> PandaState:
        """All arms at home, each over a board with one open hole."""
        state = super().reset(batch)
        for data, hole in zip(self.data, open_hole.tolist()):
            for i, lid in enumerate(self._lids):
                data.mocap_pos[lid, 2] = -1.0 if i == hole else BOARD - 0.01
            mujoco.mj_forward(self.model, data)
        return state

    def move(self, state: PandaState, velocity: Tensor) -> tuple[PandaState, Tensor]:
        """One control step."""
        state = super().move(state, velocity, torch.zeros(len(velocity)))
        return state, torch.tensor([self._touches(data) for data in self.data])

    def _touches(self, data: mujoco.MjData) -> bool:
        """Whether the peg is on the top of the board or of a lid."""
        low = data.geom_xpos[self._peg, 2] - PEG_M < BOARD - 0.01
        return not low and any(
            self._peg in (contact.geom1, contact.geom2) and abs(contact.frame[2]) > UPRIGHT and contact.dist < 0
            for contact in data.contact
        )


def board_model() -> mujoco.MjModel:
    """The Panda with a peg over a board; peg and board touch, nothing else does."""
    made = model(boards(), PEG)
    made.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    peg = made.geom("peg").id
    made.geom_contype[peg], made.geom_conaffinity[peg] = 1, 2
    for i in range(made.ngeom):
        body = made.geom_bodyid[i]
        if made.geom_type[i] == mujoco.mjtGeom.mjGEOM_BOX and (body == 0 or made.body_mocapid[body] >= 0):
            made.geom_contype[i], made.geom_conaffinity[i] = 2, 1
    return made


class PandaSearch(PandaEnv):
    """One robot at the search task.

    observation, action: as `search` describes them. reward: 1 at the step in which an attempt finds the hole, else 0.
    info: as of `PandaEnv`, and at the end of a visit attempts.

    holes, attempts, delay, ...: of `SearchTask`. dropped: as of `PandaEnv`.
    """

    def __init__(self, dropped: float = 0.0, render_mode: str | None = None, **task):
        super().__init__(SearchTask(**task), PandaBoard(), dropped, render_mode)

    def step(self, action):
        """One control step of 40 ms."""
        before = self.episode.attempts.clone()
        observation, info = self._moved(action)
        fresh = before.isnan() & self.episode.attempts.isfinite()
        for visit in range(VISITS):
            if fresh[0, visit]:
                info["attempts"] = self.episode.attempts[0, visit].item()
        reward = float("attempts" in info and info["attempts"] <= self.task.most)
        return observation, reward, self.episode.done, False, info


def register() -> None:
    """Makes the environment known to Gymnasium."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point=f"{__name__}:PandaSearch")
