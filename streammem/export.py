"""The only door to Open3D: surfaces out of blocks, and files out of surfaces."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.shapes import check


def triangles(block: Tensor, value: Tensor, known: Tensor, colour: Tensor, voxel_size_m: float) -> tuple[Tensor, ...]:
    """Marching cubes over blocks: vertices [P, 3], triangles [M, 3], normals [P, 3], colours [P, 3].

    Shapes: block [M, 3] int32; value and known [M, 8, 8, 8, 1], colour [M, 8, 8, 8, 3], with x fastest.
    """
    import open3d as o3d  # a second and a half: only for those who ask for a surface

    core = o3d.core
    device, side = core.Device("CPU:0"), value.shape[1]
    grid = o3d.t.geometry.VoxelBlockGrid(
        ("tsdf", "weight", "color"), (core.float32,) * 3, ((1), (1), (3)), voxel_size_m, side, len(block), device
    )
    table = grid.hashmap()
    slot, _ = table.activate(core.Tensor(block.cpu().int().contiguous().numpy()))
    order = torch.from_numpy(slot.numpy()).long()
    for i, rows in enumerate((value, known, colour * 255)):
        buffer = torch.from_numpy(table.value_tensor(i).numpy())  # shares the grid's memory
        buffer[order] = rows.cpu().float()
    surface = grid.extract_triangle_mesh(weight_threshold=0.5)
    found = (surface.vertex.positions, surface.triangle.indices, surface.vertex.normals, surface.vertex.colors)
    vertices, faces, normals, colours = (torch.from_numpy(part.numpy().copy()) for part in found)
    return vertices, faces.int(), normals, colours.clamp(0, 1)


def write_mesh(path: str | Path, vertices: Tensor, triangles: Tensor, normals: Tensor, colours: Tensor) -> None:
    """Writes a triangle mesh as a binary PLY file, whole or not at all; any viewer reads it.

    Shapes: vertices, normals [P, 3]; triangles [M, 3]; colours [P, 3] in [0, 1].
    Raises: ShapeError for other shapes; ConfigError where the disk refuses.
    Differs: written by hand; Open3D need not be there.
    """
    size = check(triangles, "M 3", "triangles")
    faces = np.empty(size["M"], np.dtype([("count", "u1"), ("corners", "<i4", 3)]))
    faces["count"], faces["corners"] = 3, triangles.cpu().numpy()
    heading = [f"element face {len(faces)}", "property list uchar int vertex_indices"]
    _write_ply(path, _vertices(vertices, normals, colours), heading, [faces])


def write_points(path: str | Path, points: Tensor, normals: Tensor, colours: Tensor) -> None:
    """Writes points as a binary PLY file; shapes and errors as those of `write_mesh`."""
    _write_ply(path, _vertices(points, normals, colours), [], [])


def _vertices(points: Tensor, normals: Tensor, colours: Tensor) -> np.ndarray:
    size = check(points, "P 3", "points")
    check(normals, "P 3", "normals", **size)
    check(colours, "P 3", "colours", **size)
    rows = np.empty(len(points), np.dtype([("at", "<f4", 3), ("normal", "<f4", 3), ("colour", "u1", 3)]))
    rows["at"], rows["normal"] = points.cpu().numpy(), normals.cpu().numpy()
    rows["colour"] = (colours.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
    return rows


def _write_ply(path: str | Path, vertices: np.ndarray, more: list[str], parts: Iterable[np.ndarray]) -> None:
    path = Path(path)
    columns = [f"property float {name}" for name in ("x", "y", "z", "nx", "ny", "nz")]
    columns += [f"property uchar {name}" for name in ("red", "green", "blue")]
    heading = [
        "ply",
        "format binary_little_endian 1.0",
        f"element vertex {len(vertices)}",
        *columns,
        *more,
        "end_header",
    ]
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(("\n".join(heading) + "\n").encode())
            for part in (vertices, *parts):
                file.write(part.tobytes())
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; wanted a place where a file can be written") from error
