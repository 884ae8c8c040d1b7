"""PandaRecall: the recall task with a Franka Panda that has a mass and motors, in MuJoCo, as Gymnasium environments.

Needs the extra `[robot]`. `register()` makes `streammem/PandaRecallPlace-v0` and `streammem/PandaRecallWeigh-v0` known:

>>> env = gymnasium.make("streammem/PandaRecallPlace-v0", items=6, delay=8000)

The robot's model comes with gymnasium-robotics (Apache-2.0): position motors, 870 N m / rad, contacts off.
"""

import re
from pathlib import Path
from typing import NamedTuple

import gymnasium
import gymnasium_robotics
import mujoco
import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.policy.tasks.arm import GRAVITY, STEP_S, commanded
from streammem.policy.tasks.episodes import Task
from streammem.policy.tasks.recall import ACTION, ASKED, OBSERVATION, WITHIN_M, RecallTask
from streammem.policy.tasks.view import Camera

HOME = (0.0, -0.35, 0.0, -2.1, 0.0, 0.30, 0.78)  # the model's sixth joint is turned by a quarter
CAMERA = Camera()
SUBSTEPS = 4  # of physics in a control step
HAND_SITE = "<site name='end_effector'"  # in the file of the robot's links
HAND, LAST = "end_effector", "panda0_link7"
IDS = {mode: f"streammem/PandaRecall{mode.capitalize()}-v0" for mode in ("place", "weigh")}


def model(beside: str = "", held: str = "") -> mujoco.MjModel:
    """The Panda over a plane, without contacts. beside, held: what else is in its world, and fixed to its hand; XML."""
    folder = Path(gymnasium_robotics.__file__).parent / "envs" / "assets" / "kitchen_franka" / "franka_assets"

    def part(name: str) -> str:
        text = (folder / name).read_text()
        return re.search(r"<mujocoinclude>(.*)</mujocoinclude>", text, re.DOTALL).group(1)

    assets = part("assets.xml").replace('meshdir="franka_assets/meshes"', f'meshdir="{folder}/meshes"')

    def numbers(values) -> str:
        return " ".join(f"{x:.6f}" for x in values)

    axes = numbers(CAMERA.axes[:2].flatten())
    made = mujoco.MjModel.from_xml_string(f"""<mujoco model="panda_recall">{assets}
        <visual><global offwidth="640" offheight="480"/></visual>
        <worldbody>
            <light pos="1 0 2.5" dir="-.3 0 -1"/>
            <camera name="front" pos="{numbers(CAMERA.eye)}" xyaxes="{axes}" fovy="{CAMERA.field_deg}"/>
            <geom type="plane" size="2 2 .1" rgba=".3 .4 .5 1" contype="0" conaffinity="0"/>
            <site name="goal" type="sphere" size="0.015" rgba="0.1 0.8 0.2 0.6"/>
            {part("chain.xml").replace(HAND_SITE, held + HAND_SITE)}
            {beside}
        </worldbody>{part("actuator.xml")}</mujoco>""")
    made.opt.timestep = STEP_S / SUBSTEPS
    made.opt.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    made.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT) | int(mujoco.mjtDisableBit.mjDSBL_LIMIT)
    made.geom_contype[:], made.geom_conaffinity[:] = 0, 0
    return made


class PandaState(NamedTuple):
    """What the task reads of B arms; the rest of each is in its simulator."""

    command: Tensor  # [B, 7] rad
    joints: Tensor  # [B, 7] rad
    hand: Tensor  # [B, 3] metres
    jacobian: Tensor  # [B, 3, 7]


class MujocoArm:
    """Pandas in MuJoCo, in lock step, as `KinematicArm` is called. One simulator each: a state cannot be gone back to.

    Shapes: as `KinematicArm`.
    """

    home = HOME

    def __init__(self, made: mujoco.MjModel | None = None):
        self.model = model() if made is None else made
        self.data: list[mujoco.MjData] = []
        self._hand = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SITE, HAND)
        self._last = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, LAST)
        limits = torch.from_numpy(self.model.actuator_ctrlrange[:7].astype(np.float32))
        self._low, self._high = limits.unbind(1)

    def reset(self, batch: int) -> PandaState:
        """All arms at home."""
        self.data = [mujoco.MjData(self.model) for _ in range(batch)]
        for data in self.data:
            data.qpos[:7], data.ctrl[:7] = HOME, HOME
            mujoco.mj_forward(self.model, data)
        return self._read(torch.tensor(HOME).expand(batch, 7))

    def move(self, state: PandaState, velocity: Tensor, payload: Tensor) -> PandaState:
        """One control step."""
        command = commanded(state.jacobian, state.command, state.joints, velocity, torch.tensor(HOME))
        command = torch.clamp(command, self._low, self._high)
        for data, told, mass in zip(self.data, command.tolist(), payload.tolist()):
            data.ctrl[:7] = told
            data.xfrc_applied[self._last, 2] = -GRAVITY * mass
            mujoco.mj_step(self.model, data, SUBSTEPS)
        return self._read(command)

    def _read(self, command: Tensor) -> PandaState:
        jacobian = np.zeros((len(self.data), 3, self.model.nv))
        for data, into in zip(self.data, jacobian):
            mujoco.mj_jacSite(self.model, data, into, None, self._hand)
        joints = np.stack([data.qpos[:7] for data in self.data])
        hand = np.stack([data.site_xpos[self._hand] for data in self.data])
        parts = (torch.from_numpy(x.astype(np.float32)) for x in (joints, hand, jacobian[:, :, :7]))
        return PandaState(command, *parts)


