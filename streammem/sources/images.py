"""Picture files to arrays."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from streammem.errors import SourceError

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what Pillow raises for damaged files
DEPTH_MODES = ("I;16", "I;16B", "I;16L", "I", "F", "L")


def read_colour(path: Path, upright: bool = False) -> np.ndarray:
    """RGB [h, w, 3] uint8, turned as the camera was held if `upright`.

    Raises: SourceError for a file that is missing, damaged or cut short.
    """
    try:
        with Image.open(path) as picture:
            return np.asarray((ImageOps.exif_transpose(picture) if upright else picture).convert("RGB"))
    except UNREADABLE as error:
        raise SourceError(f"{path} cannot be read as a picture: {error}") from error


def read_depth(path: Path) -> np.ndarray:
    """Depth [h, w] in the units of the file. Raises: SourceError for a damaged file, or one in colour."""
    try:
        with Image.open(path) as picture:
            mode, array = picture.mode, np.asarray(picture)
    except UNREADABLE as error:
        raise SourceError(f"{path} cannot be read as a picture: {error}") from error
    if mode not in DEPTH_MODES:
        raise SourceError(f"{path} has mode {mode}; wanted one channel of 16 bits: was it made for looking at?")
    return array
