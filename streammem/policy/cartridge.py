"""Cartridges: what a policy was shown, as a file that another robot with the same policy goes on from."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from streammem import store, tree
from streammem.errors import CheckpointError
from streammem.policy.gated_memory import GatedState
from streammem.policy.memory_policy import MemoryPolicy, PolicyState

SCHEMA = 1
NOTE = "cartridge"  # says that the file is one


class Cartridge(NamedTuple):
    """What a file holds, ready to act from."""

    state: PolicyState  # of `batch` robots that all remember the same and have seen nothing yet
    notes: dict[str, str]


def save(path, policy: MemoryPolicy, state: PolicyState, row: int = 0, notes: Mapping[str, str] | None = None) -> None:
    """Writes what one of the state's robots remembers, atomically. Its clock, counters and last sight stay behind.

    Raises: CheckpointError where the disk refuses.
    """
    memory = tree.map(lambda x: x[row : row + 1], state.memory)
    told = {NOTE: "1", **(notes or {})}
    store.save(path, memory, schema=SCHEMA, notes=told, **_of(policy))


def load(path, policy: MemoryPolicy, batch: int = 1) -> Cartridge:
    """Gives it to `batch` robots: the same observations now give them all the actions that they would have given there.

    Raises: CheckpointError where the file is not whole, no cartridge, or of another policy.
    """
    stored = _stored(path, **_of(policy))
    with torch.no_grad():
        state = policy.init_state(batch)
        one: GatedState = stored.into(tree.map(lambda x: x[:1], state.memory))
        memory = tree.map(lambda x, like: x.to(like.device).expand_as(like).clone(), one, state.memory)
    return Cartridge(state._replace(memory=memory), stored.notes)


def notes(path) -> dict[str, str]:
    """What was written beside the memory, whichever policy it is of.

    Raises: CheckpointError where the file is not whole, or no cartridge.
    """
    return _stored(path).notes


def _stored(path, **of) -> store.Stored:
    stored = store.load(path, schema=SCHEMA, **of)
    if NOTE not in stored.notes:
        raise CheckpointError(f"{path}: a state, but no cartridge; wanted what `cartridge.save` writes")
    return stored


def _of(policy: MemoryPolicy) -> dict[str, str]:
    return {"rule": repr(policy.rule), "fingerprint": store.fingerprint(policy)}
