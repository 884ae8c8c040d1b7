"""Tensors to pictures: depth, normals, errors and colours as RGB, side by side, as bytes of a file."""

import base64
import io

import torch
from PIL import Image
from torch import Tensor

SKY = (0.93, 0.94, 0.96)  # where nothing is known
NEAR_TO_FAR = ((0.99, 0.91, 0.60), (0.96, 0.55, 0.33), (0.76, 0.22, 0.42), (0.38, 0.12, 0.47), (0.09, 0.06, 0.28))
GOOD_TO_BAD = ((0.93, 0.97, 0.93), (0.55, 0.80, 0.62), (0.99, 0.80, 0.36), (0.85, 0.20, 0.20), (0.45, 0.02, 0.12))


def ramp(value: Tensor, anchors: tuple) -> Tensor:
    """Colours [h, w, 3] of values [h, w] in [0, 1], between anchors evenly apart."""
    table = torch.tensor(anchors, device=value.device)
    at = value.clamp(0, 1) * (len(anchors) - 1)
    low = at.floor().long().clamp(max=len(anchors) - 2)
    return torch.lerp(table[low], table[low + 1], (at - low)[..., None].to(table))


def colours(image: Tensor) -> Tensor:
    """A frame's image [3, h, w] in [-1, 1] as RGB [h, w, 3] in [0, 1]."""
    return (image.permute(1, 2, 0) + 1) / 2


def known(picture: Tensor, depth: Tensor) -> Tensor:
    """The picture [h, w, 3] where there is a depth [h, w], and sky elsewhere."""
    return torch.where((depth > 0)[..., None], picture, picture.new_tensor(SKY))


def depths(depth: Tensor, near_m: float, far_m: float) -> Tensor:
    """Light where near, dark where far."""
    return known(ramp((depth - near_m) / (far_m - near_m), NEAR_TO_FAR), depth)


def shaded(normal: Tensor, depth: Tensor, world_from_camera: Tensor) -> Tensor:
    """Surfaces [h, w, 3] of normals in the world, lit from beside the camera: what is bumpy looks bumpy."""
    R = world_from_camera[:3, :3].to(normal)
    light = torch.nn.functional.normalize(R @ normal.new_tensor([-0.45, -0.65, -0.6]), dim=0)
    facing = ((normal @ light + 1) / 2).clamp(0, 1)
    return known((0.1 + 0.86 * facing)[..., None] * normal.new_tensor([1.0, 0.985, 0.96]), depth)


def errors(difference_m: Tensor, compared: Tensor, worst_m: float = 0.05) -> Tensor:
    """Absolute differences [h, w], pale where small and red from half of `worst_m` on; sky where not compared."""
    return known(ramp(difference_m.abs() / worst_m, GOOD_TO_BAD), compared)


def doubts(variance: Tensor, depth: Tensor, worst_m: float = 0.01) -> Tensor:
    """Standard deviations of variances [h, w] in m^2: pale where the map is sure, red where it hardly knows."""
    return known(ramp(variance.sqrt().nan_to_num(worst_m, worst_m, worst_m) / worst_m, GOOD_TO_BAD), depth)


def beside(pictures: list[Tensor], gap: int = 4) -> Tensor:
    """Pictures of one height in a row, on white."""
    white = torch.ones(pictures[0].shape[0], gap, 3)
    row = [part for picture in pictures for part in (picture.cpu().float(), white)]
    return torch.cat(row[:-1], 1)


def below(pictures: list[Tensor], gap: int = 4) -> Tensor:
    """Pictures of one width under each other, on white."""
    return beside([picture.transpose(0, 1) for picture in pictures], gap).transpose(0, 1)


def encoded(picture: Tensor, kind: str = "JPEG", width: int | None = None) -> bytes:
    """A PNG (of 256 colours) or JPEG file of RGB [h, w, 3] in [0, 1], at most `width` pixels wide."""
    array = (picture.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    image = Image.fromarray(array)
    if width is not None and image.width > width:
        image = image.resize((width, round(image.height * width / image.width)), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    if kind == "PNG":
        image.quantize(256, dither=Image.Dither.NONE).save(file, kind, optimize=True)
    else:
        image.save(file, kind, quality=85)
    return file.getvalue()


def inline(picture: Tensor, width: int | None = None) -> str:
    """The picture as the source of an HTML image, with nothing to load from elsewhere."""
    return "data:image/jpeg;base64," + base64.b64encode(encoded(picture, "JPEG", width)).decode()
