"""The door to what needs MuJoCo: its modules are imported when they are asked for, and missed in words."""

import importlib
from types import ModuleType

from streammem.errors import ConfigError


def module(name: str) -> ModuleType:
    """A module of this package that needs the extra [robot]: "panda" or "panda_search".

    Raises: ConfigError where the extra is missing.
    """
    try:
        return importlib.import_module(f"{__package__}.{name}")
    except ImportError as error:
        raise ConfigError(f"{error}; wanted the extra [robot], or the kinematic arm") from error


def arm(mode: str):
    """The simulated arm for a task's mode: with a board of holes where it is "search".

    Raises: ConfigError where the extra [robot] is missing.
    """
    return module("panda_search").PandaBoard() if mode == "search" else module("panda").MujocoArm()
