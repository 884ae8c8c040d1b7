"""Files for other programs: what is read back is what was written."""

import json
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from test_export import surface

from apps import cli
from streammem.errors import ConfigError, ShapeError
from streammem.export import write_colmap, write_gltf, write_points
from streammem.geometry import inverse_rigid, motion_from_quaternion, project, se3_exp, transform
from streammem.metrics import read_trajectory
from streammem.sources import Synthetic

SMALL = ["source.height=48", "source.width=64", "source.frames=4", "source.noise=none", "previews=0", "--no-mesh"]
MAP = ["map.voxel_size_m=0.08", "map.write.sampling.band_m=0.25", "map.max_bytes=33554432", "map.window_blocks=64"]


def colmap(folder):
    """Camera, images by name as world_from_camera, and points, as the format's documentation reads."""
    lines = {name: (folder / f"{name}.txt").read_text().splitlines() for name in ("cameras", "images", "points3D")}
    kept = {name: [line.split() for line in part if not line.startswith("#")] for name, part in lines.items()}
    assert all(line == [] for line in kept["images"][1::2])
    images = {}
    for _, *numbers, camera, name in kept["images"][::2]:
        assert camera == "1"
        qw, qx, qy, qz, *t = map(float, numbers)
        motion = motion_from_quaternion(
            torch.tensor(t, dtype=torch.float64), torch.tensor([qx, qy, qz, qw], dtype=torch.float64)
        )
        images[name] = inverse_rigid(motion)
    return kept["cameras"], images, torch.tensor([[float(x) for x in row] for row in kept["points3D"]])


def test_open3d_reads_the_gltf_that_was_written(tmp_path):
    open3d = pytest.importorskip("open3d")
    vertices, triangles, normals, colours = surface(points=9, faces=7)
    triangles[0] = torch.tensor([0, 1, 8])
    write_gltf(tmp_path / "mesh.glb", vertices, triangles, normals, colours)
    model = open3d.t.io.read_triangle_mesh(str(tmp_path / "mesh.glb"))
    found = model.to_legacy()
    one, other = (np.asarray(found.vertices)[np.asarray(found.triangles)], vertices[triangles.long()].numpy())
    assert one.shape == other.shape and np.allclose(one, other, atol=1e-6)


def test_the_gltf_is_what_the_specification_says(tmp_path):
    vertices, triangles, normals, colours = surface(points=6, faces=5)
    write_gltf(tmp_path / "mesh.glb", vertices, triangles, normals, colours)
    data = (tmp_path / "mesh.glb").read_bytes()
    magic, version, length = struct.unpack("<4sII", data[:12])
    assert (magic, version, length) == (b"glTF", 2, len(data))
    size, kind = struct.unpack("<I4s", data[12:20])
    scene = json.loads(data[20 : 20 + size])
    rest = data[20 + size :]
    count, binary = struct.unpack("<I4s", rest[:8])
    assert kind == b"JSON" and binary == b"BIN\0" and count == len(rest) - 8 == scene["buffers"][0]["byteLength"]
    types = {5125: "<u4", 5126: "<f4", 5121: "u1"}
    wide = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}
    parts = []
    for accessor in scene["accessors"]:
        view = scene["bufferViews"][accessor["bufferView"]]
        assert view["byteOffset"] % 4 == 0
        part = np.frombuffer(rest[8:], types[accessor["componentType"]], accessor["count"] * wide[accessor["type"]],
                             view["byteOffset"])  # fmt: skip
        parts.append(part.reshape(accessor["count"], -1))
    at, up = parts[1], parts[2]
    assert np.array_equal(parts[0].reshape(-1, 3), triangles.numpy()) and np.array_equal(at, vertices.numpy())
    assert np.array_equal(up, normals.numpy()) and scene["accessors"][1]["min"] == pytest.approx(at.min(0).tolist())
    assert np.abs(parts[3][:, :3] / 255 - colours.numpy()).max() < 0.003 and (parts[3][:, 3] == 255).all()