class Pictures:
    """Pictures of a Panda whose joints are told, rendered by MuJoCo: MUJOCO_GL=egl where there is no display."""

    def __init__(self, model: mujoco.MjModel, height: int = 480, width: int = 640):
        self._data, self._model = mujoco.MjData(model), model
        self._renderer = mujoco.Renderer(model, height, width)
        self._goal = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, "goal")

    def take(self, joints: np.ndarray, goal: np.ndarray, moved: np.ndarray | None = None) -> np.ndarray:
        """The robot, and where its hand should be: [7] rad, [3] m -> [height, width, 3] uint8.

        moved: places of the bodies that the simulation does not move, [n, 3] m, where there are such.
        """
        self._data.qpos[:7] = joints
        if moved is not None:
            self._data.mocap_pos[:] = moved
        mujoco.mj_forward(self._model, self._data)
        self._data.site_xpos[self._goal] = goal
        self._renderer.update_scene(self._data, camera="front")
        return self._renderer.render()

    def close(self) -> None:
        """Frees the renderer."""
        self._renderer.close()


class PandaEnv(gymnasium.Env):
    """One simulated robot at a task; what a step is worth is the subclass's.

    dropped: chance that a frame does not come, and the one before stands. info: confidence (0 or 1), time_s, phase,
    weight, and valid, whether the sensors brought a new frame.

    Raises: ConfigError where a parameter makes no sense.
    """

    def __init__(self, task: Task, arm: MujocoArm, dropped: float, render_mode: str | None):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / STEP_S)}
        if render_mode not in (None, "rgb_array"):
            raise ConfigError(f"render_mode is {render_mode!r}; wanted None or 'rgb_array'")
        if not 0 <= dropped < 1:
            raise ConfigError(f"dropped is {dropped}; wanted a share below 1")
        self.task, self.arm, self.dropped, self.render_mode = task, arm, dropped, render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (ACTION,), np.float32)
        self._pictures: Pictures | None = None
        self._last: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        """A new episode; the seed alone says which."""
        super().reset(seed=seed)
        self.episode = self.task.begun(1, int(self.np_random.integers(2**31)), self.arm)
        self._last = None
        return self._told(self.episode.reset())

    def expert(self) -> np.ndarray:
        """The action of one who knows what a policy must remember."""
        return self.episode.expert()[0].numpy()

    def render(self) -> np.ndarray | None:
        """A picture of the robot and of where its hand should be, [480, 640, 3] uint8."""
        if self.render_mode is None:
            return None
        if self._pictures is None:
            self._pictures = Pictures(self.arm.model)
        goal, moved = self.episode.goal()[0].numpy(), self.arm.data[0].mocap_pos
        return self._pictures.take(self.episode.state.joints[0].numpy(), goal, moved)

    def close(self) -> None:
        """Frees the renderer."""
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None

    def _moved(self, action):
        """(observation, info) after one control step of 40 ms."""
        return self._told(self.episode.step(torch.as_tensor(action, dtype=torch.float32)[None]))

    def _told(self, seen):
        dropped = self._last is not None and self.np_random.random() < self.dropped
        self._last = self._last if dropped else seen.observation[0].numpy()
        info = {"confidence": 0.0 if dropped else seen.confidence[0].item(), "valid": not dropped}
        info |= {"time_s": seen.time_s[0].item(), "phase": self.episode.phase.name}
        info["weight"] = seen.weight if isinstance(seen.weight, float) else seen.weight[0].item()
        return self._last.copy(), info


class PandaRecall(PandaEnv):
    """One robot at the recall task.

    observation, action: as `recall` describes them. reward: 1 at the end of a question that was answered within 3 cm,
    else 0. info: as of `PandaEnv`, and at the end of a question miss_m.

    mode, items, delay, ...: of `RecallTask`. dropped: as of `PandaEnv`.
    """

    def __init__(self, mode: str = "place", dropped: float = 0.0, render_mode: str | None = None, **task):
        super().__init__(RecallTask(mode, **task), MujocoArm(), dropped, render_mode)

    def step(self, action):
        """One control step of 40 ms."""
        name, i, k = self.episode.phase
        observation, info = self._moved(action)
        reward = 0.0
        if name == "query" and k == ASKED - 1:
            info["miss_m"] = self.episode.miss_m[0, i].item()
            reward = float(info["miss_m"] < WITHIN_M)
        return observation, reward, self.episode.done, False, info


def register() -> None:
    """Makes the environments known to Gymnasium."""
    for mode, name in IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{__name__}:PandaRecall", kwargs={"mode": mode})
