"""A camera's picture to the network's: resize, crop, and the way back from its pixels to the camera's."""

from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from streammem.errors import ConfigError, ShapeError
from streammem.geometry import Camera, scale_intrinsics
from streammem.types import Frame

SQUARE = 224  # the size whose pictures are cropped to squares, as that model was trained


class Fit(NamedTuple):
    """How pictures of one size become the network's: resized, then cropped.

        model = scale (input + 1/2) - 1/2 - corner

    Pixel centres are at integer coordinates on both sides.
    """

    input_size: tuple[int, int]  # height, width
    resized: tuple[int, int]  # height, width between the two steps
    corner: tuple[int, int]  # row, column of the crop
    size: tuple[int, int]  # height, width of what the network sees

    @property
    def scale(self) -> tuple[float, float]:
        """Model pixels an input pixel, down the rows and along the columns."""
        return self.resized[0] / self.input_size[0], self.resized[1] / self.input_size[1]

    def to_model(self, pixels: Tensor) -> Tensor:
        """Where input pixels (u, v) lie in the model's picture. Shapes: [..., 2], column first."""
        scale, corner = self._as(pixels)
        return scale * (pixels + 0.5) - 0.5 - corner

    def to_input(self, pixels: Tensor) -> Tensor:
        """Where the model's pixels (u, v) lie in the camera's picture. Shapes: [..., 2], column first."""
        scale, corner = self._as(pixels)
        return (pixels + 0.5 + corner) / scale - 0.5

    def intrinsics_to_model(self, intrinsics: Tensor) -> Tensor:
        """K of the model's picture from K [..., 3, 3] of the camera's."""
        K = scale_intrinsics(intrinsics, self.scale[1], self.scale[0])
        return _shifted(K, -self.corner[1], -self.corner[0])

    def intrinsics_to_input(self, intrinsics: Tensor) -> Tensor:
        """K of the camera's picture from K [..., 3, 3] of the model's."""
        K = _shifted(intrinsics, self.corner[1], self.corner[0])
        return scale_intrinsics(K, 1 / self.scale[1], 1 / self.scale[0])

    def camera_to_model(self, camera: Camera) -> Camera:
        """The camera whose picture is the model's, at the same pose."""
        return Camera(self.intrinsics_to_model(camera.intrinsics), camera.world_from_camera, *self.size)

    def camera_to_input(self, camera: Camera) -> Camera:
        """The camera whose picture is the input, at the pose of the model's."""
        return Camera(self.intrinsics_to_input(camera.intrinsics), camera.world_from_camera, *self.input_size)

    def _as(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_tensor(self.scale[::-1]), like.new_tensor(self.corner[::-1])


def fit(height: int, width: int, size: int = 512, patch: int = 16, square_ok: bool = False) -> Fit:
    """The resize and crop that the weights of that size were trained with.

        224: short side to 224, then the centred square; else: long side to `size`, then, around (w // 2, h // 2), half
        sides of (2 c // patch) patch / 2; a square becomes 4 x 3 unless `square_ok`

    Raises: ConfigError where nothing would be left of the picture.
    Source: CUT3R, `load_images` of its code, as measured.
    """
    if min(height, width) < 1 or size < patch or size % patch:
        raise ConfigError(
            f"the picture is {width} x {height} and size {size}; wanted a size of whole patches of {patch}"
        )
    long = round(size * max(width / height, height / width)) if size == SQUARE else size
    h, w = (int(round(side * long / max(height, width))) for side in (height, width))
    cy, cx = h // 2, w // 2
    if size == SQUARE:
        half_h = half_w = min(cx, cy)
    else:
        half_h, half_w = (2 * c // patch * patch // 2 for c in (cy, cx))
        if h == w and not square_ok:
            half_h = 3 * half_w // 4
    if min(half_h, half_w) * 2 < patch or half_h * 2 % patch or half_w * 2 % patch:
        raise ConfigError(f"the picture is {width} x {height}: at size {size} it leaves no whole patches of {patch}")
    return Fit((height, width), (h, w), (cy - half_h, cx - half_w), (2 * half_h, 2 * half_w))


def picture(rgb: np.ndarray, how: Fit) -> np.ndarray:
    """The network's picture as bytes, [h, w, 3] uint8 from [H, W, 3] uint8.

    Lanczos where the long side shrinks, bicubic where it grows or stays.
    Raises: ShapeError for a picture of another size than `how` is for.
    """
    if rgb.shape != (*how.input_size, 3) or rgb.dtype != np.uint8:
        raise ShapeError(f"the picture is {rgb.dtype} {list(rgb.shape)}; wanted uint8 [*{how.input_size}, 3]")
    shrinks = max(how.input_size) > max(how.resized)
    method = Image.Resampling.LANCZOS if shrinks else Image.Resampling.BICUBIC
    resized = np.asarray(Image.fromarray(rgb).resize(how.resized[::-1], method))
    (top, left), (h, w) = how.corner, how.size
    return resized[top : top + h, left : left + w]


def image(rgb: np.ndarray, how: Fit) -> Tensor:
    """The network's picture, [3, h, w] float32 in [-1, 1]: (x / 255 - 1/2) / (1/2)."""
    return (torch.from_numpy(picture(rgb, how).copy()).permute(2, 0, 1).float() / 255 - 0.5) / 0.5


def prepared(frame: Frame, how: Fit) -> Frame:
    """The frame as the network wants it: its picture, and its intrinsics where they are known; no depth.

    Shapes: image [B, 3, H, W] -> [B, 3, h, w]. Waits for the device: it belongs where frames come in.
    """
    rgb = ((frame.image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    made = torch.stack([image(one, how) for one in rgb]).to(frame.image.device)
    K = None if frame.intrinsics is None else how.intrinsics_to_model(frame.intrinsics)
    return frame._replace(image=made, depth=None, intrinsics=K)


def _shifted(intrinsics: Tensor, columns: float, rows: float) -> Tensor:
    K = intrinsics.clone()
    K[..., 0, 2] += columns
    K[..., 1, 2] += rows
    return K
