"""Files of surfaces: any reader finds in them what was given, and half a file is never there."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

from streammem.errors import ConfigError, ShapeError
from streammem.export import write_mesh, write_points


def surface(points=5, faces=3):
    generator = torch.Generator().manual_seed(1)
    vertices = torch.randn(points, 3, generator=generator)
    triangles = torch.randint(0, points, (faces, 3), generator=generator, dtype=torch.int32)
    normals = torch.nn.functional.normalize(torch.randn(points, 3, generator=generator), dim=-1)
    return vertices, triangles, normals, torch.rand(points, 3, generator=generator)


def test_open3d_reads_the_mesh_that_was_written(tmp_path):
    open3d = pytest.importorskip("open3d")
    vertices, triangles, normals, colours = surface()
    write_mesh(tmp_path / "mesh.ply", vertices, triangles, normals, colours)
    found = open3d.io.read_triangle_mesh(str(tmp_path / "mesh.ply"))
    assert np.array_equal(np.asarray(found.vertices, np.float32), vertices.numpy())
    assert np.array_equal(np.asarray(found.triangles), triangles.numpy())
    assert np.array_equal(np.asarray(found.vertex_normals, np.float32), normals.numpy())
    assert np.abs(np.asarray(found.vertex_colors) - colours.numpy()).max() <= 0.5 / 255 + 1e-6


def test_open3d_reads_the_points_that_were_written(tmp_path):
    open3d = pytest.importorskip("open3d")
    points, _, normals, colours = surface(points=7)
    write_points(tmp_path / "points.ply", points, normals, colours)
    found = open3d.io.read_point_cloud(str(tmp_path / "points.ply"))
    assert np.array_equal(np.asarray(found.points, np.float32), points.numpy())
    assert np.array_equal(np.asarray(found.normals, np.float32), normals.numpy())


def test_a_mesh_of_nothing_is_a_file(tmp_path):
    nothing = torch.zeros(0, 3)
    write_mesh(tmp_path / "mesh.ply", nothing, nothing.int(), nothing, nothing)
    assert b"element vertex 0\n" in (tmp_path / "mesh.ply").read_bytes()


def test_wrong_shapes_are_refused_and_the_old_file_stays(tmp_path):
    path = tmp_path / "mesh.ply"
    path.write_text("before")
    vertices, triangles, normals, colours = surface()
    with pytest.raises(ShapeError, match=r"normals is \[4, 3\]; wanted \[P, 3\] with P = 5"):
        write_mesh(path, vertices, triangles, normals[:4], colours)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["mesh.ply"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory; wanted a place"):
        write_points(tmp_path / "not here" / "points.ply", *(surface()[i] for i in (0, 2, 3)))


def test_open3d_is_imported_only_for_a_surface():
    code = "import sys, streammem.export, streammem.mapping, apps.reconstruct; sys.exit('open3d' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
