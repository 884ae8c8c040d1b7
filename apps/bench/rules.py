"""One step of each rule of the catalogue, in turn with the shortest torch that does the same."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from streammem import tree
from streammem.memory.architecture import Residual
from streammem.memory.rule import Rule
from streammem.nn.initial import memory_of, shaped
from streammem.rules import RULES
from streammem.types import Gates, Tokens

from .by_hand import BY_HAND
from .case import Case, Setup
from .figure import Measured, at_most, interleaved, timings
from .workload import Rules

AGREES = 1e-9  # of readouts in float64, over FRAMES frames
FRAMES = 3


def tokens(size: Rules, dtype: torch.dtype, seed: int) -> Tokens:
    """One random frame for one stream: keys of unit length, rates and gates in their ranges."""
    g = torch.Generator().manual_seed(seed)
    lead, n = (1, size.heads), size.tokens
    normal = [torch.randn(*lead, n, w, generator=g, dtype=torch.float64) for w in (size.key, size.key, size.value)]
    uniform = [torch.rand(*lead, *shape, generator=g, dtype=torch.float64) for shape in ((n, 1), (1, 1), (1, 1))]
    gates = Gates(0.05 + 0.1 * uniform[0], 0.9 + 0.1 * uniform[1], 0.9 * uniform[2])
    query, key = (torch.nn.functional.normalize(x, dim=-1) for x in normal[:2])
    return tree.map(lambda x: x.to(dtype), Tokens(query, key, normal[2], gates))


def made(name: str, size: Rules) -> Rule:
    """The rule with its defaults, and with windows for frames of this size."""
    return RULES[name](tokens=size.tokens) if name in WINDOWS else RULES[name]()


def weights(rule: Rule, size: Rules, dtype: torch.dtype):
    """An initial memory of the kind the rule wants, on the simplex over keys: every retention gate takes that."""
    g = torch.Generator().manual_seed(9)

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(1, size.heads, rows, columns, generator=g, dtype=torch.float64).softmax(-2).to(dtype)

    return shaped(memory_of(rule), matrix, size.key, size.value, size.key)


def fitting(rule: Rule, size: Rules) -> Rules:
    """The size, with values as wide as keys where the memory is a residual."""
    return replace(size, value=size.key) if isinstance(memory_of(rule), Residual) else size


def fault(name: str, size: Rules) -> str | None:
    """How far the rule and the one by hand come apart in float64, in words; None where they agree."""
    rule, by_hand = made(name, size), BY_HAND.get(name)
    size = fitting(rule, size)
    start = weights(rule, size, torch.float64)
    state, other = rule.init(start), None if by_hand is None else by_hand.init(start)
    for seed in range(FRAMES):
        x = tokens(size, torch.float64, seed)
        state, readout = rule.step(state, x)
        if by_hand is None:  # a step of its own has nothing beside it
            wanted = rule.read(state, x.query) if type(rule).step is Rule.step else readout
        else:
            other, wanted = by_hand.step(other, x)
        apart = float((readout - wanted).abs().max())
        if not apart <= AGREES:
            return f"{name} is {apart:.1e} from what it should be after {seed + 1} frames"
    return None


def parity(setup: Setup) -> str | None:
    """Every rule agrees with the one by hand, or with its own definition, at the shapes that are timed."""
    return next((words for name in RULES if (words := fault(name, setup.workload.rules))), None)


def measure(setup: Setup) -> Iterator[Measured]:
    """Step times and state bytes."""
    size = setup.workload.rules
    for name in RULES:
        rule, by_hand = made(name, size), BY_HAND.get(name)
        fit = fitting(rule, size)
        x, start = tokens(fit, torch.float32, 0), weights(rule, fit, torch.float32)
        state = rule.init(start)
        steps: dict[str, Callable] = {"ours": _stepping(rule, state, x)}
        if by_hand is not None:
            steps["by hand"] = _stepping(by_hand, by_hand.init(start), x)
        compiled = _compiled(rule, state, x) if name in size.compiled else None
        if compiled is not None:
            steps["compiled"] = compiled
        with torch.inference_mode(name not in NEEDS_GRADIENTS):
            times = interleaved(steps, size.repeats, warm=10)
        yield from timings(name, times["ours"], times.get("by hand", ()), "by hand" if by_hand else "")
        if by_hand is not None:
            overhead = median(times["ours"]) / median(times["by hand"])
            yield Measured(f"{name}_overhead", "x", overhead, target=at_most(3, "<= 3 x by hand"))
        if compiled is not None:
            both = (1e3 * median(times[kind]) for kind in ("compiled", "ours"))
            yield Measured(f"{name}_compiled_median", "ms", *both, "eager")
        yield Measured(f"{name}_state", "bytes", tree.nbytes(state))


WINDOWS = ("omega", "atlas")  # their state depends on the number of tokens of a frame
NEEDS_GRADIENTS = ("titans", "yaad", "moneta")


def _stepping(rule, state, x: Tokens) -> Callable:
    return lambda: rule.step(state, x)


def _compiled(rule: Rule, state, x: Tokens) -> Callable | None:
    """The step as one compiled graph; None where nothing can be compiled here."""
    step = torch.compile(rule.step, fullgraph=True)
    try:
        with torch.inference_mode():
            step(state, x)
    except RuntimeError:  # no C++ compiler, or none that torch knows
        return None
    return lambda: step(state, x)


STEPS = Case(parity, measure)
