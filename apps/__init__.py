"""The programs. Each is a module with `main(argv) -> int`; `cli` finds them by name."""

from pathlib import Path

CONFIGS = Path(__file__).resolve().parent.parent / "configs"  # beside apps/ in the checkout and when installed
