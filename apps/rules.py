"""The memory rules: state, cost and chunk form of each, measured here, with its axes and its source.

state: bytes of one stream in float32. cost: operations of one step of one token, counted as it runs (a multiplication
and an addition are two). chunk: how a whole sequence is taken at once: exact, the same as stepping; frozen, where the
gradients of a chunk are taken at its start, which is part of the rule; none, where it can only be stepped through. What
a form asks for (deltaformer: no merging) stands in the docstring of the rule: `streammem rules NAME`.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch

from streammem import tree
from streammem.errors import ConfigError, NoKernel
from streammem.memory.rule import Composed, Rule
from streammem.nn.initial import initial
from streammem.rules import RULES
from streammem.types import Gates, Tokens

from .cost import operations

AXES = ("memory", "bias", "retention", "algorithm")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
WITHOUT = {"merge": None}  # an option of some rules that their chunk form does without


class Widths(NamedTuple):
    """Of the layer that a rule is measured in."""

    keys: int = 64
    values: int = 64
    heads: int = 4


def main(argv: list[str]) -> int:
    """Prints the catalogue, or all that is known of one rule."""
    parser = argparse.ArgumentParser(
        prog="streammem rules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("rule", nargs="*", help="say all of these; nothing: a line each of all")
    add("--markdown", action="store_true", help="print the table as markdown")
    for name, width in Widths()._asdict().items():
        add(f"--{name}", type=int, default=width, help="width (default: %(default)s)")
    said = parser.parse_args(argv)
    widths = Widths(said.keys, said.values, said.heads)
    unknown = [name for name in said.rule if name not in RULES]
    if unknown or min(widths) < 1:
        told = f"no rule {unknown[0]!r}; known: {', '.join(RULES)}" if unknown else f"{widths}; wanted widths >= 1"
        raise ConfigError(told)
    if said.markdown:
        print("\n".join(table()))
    elif said.rule:
        print("\n\n".join(whole(name, widths) for name in said.rule))
    else:
        print("\n".join(lines(widths)))
    return 0


def table() -> Iterator[str]:
    """The catalogue as lines of a Markdown table: a rule's axes, or what it is where it does not factor."""
    yield "| rule | memory, bias, retention, algorithm | state | chunk | source |"
    yield "|---|---|---|---|---|"
    for name, make in RULES.items():
        size = kibibytes(state_bytes(name, Widths()))
        yield f"| `{name}` | {described(name)} | {size} | {chunk_form(name)} | {source(make)} |"


def lines(widths: Widths) -> Iterator[str]:
    """The catalogue as aligned text."""
    wide = max(map(len, RULES))
    yield f"keys {widths.keys}, values {widths.values}, heads {widths.heads};  `streammem rules NAME` says all of one\n"
    yield f"{'rule':<{wide}}  {'state':>9}  {'cost':>9}  {'chunk':<6}  memory, bias, retention, algorithm; source"
    for name, make in RULES.items():
        measured = f"{kibibytes(state_bytes(name, widths)):>9}  {thousands(step_cost(name, widths)):>9}"
        cited = ", ".join(f"arXiv:{number}" for number in PAPER.findall(plain_source(make))) or source(make)
        told = f"{described(name)}; {cited}" if cited else described(name)
        yield f"{name:<{wide}}  {measured}  {chunk_form(name):<6}  {told}"


def whole(name: str, widths: Widths) -> str:
    """The rule's docstring, and what was measured of it."""
    said = inspect.cleandoc(RULES[name].__doc__ or "")
    size, cost = kibibytes(state_bytes(name, widths)), thousands(step_cost(name, widths))
    figures = f"State {size}, cost {cost} operations a token, chunk form: {chunk_form(name)}."
    return f"{name}: {said}\n\n{figures}\n{RULES[name]()!r}"


def state_bytes(name: str, widths: Widths) -> int | None:
    """Bytes of the state of one stream; None where the rule cannot have these widths."""
    start = _start(name, widths)
    return None if start is None else tree.nbytes(start[1])


def step_cost(name: str, widths: Widths) -> int | None:
    """Operations of one step of one token, of all heads; None where the rule cannot have these widths."""
    start = _start(name, widths)
    if start is None:
        return None
    rule, state = start
    token = tree.map(lambda a: a[0], _tokens(1, widths, torch.float32))
    state, _ = rule.step(state, token)  # a first step may be another
    return operations(lambda: rule.step(state, token))


def chunk_form(name: str) -> str:
    """exact, frozen or none: tried out on a few tokens."""
    widths, known = Widths(4, 4, 1), inspect.signature(RULES[name]).parameters
    options = {"chunk": 2} if "chunk" in known else {}
    for more in ({}, {key: x for key, x in WITHOUT.items() if key in known}):
        rule = RULES[name](**options, **more)
        x = _tokens(4, widths, torch.float64)
        state = rule.init(tree.map(lambda a: a.double()[None], initial(rule, 1, 4, 4, 4)))
        try:
            rule.sequence(state, x, 2)
        except NoKernel:
            continue
        return "frozen" if options else "exact"
    return "none"


def described(name: str) -> str:
    """The four axes, or what the rule is where it does not factor."""
    return axes(RULES[name]()) or first_sentence(RULES[name]).rstrip(".")


def first_sentence(make) -> str:
    """What the rule is."""
    return (make.__doc__ or "").strip().splitlines()[0]


def axes(rule: Rule) -> str:
    """The four axes by their names, of what a wrapper wraps too; nothing for a rule that does not factor."""
    if isinstance(rule, Composed):
        first = " at the retained memory" if rule.retain_first else ""
        return ", ".join(type(getattr(rule, axis)).__name__ for axis in AXES) + first
    inner = axes(rule.rule) if isinstance(getattr(rule, "rule", None), Rule) else ""
    return f"{type(rule).__name__} of {inner}" if inner else ""


def source(make) -> str:
    """Papers as links, or else the words of the docstring."""
    said = plain_source(make)
    papers = [f"[{number}](https://arxiv.org/abs/{number})" for number in PAPER.findall(said)]
    return ", ".join(papers) or said.split(";")[0].rstrip(".")


def plain_source(make) -> str:
    """The words of the docstring."""
    said = (make.__doc__ or "").splitlines()
    return next((line.strip().removeprefix("Source: ") for line in said if "Source:" in line), "")


def kibibytes(count: int | None) -> str:
    """In words; K = V where there is none."""
    return "K = V" if count is None else f"{count / 1024:,.0f} KiB" if count >= 1024 else f"{count} B"


def thousands(count: int | None) -> str:
    """In words; K = V where there is none."""
    return "K = V" if count is None else f"{count / 1000:,.0f} k"


def _start(name: str, widths: Widths):
    """A rule and its state before the first token; None where it adds to its input, and keys are not as wide."""
    rule = RULES[name]()
    try:
        weights = initial(rule, widths.heads, widths.keys, widths.values, widths.keys)
    except ConfigError:
        return None
    return rule, rule.init(tree.map(lambda a: a[None], weights))


def _tokens(frames: int, widths: Widths, dtype: torch.dtype) -> Tokens:
    """A sequence of one token a frame, [T, 1, H, 1, width]."""
    g = torch.Generator().manual_seed(0)

    def drawn(width: int) -> torch.Tensor:
        return torch.rand(frames, 1, widths.heads, 1, width, generator=g, dtype=dtype)

    gates = Gates(0.1 * drawn(1), 1 - 0.1 * drawn(1), 0.5 * drawn(1))
    return Tokens(drawn(widths.keys), drawn(widths.keys), drawn(widths.values), gates)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
