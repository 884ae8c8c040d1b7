"""The only door to Open3D: surfaces out of blocks, and files out of surfaces and cameras."""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from streammem.errors import ConfigError
from streammem.geometry import inverse_rigid, quaternion_from_motion
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
    with _whole(path) as file:
        file.write(("\n".join(heading) + "\n").encode())
        for part in (vertices, *parts):
            file.write(part.tobytes())


def write_gltf(path: str | Path, vertices: Tensor, triangles: Tensor, normals: Tensor, colours: Tensor) -> None:
    """Writes a triangle mesh as one binary glTF 2.0 file (.glb); axes stay as they are.

    Shapes and errors as those of `write_mesh`.
    Source: Khronos Group, glTF 2.0 specification, sections 3.6, 3.7 and 4.4.
    Differs: written by hand; what Open3D 0.19 writes of a small mesh it cannot read itself.
    """
    size = check(triangles, "M 3", "triangles")
    rows = _vertices(vertices, normals, colours)
    alpha = np.full((len(rows), 1), 255, np.uint8)
    parts = [  # bytes, component type, shape, whether normalised, buffer target
        (triangles.cpu().numpy().astype("<u4"), 5125, "SCALAR", False, 34963),
        (rows["at"], 5126, "VEC3", False, 34962),
        (rows["normal"], 5126, "VEC3", False, 34962),
        (np.concatenate([rows["colour"], alpha], 1), 5121, "VEC4", True, 34962),
    ]
    views, accessors, at = [], [], 0
    for i, (part, kind, shape, normalised, target) in enumerate(parts):
        views.append({"buffer": 0, "byteOffset": at, "byteLength": part.nbytes, "target": target})
        count = 3 * size["M"] if i == 0 else len(rows)
        accessors.append({"bufferView": i, "componentType": kind, "count": count, "type": shape})
        accessors[-1] |= {"normalized": True} if normalised else {}
        at += part.nbytes
    if len(rows):
        accessors[1] |= {"min": rows["at"].min(0).tolist(), "max": rows["at"].max(0).tolist()}
    primitive = {"attributes": {"POSITION": 1, "NORMAL": 2, "COLOR_0": 3}, "indices": 0}
    scene = {
        "asset": {"version": "2.0", "generator": "streammem"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "buffers": [{"byteLength": at}],
        "bufferViews": views,
        "accessors": accessors,
    }
    if not size["M"]:  # glTF has no empty buffers: a scene with nothing in it
        scene = {"asset": scene["asset"], "scene": 0, "scenes": [{}]}
    text = json.dumps(scene).encode()
    text += b" " * (-len(text) % 4)
    length = 12 + 8 + len(text) + (8 + at if size["M"] else 0)
    with _whole(path) as file:
        file.write(struct.pack("<4sII", b"glTF", 2, length) + struct.pack("<I4s", len(text), b"JSON") + text)
        if size["M"]:
            file.write(struct.pack("<I4s", at, b"BIN\0"))
            for part, *_ in parts:
                file.write(np.ascontiguousarray(part).tobytes())


def write_colmap(
    folder: str | Path,
    intrinsics: Tensor,
    size: tuple[int, int],
    images: Iterable[tuple[str, Tensor]],
    points: Tensor,
    colours: Tensor,
) -> int:
    """Writes a COLMAP model as text, one camera and its images; returns how many images.

    intrinsics: K [3, 3], pixel centres at integers (COLMAP: at halves, so that c is ours + 1/2). size: height, width.
    images: name and world_from_camera [4, 4] of each, taken one by one. points [P, 3], colours [P, 3] in [0, 1].

    Source: COLMAP documentation, "Output Format", text.
    Differs: images have no keypoints and points no tracks, which readers of poses and points do not ask for.
    """
    sized = check(points, "P 3", "points")
    check(colours, "P 3", "colours", **sized)
    folder = _folder(folder)
    K, (height, width) = intrinsics.double().cpu(), size
    numbers = [float(x) for x in (K[0, 0], K[1, 1], K[0, 2] + 0.5, K[1, 2] + 0.5)]
    with _whole(folder / "cameras.txt") as file:
        told = " ".join(f"{number:.9g}" for number in numbers)
        file.write(f"# CAMERA_ID MODEL WIDTH HEIGHT fx fy cx cy\n1 PINHOLE {width} {height} {told}\n".encode())
    count = 0
    with _whole(folder / "images.txt") as file:
        file.write(b"# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME; then an empty line of keypoints\n")
        for name, world_from_camera in images:
            count += 1
            translation, xyzw = quaternion_from_motion(inverse_rigid(world_from_camera.double().cpu()))
            told = " ".join(f"{x:.12g}" for x in (*xyzw.roll(1).tolist(), *translation.tolist()))
            file.write(f"{count} {told} 1 {name}\n\n".encode())
    with _whole(folder / "points3D.txt") as file:
        file.write(b"# POINT3D_ID X Y Z R G B ERROR\n")
        bytes_ = (colours.clamp(0, 1) * 255).round().int().cpu().tolist()
        for i, (point, colour) in enumerate(zip(points.cpu().tolist(), bytes_), 1):
            file.write(f"{i} {' '.join(f'{x:.9g}' for x in point)} {' '.join(map(str, colour))} 0\n".encode())
    return count


def _folder(path: str | Path) -> Path:
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; wanted a folder that can be written to") from error
    return path


@contextmanager
def _whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file that is there when everything in it is, and not before.

    Raises: ConfigError where the disk refuses.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; wanted a place where a file can be written") from error