def test_an_empty_mesh_is_a_file_too(tmp_path):
    nothing = torch.zeros(0, 3)
    write_gltf(tmp_path / "mesh.glb", nothing, nothing.int(), nothing, nothing)
    assert len((tmp_path / "mesh.glb").read_bytes()) % 4 == 0


def test_a_colmap_model_is_read_back(tmp_path):
    poses = se3_exp(torch.randn(3, 6, dtype=torch.float64))
    points, colours = torch.randn(5, 3), torch.rand(5, 3)
    K = torch.tensor([[500.0, 0, 319.5], [0, 510, 239.5], [0, 0, 1]])
    images = [(f"{i}.png", pose) for i, pose in enumerate(poses)]
    assert write_colmap(tmp_path / "model", K, (480, 640), iter(images), points, colours) == 3
    cameras, found, table = colmap(tmp_path / "model")
    assert cameras == [["1", "PINHOLE", "640", "480", "500", "510", "320", "240"]]  # pixel centres at halves
    assert all(torch.allclose(found[name], pose, atol=1e-9) for name, pose in images)
    assert torch.allclose(table[:, 1:4], points, atol=1e-6) and (table[:, 4:7] / 255 - colours).abs().max() < 0.003


def test_what_cannot_be_written_is_said(tmp_path):
    nothing = torch.zeros(0, 3)
    with pytest.raises(ConfigError, match="wanted a place"):
        write_gltf("/proc/nothing/mesh.glb", nothing, nothing.int(), nothing, nothing)
    with pytest.raises(ShapeError, match="colours"):
        write_colmap(tmp_path, torch.eye(3), (1, 1), [], torch.zeros(2, 3), torch.zeros(3, 3))
    with pytest.raises(ConfigError, match="wanted a folder"):
        write_colmap("/proc/nothing", torch.eye(3), (1, 1), [], nothing, nothing)
    write_points(tmp_path / "points.ply", nothing, nothing, nothing)
    assert [path.name for path in tmp_path.iterdir()] == ["points.ply"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of a depth camera."""
    out = tmp_path_factory.mktemp("run")
    assert cli.main(["reconstruct", "--quiet", "--out", str(out), *SMALL, *MAP]) == 0
    return out


def test_a_run_is_exported(finished, tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("scene.ply", "scene.glb")]
    words = ["--points", str(tmp_path / "points.ply"), "--colmap", str(tmp_path / "colmap"), "--pictures"]
    assert cli.main(["export", str(finished), *files, *words]) == 0
    assert "4 images" in capsys.readouterr().out
    _, images, table = colmap(tmp_path / "colmap")
    times, poses = read_trajectory(finished / "trajectory.tum")
    assert list(images) == [f"{float(t):.6f}.png" for t in times]
    assert all(torch.allclose(a, b, atol=1e-8) for a, b in zip(images.values(), poses))
    source = Synthetic(4, 48, 64, noise="none")
    name = list(images)[2]
    picture = np.asarray(Image.open(tmp_path / "colmap/images" / name))
    wanted = ((source[2].image[0].permute(1, 2, 0) + 1) * 127.5).round().numpy()
    assert np.abs(picture - wanted).max() <= 1
    u, v, z = project(transform(inverse_rigid(images[name]), table[:, 1:4].double()), source.camera_intrinsics.double())
    assert float(((z > 0) & (u > -1) & (u < 64) & (v > -1) & (v < 48)).double().mean()) > 0.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["scene.obj"], "wanted .ply or .glb"),
        ([], "nothing to write"),
        (["a.ply", "--pictures"], "--pictures are those of --colmap DIR"),
    ],
)
def test_what_cannot_be_exported_is_one_line(words, said, finished, capsys):
    assert cli.main(["export", str(finished), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_a_run_is_said(tmp_path, capsys):
    assert cli.main(["export", str(tmp_path), "a.ply"]) == 2
    assert "holds no run.yaml" in capsys.readouterr().err
