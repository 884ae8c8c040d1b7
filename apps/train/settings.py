"""What a training run can be told: frozen values with their defaults; configs/train/ holds what differs."""

import inspect
from dataclasses import dataclass, field

from streammem import config
from streammem.errors import ConfigError
from streammem.memory.architecture import MLP, Architecture, BiasedMLP, Matrix, Residual, SwiGLU
from streammem.memory.rule import Rule
from streammem.rules import RULES

from .tasks import INDICES, SEEDS, TASKS, Task

MEMORIES: dict[str, Architecture] = {
    "matrix": Matrix(),
    "mlp": MLP(),
    "biased_mlp": BiasedMLP(),
    "residual_mlp": Residual(MLP()),
    "swiglu": SwiGLU(),
}
Options = dict[str, int | float | bool | str]


@dataclass(frozen=True)
class RuleSettings:
    """A rule of the catalogue. `options` are arguments of it by name; a memory is one of MEMORIES, by name.

    Raises: ConfigError for an unknown rule or option.
    """

    name: str = "gated_delta"
    options: Options = field(default_factory=dict)

    def __post_init__(self):
        if self.name not in RULES:
            raise ConfigError(f"no rule {self.name!r}; known: {', '.join(RULES)}")
        known = inspect.signature(RULES[self.name]).parameters
        for name in self.options:
            if name not in known:
                raise ConfigError(f"{name} is no option of {self.name}; it has {', '.join(known) or 'none'}")
        if self.options.get("memory", "matrix") not in MEMORIES:
            raise ConfigError(f"memory is {self.options['memory']!r}; wanted one of {', '.join(MEMORIES)}")

    def made(self, tokens: int) -> Rule:
        """The rule, for frames of so many tokens."""
        options = dict(self.options)
        if "memory" in options:
            options["memory"] = MEMORIES[options["memory"]]
        if "tokens" in inspect.signature(RULES[self.name]).parameters:
            options.setdefault("tokens", tokens)
        return RULES[self.name](**options)


@dataclass(frozen=True)
class ModelSettings:
    """Blocks of a memory layer each, between an embedding and a read-out.

    Raises: ConfigError for sizes below 1.
    """

    rule: RuleSettings = field(default_factory=RuleSettings)
    width: int = 64  # D
    blocks: int = 1
    heads: int = 1
    key: int = 32  # of a head
    value: int = 32  # of a head
    hidden: int = 32  # of a deep memory
    conv: int = 2  # tokens of the short convolution, this one included; 0: none
    most: float = 1.0  # highest rate of a token
    decay: float = 0.02  # times Mamba-2's initial decay, which forgets within some tens of tokens
    gated: bool = False  # output normalised by head and gated
    frame: int = 1  # tokens that are written at once
    chunk: int | None = None  # frames at once, where the rule has a chunk form; None steps

    def __post_init__(self):
        sizes = {x: getattr(self, x) for x in ("width", "blocks", "heads", "key", "value", "hidden", "frame")}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} is {size}; wanted at least 1")


@dataclass(frozen=True)
class TrainSettings:
    """One training run: the task, the model, and how it is trained.

    Raises: ConfigError for an unknown task, an option that it has not, or numbers that make no sense.
    """

    task: str = "recall"
    options: dict[str, int | float | tuple[int, int]] = field(default_factory=dict)  # of the task
    model: ModelSettings = field(default_factory=ModelSettings)
    steps: int = 1000
    batch: int = 32
    rate: float = 3e-3  # of AdamW, at its highest
    warm_up: int = 50  # steps to it; from there it falls as a cosine to 0
    weight_decay: float = 0.01
    clip: float = 1.0  # norm of the gradient, at most
    evaluate_every: int = 100  # steps, on sequences that are not trained on; the checkpoint is written then
    evaluate_on: int = 256  # sequences of each level
    enough: float | None = None  # ends when every level scores this; None: at the last step
    device: str = "cpu"
    threads: int | None = None  # None: as many as torch takes
    seed: int = 0

    def __post_init__(self):
        if self.task not in TASKS:
            raise ConfigError(f"no task {self.task!r}; known: {', '.join(TASKS)}")
        counts = {x: getattr(self, x) for x in ("steps", "batch", "evaluate_every", "evaluate_on")}
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}; wanted at least 1")
        if not (self.rate > 0 and self.clip > 0 and self.warm_up >= 0 and self.weight_decay >= 0):
            raise ConfigError(f"rate {self.rate}, clip {self.clip}: wanted both above 0, warm_up and weight_decay >= 0")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; wanted at least 1")
        if not 0 <= self.seed < SEEDS or self.steps > INDICES:
            told = f"seed is {self.seed}, steps {self.steps}"
            raise ConfigError(f"{told}; wanted 0 <= seed < {SEEDS} and steps <= {INDICES}")
        if self.made().echoes and self.model.frame > 1:
            told = f"{self.task} shows the answer of each token with the next one"
            raise ConfigError(f"{told}, and model.frame is {self.model.frame}; wanted 1: a frame sees itself whole")

    def made(self) -> Task:
        """The task."""
        return config.build(TASKS[self.task], dict(self.options), f"options of {self.task}")
