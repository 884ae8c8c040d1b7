"""Whole sequences: the chunk form of a rule beside its steps, in one run."""

from collections.abc import Iterator
from time import perf_counter

import torch

from streammem import tree
from streammem.rules import RULES
from streammem.scan import scan
from streammem.types import Gates, Tokens

from .case import Case, Setup
from .figure import Measured, at_least
from .workload import Rules

AGREES = 1e-9  # of readouts in float64, over FRAMES frames
FRAMES = 100
TURNS = 3
HELD = ("delta", "gated_delta")  # whose speed-up is a target, at the full length; the rest show theirs at an eighth
SHOWN = (
    *("hebbian", "gated_hebbian", "kda", "gdn2", "comba", "rwkv7", "longhorn", "nlms", "preconditioned_delta"),
    *("delta_product", "gated_delta_product", "kdn", "kalman_diag", "mesa"),
)
BY_CHANNEL = ("kda", "gdn2", "rwkv7")


def tokens(name: str, size: Rules, frames: int, dtype: torch.dtype) -> Tokens:
    """A sequence of one unit key a frame for one stream, with gates as the rule takes them."""
    g = torch.Generator().manual_seed(0)

    def drawn(make, *shape):
        return make(frames, 1, size.heads, *shape, generator=g, dtype=torch.float64)

    query, key = (torch.nn.functional.normalize(drawn(torch.randn, 1, size.key), dim=-1) for _ in range(2))
    rows = size.key if name in BY_CHANNEL else 1
    gates = Gates(drawn(torch.rand, 1, 1), 0.9 + 0.1 * drawn(torch.rand, rows, 1), 0.5 * drawn(torch.rand, 1, 1))
    return tree.map(lambda a: a.to(dtype), Tokens(query, key, drawn(torch.randn, 1, size.value), gates))


def timed(name: str, size: Rules, x: Tokens, chunk: int | None) -> tuple[float, torch.Tensor]:
    """Seconds of the sequence from an empty memory, and its readouts."""
    rule = RULES[name]()
    state = rule.init(x.key.new_zeros(1, size.heads, size.key, size.value))
    with torch.inference_mode():
        start = perf_counter()
        out = scan(rule, state, x, chunk)[1]
        return perf_counter() - start, out


def parity(setup: Setup) -> str | None:
    """Chunks are steps, at the widths and the chunk that are timed."""
    size = setup.workload.rules
    for name in (*HELD, *SHOWN):
        x = tokens(name, size, FRAMES, torch.float64)
        apart = float((timed(name, size, x, size.chunk)[1] - timed(name, size, x, None)[1]).abs().max())
        if not apart <= AGREES:
            return f"chunks of {name} are {apart:.1e} from its steps"
    return None


def measure(setup: Setup) -> Iterator[Measured]:
    """Seconds of the chunk form beside the steps: the best of three of each, in turn, for a busy machine slows both."""
    size = setup.workload.rules
    for name in (*HELD, *SHOWN):
        x = tokens(name, size, size.frames if name in HELD else size.frames // 8, torch.float32)
        pairs = [[timed(name, size, x, chunk)[0] for chunk in (None, size.chunk)] for _ in range(TURNS)]
        slow, fast = map(min, zip(*pairs))
        target = at_least(5, ">= 5 x the steps") if name in HELD else None
        yield Measured(f"{name}_{len(x.key)}_frames", "s", fast, slow, "steps")
        yield Measured(f"{name}_speed_up", "x", slow / fast, target=target)


SEQUENCES = Case(parity, measure)
