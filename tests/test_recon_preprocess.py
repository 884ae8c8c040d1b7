"""From a camera's picture to the network's, bit for bit as it was trained, and back."""

import hashlib
import json

import numpy as np
import pytest
import torch
from conftest import ROOT

from streammem.errors import ConfigError, ShapeError
from streammem.geometry import Camera, project
from streammem.recon import preprocess
from streammem.sources import frame_from

SIZES = [(480, 640, 512), (640, 480, 512), (375, 1242, 224), (512, 512, 512), (100, 70, 64), (33, 200, 512)]
CASES = range(20)


@pytest.fixture(scope="module")
def cases():
    path = ROOT.parent / "shared/golden/preprocess.json"
    if not path.is_file():
        pytest.skip("no reference pictures: ../shared/golden/preprocess.json does not exist beside the project")
    return json.loads(path.read_text())["cases"]


def patterned(width, height):
    """The picture that the reference was made of."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(3 * x + y) % 256, (x + 5 * y) % 256, (x * y // 7) % 256], -1).astype(np.uint8)


def reference(rgb, size):
    """Rows, columns and corner from the words of the specification."""
    H, W = rgb.shape[:2]
    long = round(size * max(W / H, H / W)) if size == 224 else size
    w, h = int(round(W * long / max(H, W))), int(round(H * long / max(H, W)))
    cx, cy = w // 2, h // 2
    if size == 224:
        half_w = half_h = min(cx, cy)
    else:
        half_w, half_h = (2 * cx // 16) * 8, (2 * cy // 16) * 8
        if h == w:
            half_h = half_w * 3 // 4
    return (h, w), (cy - half_h, cx - half_w), (2 * half_h, 2 * half_w)


@pytest.mark.parametrize("number", CASES)
def test_pictures_are_those_that_the_official_code_makes(number, cases):
    assert len(cases) == len(CASES)
    case = cases[number]
    rgb = patterned(*case["input_wh"])
    how = preprocess.fit(*rgb.shape[:2], case["size"])
    made = preprocess.image(rgb, how)
    assert list(made.shape[1:]) == case["out_hw"] == list(how.size)
    for place, values in case["sample_pixels_yx"].items():
        y, x = (-1, -1) if place == "last" else map(int, place.split(","))
        assert torch.allclose(made[:, y, x], torch.tensor(values), atol=1e-6)
    assert torch.allclose(made.mean((1, 2)), torch.tensor(case["mean"]), atol=1e-5)
    digest = hashlib.sha256(np.ascontiguousarray(preprocess.picture(rgb, how).transpose(2, 0, 1)).tobytes()).hexdigest()
    assert digest == case["sha256_uint8"]


@pytest.mark.parametrize("size", SIZES)
def test_the_sizes_are_those_of_the_words(size):
    height, width, side = size
    how = preprocess.fit(height, width, side)
    assert (how.resized, how.corner, how.size) == reference(np.zeros((height, width, 3)), side)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_go_there_and_back(size):
    height, width, side = size
    how = preprocess.fit(height, width, side)
    pixels = torch.rand(50, 2, dtype=torch.float64) * torch.tensor([width, height])
    assert torch.allclose(how.to_input(how.to_model(pixels)), pixels, atol=1e-9)


@pytest.mark.parametrize("size", SIZES)
def test_intrinsics_move_with_the_pixels(size):
    """A point seen at an input pixel is seen at that pixel's place in the model's picture."""
    height, width, side = size
    how = preprocess.fit(height, width, side)
    K = torch.tensor([[500.0, 0, 300], [0, 510, 210], [0, 0, 1]], dtype=torch.float64)
    camera = Camera(K, torch.eye(4, dtype=torch.float64), height, width)
    points = torch.rand(40, 3, dtype=torch.float64) + torch.tensor([-0.5, -0.5, 1.0])
    model = how.camera_to_model(camera)
    at_input, at_model = (torch.stack(project(points, c.intrinsics)[:2], -1) for c in (camera, model))
    assert torch.allclose(how.to_model(at_input), at_model, atol=1e-9)
    assert (model.height, model.width) == how.size
    assert torch.allclose(how.camera_to_input(model).intrinsics, K, atol=1e-9)


def test_a_bright_spot_is_found_where_the_transform_says():
    """Half a pixel matters: the centroid of a blurred spot, before and after the resize."""
    height, width = 300, 400
    v, u = np.mgrid[:height, :width]
    spot = 255 * np.exp(-((u - 203.3) ** 2 + (v - 121.7) ** 2) / (2 * 6.0**2))
    rgb = np.repeat(spot.round().astype(np.uint8)[..., None], 3, -1)
    how = preprocess.fit(height, width, 224)
    made = preprocess.image(rgb, how)[0].double() + 1
    rows, columns = torch.meshgrid(*(torch.arange(s, dtype=torch.float64) for s in how.size), indexing="ij")
    found = torch.stack([(made * columns).sum(), (made * rows).sum()]) / made.sum()
    assert torch.allclose(found, how.to_model(torch.tensor([203.3, 121.7], dtype=torch.float64)), atol=0.03)


def test_a_frame_is_prepared_without_a_change_of_its_bytes():
    rgb = patterned(640, 480)
    frame = frame_from(rgb, np.ones((480, 640)), [[585, 0, 320], [0, 585, 240], [0, 0, 1]])
    how = preprocess.fit(480, 640)
    made = preprocess.prepared(frame, how)
    assert made.depth is None and torch.equal(made.image[0], preprocess.image(rgb, how))
    assert torch.allclose(made.intrinsics[0, 0], torch.tensor([468.0, 0, 0.8 * 320.5 - 0.5]))


def test_pictures_of_other_sizes_are_refused():
    how = preprocess.fit(480, 640)
    with pytest.raises(ShapeError, match="wanted uint8"):
        preprocess.picture(np.zeros((481, 640, 3), np.uint8), how)
    with pytest.raises(ConfigError, match="leaves no whole patches"):
        preprocess.fit(10, 4000)
    with pytest.raises(ConfigError, match="wanted a size of whole patches"):
        preprocess.fit(480, 640, 500)
