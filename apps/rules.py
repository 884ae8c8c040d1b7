"""The memory rules: name, axes, and the first sentence of each."""

import argparse
import sys

from streammem.rules import RULES


def main(argv: list[str]) -> int:
    """Prints the catalogue."""
    argparse.ArgumentParser(prog="streammem rules", description=__doc__).parse_args(argv)
    for name, make in RULES.items():
        print(f"{name:<14} {(make.__doc__ or '').strip().splitlines()[0]}")
        print(f"{'':<14} {make()!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
