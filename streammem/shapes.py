"""Shapes as metadata: checked at the door, never on the device."""

from torch import Tensor

from streammem.errors import ShapeError


def check(x: Tensor, pattern: str, name: str, **sizes: int) -> dict[str, int]:
    """Checks x against letters such as "B N K" and returns the size of each letter, `sizes` included.

    A word of the pattern is a letter (any size, the same wherever it is met), a number (that size), or a leading
    "..." (any axes). `sizes` fixes letters, so that one check can feed the next:

    >>> sizes = check(memory, "... K V", "memory")
    >>> check(key, "... N K", "key", K=sizes["K"])

    Raises: ShapeError, as in "key is [2, 4, 8]; wanted [B, N, K] with K = 6".
    """
    words = pattern.split()
    leading = bool(words) and words[0] == "..."
    words = words[leading:]
    shape = tuple(x.shape)
    tail = shape[len(shape) - len(words) :] if leading else shape
    if len(tail) != len(words) or len(shape) < len(words):
        raise ShapeError(_message(shape, pattern, name, sizes))
    found = dict(sizes)
    for word, size in zip(words, tail):
        expected = int(word) if word.isdigit() else found.setdefault(word, size)
        if expected != size:
            raise ShapeError(_message(shape, pattern, name, {**sizes, word: expected}))
    return found


def _message(shape: tuple[int, ...], pattern: str, name: str, sizes: dict[str, int]) -> str:
    fixed = [f"{letter} = {size}" for letter, size in sizes.items() if letter in pattern.split()]
    given = f" with {', '.join(fixed)}" if fixed else ""
    return f"{name} is {list(shape)}; wanted [{', '.join(pattern.split())}]{given}"
