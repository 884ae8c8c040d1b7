"""Gymnasium: environments whose observations remember. Needs the extra `robot`."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from streammem.errors import ConfigError
from streammem.policy.encoders import Observation
from streammem.policy.memory_policy import MemoryPolicy

KEY = "memory"


class MemoryObservation(gymnasium.Wrapper):
    """Adds what the policy's memory says of each observation: {"observation": as it was, "memory": [N D]}.

    The memory starts over at `reset`, and nowhere else.

    period_s: between two steps; None takes the environment's own `dt`.

    Raises: ConfigError where observations are no Box, or the time between them is not known.
    """

    def __init__(self, env: gymnasium.Env, policy: MemoryPolicy, period_s: float | None = None):
        super().__init__(env)
        _check(env.observation_space)
        self._memory = _Memory(policy, 1, _period(env, period_s))
        self.observation_space = spaces.Dict({"observation": env.observation_space, KEY: self._memory.space})

    def reset(self, **options):
        seen, info = self.env.reset(**options)
        return self._with_memory(seen, True), info

    def step(self, action):
        seen, reward, terminated, truncated, info = self.env.step(action)
        return self._with_memory(seen, False), reward, terminated, truncated, info

    def _with_memory(self, seen, start: bool) -> dict:
        said = self._memory.said(np.asarray(seen)[None], np.array([start]))
        return {"observation": seen, KEY: said[0]}


class VectorMemoryObservation(gymnasium.vector.VectorWrapper):
    """The same for vector environments; knows which observation begins an episode in every mode of autoreset.

    NEXT_STEP: the observation after the one that ended is the first of the next episode. SAME_STEP: the observation
    that comes with the end is already the first of the next one, and the last of the old is in `info`. DISABLED: the
    caller says so, by `reset(options={"reset_mask": ...})`.

    Raises: ConfigError as MemoryObservation, and where the environment does not say its mode.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, policy: MemoryPolicy, period_s: float | None = None):
        super().__init__(env)
        _check(env.single_observation_space)
        self.mode = env.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            raise ConfigError(f"autoreset_mode is {self.mode!r}; wanted metadata that says which AutoresetMode it is")
        self._memory = _Memory(policy, env.num_envs, _period(env, period_s))
        one = spaces.Dict({"observation": env.single_observation_space, KEY: self._memory.space})
        self.single_observation_space = one
        self.observation_space = gymnasium.vector.utils.batch_space(one, env.num_envs)
        self._ended = np.zeros(env.num_envs, dtype=bool)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask")  # before the environment takes it out of the options
        seen, info = self.env.reset(seed=seed, options=options)
        start = np.ones(self.num_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        self._ended = self._ended & ~start
        return {"observation": seen, KEY: self._memory.said(seen, start, write=start)}, info

    def step(self, actions):
        seen, reward, terminated, truncated, info = self.env.step(actions)
        ended = np.asarray(terminated) | np.asarray(truncated)
        start = {AutoresetMode.NEXT_STEP: self._ended, AutoresetMode.SAME_STEP: ended}.get(
            self.mode, np.zeros_like(ended)
        )
        said = self._memory.said(seen, start)
        self._ended = ended
        return {"observation": seen, KEY: said}, reward, terminated, truncated, info


class _Memory:
    """A policy's memory that follows environments."""

    def __init__(self, policy: MemoryPolicy, batch: int, period_s: float):
        self.policy, self.batch, self.period_s = policy.eval(), batch, period_s
        with torch.no_grad():
            self._state = policy.init_state(batch)
        self._steps = np.zeros(batch)
        width = policy.tokens * self._state.seen.shape[-1]
        self.space = spaces.Box(-np.inf, np.inf, (width,), np.float32)

    @torch.no_grad()
    def said(self, seen: np.ndarray, start: np.ndarray, write: np.ndarray | None = None) -> np.ndarray:
        """What is remembered once `seen` [B, S] was written, [B, N D]; start [B]: the first of an episode."""
        self._state = self.policy.reset(self._state, torch.from_numpy(start))
        self._steps = np.where(start, 0, self._steps + (True if write is None else write))
        x = torch.from_numpy(np.asarray(seen, dtype=np.float32).reshape(self.batch, -1))
        valid = None if write is None else torch.from_numpy(write)
        time_s = torch.from_numpy(self._steps * self.period_s)
        self._state = self.policy.observe(self._state, Observation(vector=x), time_s, valid)
        return self.policy.memory.read(self._state.memory, self._state.seen).flatten(1).numpy()


def _period(env, period_s: float | None) -> float:
    period_s = getattr(env.unwrapped, "dt", None) if period_s is None else period_s
    if period_s is None:
        raise ConfigError("the environment has no dt; wanted period_s, the seconds between two steps")
    return float(period_s)


def _check(space) -> None:
    if not isinstance(space, spaces.Box):
        raise ConfigError(f"observations are {space}; wanted a Box (FlattenObservation makes one of a Dict)")
