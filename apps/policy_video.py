"""Films: MP4 where something is installed that can write it, else GIF, which anything can."""

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from streammem.errors import ConfigError

FILM, GIF = "video.mp4", "video.gif"
CODECS = ("avc1", "vp09", "mp4v")  # for OpenCV, those that browsers show first


def write_film(folder: Path, pictures: Iterable[np.ndarray], fps: int) -> Path:
    """Writes pictures [h, w, 3] uint8 of one even size as a film; returns where.

    By imageio-ffmpeg (H.264) where it is installed, else OpenCV, else Pillow as a GIF of half the size and rate.

    Raises: ConfigError where there is no picture.
    """
    coming = iter(pictures)
    first = next(coming, None)
    if first is None:
        raise ConfigError("a film of no pictures; wanted at least one")
    everything = _from(first, coming)
    if importlib.util.find_spec("imageio_ffmpeg"):
        return _ffmpeg(folder / FILM, first.shape, everything, fps)
    if importlib.util.find_spec("cv2"):
        return _opencv(folder, first.shape, everything, fps)
    return _gif(folder / GIF, everything, fps)


def _from(first: np.ndarray, rest: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    yield first
    yield from rest


def _ffmpeg(path: Path, shape, pictures: Iterator[np.ndarray], fps: int) -> Path:
    import imageio_ffmpeg

    size, options = (shape[1], shape[0]), ["-movflags", "+faststart", "-preset", "veryfast"]
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, quality=7, output_params=options)
    writer.send(None)
    for picture in pictures:
        writer.send(np.ascontiguousarray(picture))
    writer.close()
    return path


def _opencv(folder: Path, shape, pictures: Iterator[np.ndarray], fps: int) -> Path:
    import cv2

    path = folder / FILM
    before = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        for codec in CODECS:
            writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*codec), fps, (shape[1], shape[0]))
            if writer.isOpened():
                for picture in pictures:
                    writer.write(picture[:, :, ::-1])
                writer.release()
                return path
    finally:
        cv2.utils.logging.setLogLevel(before)
    path.unlink(missing_ok=True)
    return _gif(folder / GIF, pictures, fps)


def _gif(path: Path, pictures: Iterator[np.ndarray], fps: int) -> Path:
    """Every second picture, in half its size and 64 colours."""
    frames = (
        Image.fromarray(x).reduce(2).quantize(64, dither=Image.Dither.NONE) for i, x in enumerate(pictures) if not i % 2
    )
    first = next(frames)
    first.save(path, save_all=True, append_images=frames, duration=round(2000 / fps), loop=0, optimize=False)
    return path
