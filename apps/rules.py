"""The memory rules: name, axes, and the first sentence of each."""

import argparse
import re
import sys
from collections.abc import Iterator

from streammem.memory.rule import Composed, Rule
from streammem.rules import RULES

AXES = ("memory", "bias", "retention", "algorithm")
PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def main(argv: list[str]) -> int:
    """Prints the catalogue."""
    parser = argparse.ArgumentParser(prog="streammem rules", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    if parser.parse_args(argv).markdown:
        print("\n".join(table()))
        return 0
    for name, make in RULES.items():
        print(f"{name:<14} {first_sentence(make)}")
        print(f"{'':<14} {make()!r}")
    return 0


def table() -> Iterator[str]:
    """The catalogue as lines of a Markdown table: a rule's axes, or what it is where it does not factor."""
    yield "| rule | memory, bias, retention, algorithm | source |"
    yield "|---|---|---|"
    for name, make in RULES.items():
        yield f"| `{name}` | {axes(make()) or first_sentence(make).rstrip('.')} | {source(make)} |"


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
    lines = (make.__doc__ or "").splitlines()
    said = next((line.strip().removeprefix("Source: ") for line in lines if "Source:" in line), "")
    papers = [f"[{number}](https://arxiv.org/abs/{number})" for number in PAPER.findall(said)]
    return ", ".join(papers) or said.split(";")[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
