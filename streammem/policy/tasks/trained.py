"""Policies for the recall task: what makes one, and one in a file."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from streammem import store
from streammem.errors import CheckpointError, ConfigError
from streammem.policy.clock import Admission
from streammem.policy.encoders import Straight, VectorEncoder
from streammem.policy.gate import GATES
from streammem.policy.gated_memory import GatedMemory
from streammem.policy.heads import RegressionHead
from streammem.policy.memory_policy import MemoryPolicy
from streammem.policy.tasks.arm import STEP_S
from streammem.policy.tasks.recall import ACTION, OBSERVATION
from streammem.rules import RULES

SCHEMA = 1
SHIPPED = {  # name: the command that trained it
    "place": "streammem train-policy policy",
    "place_learned": "streammem train-policy policy_learned",
}
Options = dict[str, int | float | bool | str]


class Columns(nn.Module):
    """Projections whose queries and keys see some columns, and values all: the others' weights count as 0.

    What a key does not see cannot be mistaken for what it is about, as where the hand is for why it went there.

    Shapes: weights [sum of parts, inputs], rows in the order query, key, value.
    """

    def __init__(self, parts: Sequence[int], inputs: int, seen: tuple[int, int]):
        super().__init__()
        mask = torch.ones(sum(parts), inputs)
        mask[: parts[0] + parts[1]] = 0
        mask[: parts[0] + parts[1], seen[0] : seen[1]] = 1
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        return self.mask * weight


@dataclass(frozen=True)
class Recipe:
    """What a policy for the recall task is made of, in plain numbers and names.

    rule, gate: names of the catalogues, with arguments of each. heads, key, value: of the memory. width: of the token
    that an observation is mapped to; 0: it is the token itself, and the head sees it and what the heads read, which
    learns the task where a mapped one does not. hidden: of the action head. most: the highest rate of a write.
    asked: where the numbers of an observation begin and end that keys and queries are made of; (0, 0): all of them.

    Raises: ConfigError for a name or an argument that there is not.
    """

    rule: str = "delta"
    rule_options: Options = field(default_factory=dict)
    gate: str = "given"
    gate_options: Options = field(default_factory=dict)
    heads: int = 2
    key: int = 32
    value: int = 32
    width: int = 0
    hidden: int = 128
    most: float = 1.0
    asked: tuple[int, int] = (0, 0)

    def __post_init__(self):
        first, end = self.asked
        if self.asked != (0, 0) and (self.width or not 0 <= first < end <= OBSERVATION):
            raise ConfigError(f"asked is {self.asked}, width {self.width}; wanted 0 <= first < end <= {OBSERVATION}, 0")
        for kind, catalogue in (("rule", RULES), ("gate", GATES)):
            name = getattr(self, kind)
            if name not in catalogue:
                raise ConfigError(f"no {kind} {name!r}; known: {', '.join(catalogue)}")
            known = inspect.signature(catalogue[name]).parameters
            for option in getattr(self, f"{kind}_options"):
                if option not in known:
                    raise ConfigError(f"{option} is no option of {name}; it has {', '.join(known) or 'none'}")

    def made(self) -> MemoryPolicy:
        """The policy, untrained."""
        rule = RULES[self.rule](**self.rule_options)
        encoder = VectorEncoder(OBSERVATION, self.width) if self.width else Straight(OBSERVATION)
        dim, read = (self.width, self.width) if self.width else (OBSERVATION, self.heads * self.value)
        gate = GATES[self.gate](dim, self.heads, **self.gate_options)
        memory = GatedMemory(dim, gate, rule, (self.key, self.value), most=self.most, mixed=self.width > 0)
        if self.asked != (0, 0):
            columns = Columns(memory.layer.parts, OBSERVATION, self.asked)
            parametrize.register_parametrization(memory.layer.qkv, "weight", columns)
        head = RegressionHead(dim + read, ACTION, self.hidden)
        return MemoryPolicy(encoder, memory, head, admission=Admission(period_s=STEP_S))


def save(path, policy: MemoryPolicy, recipe: Recipe, source: str) -> None:
    """Writes the weights and the recipe. source: the command that trained them."""
    notes = {"recipe": json.dumps(asdict(recipe)), "source": source}
    store.save(path, policy.state_dict(), schema=SCHEMA, rule=recipe.rule, notes=notes)


def shipped(name: str) -> MemoryPolicy:
    """A policy that comes with the package, ready to act; `SHIPPED` says which there are.

    Raises: ConfigError for a name that there is not.
    """
    if name not in SHIPPED:
        raise ConfigError(f"no policy {name!r} comes with the package; known: {', '.join(SHIPPED)}")
    return load(Path(__file__).parents[1] / f"{name}.safetensors")


def load(path) -> MemoryPolicy:
    """A trained policy, ready to act.

    Raises: CheckpointError where the file is missing, damaged, or of something else.
    """
    stored = store.load(path, schema=SCHEMA)
    if "recipe" not in stored.notes:
        raise CheckpointError(f"{path}: no policy of the recall task; wanted what streammem train-policy writes")
    policy = _recipe(json.loads(stored.notes["recipe"])).made()
    policy.load_state_dict(stored.tensors)
    return policy.eval()


def _recipe(told: dict) -> Recipe:
    """JSON knows no tuples."""
    return Recipe(**told | {"asked": tuple(told.get("asked", (0, 0)))})
