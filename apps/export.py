"""Files for other programs, of a run that `streammem reconstruct` wrote: meshes, points, cameras.

  streammem export RUN scene.ply scene.glb       the mesh; the ending says as what: .ply or .glb (binary glTF)
  streammem export RUN --points points.ply       its vertices, as points
  streammem export RUN --colmap DIR              cameras.txt, images.txt, points3D.txt, as COLMAP writes text
  streammem export RUN --colmap DIR --pictures   and the pictures of the images, read from the source again

The trajectory is in RUN already, in TUM's format.
"""

import argparse
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from streammem import build, export
from streammem.errors import ConfigError
from streammem.geometry import motion_from_quaternion
from streammem.mapping import Mapper
from streammem.settings import ReconstructSettings

from . import cli, pictures, views
from .arguments import RUN, settings_of
from .run import STATE, TRAJECTORY, VIEWS

MESHES = {".ply": export.write_mesh, ".glb": export.write_gltf}
IMAGES = "images"
LATEST = 1000  # views whose intrinsics are asked


def main(argv: list[str]) -> int:
    """Writes the files that are asked for; returns 0."""
    said = _parser().parse_args(argv)
    for path in said.meshes:
        if path.suffix not in MESHES:
            raise ConfigError(f"{path}: its ending says nothing that a mesh is written as; wanted .ply or .glb")
    if said.pictures and said.colmap is None:
        raise ConfigError("--pictures are those of --colmap DIR; wanted both")
    if not (said.meshes or said.points or said.colmap):
        raise ConfigError("nothing to write; wanted a mesh file, --points FILE or --colmap DIR")
    settings = settings_of(said.run)
    mapper, _ = Mapper.load(said.run / STATE, settings.map)
    for path in said.meshes:
        mesh = mapper.mesh()
        MESHES[path.suffix](path, mesh.vertices, mesh.triangles, mesh.normals, mesh.colours)
        print(f"{path}: {len(mesh.triangles)} triangles")
    found = mapper.points() if said.points or said.colmap else None
    if said.points:
        export.write_points(said.points, found.points, found.normals, found.colours)
        print(f"{said.points}: {len(found.points)} points")
    if said.colmap:
        K, size = _camera(said.run, settings)
        count = export.write_colmap(said.colmap, K, size, _images(said.run), found.points, found.colours)
        written = _pictures(said.run, settings, said.colmap / IMAGES) if said.pictures else 0
        print(f"{said.colmap}: {count} images, {len(found.points)} points, {written} pictures")
    return 0


def _camera(run: Path, settings: ReconstructSettings) -> tuple[Tensor, tuple[int, int]]:
    """K [3, 3] of the camera's pictures, the median over the latest views where a network found it; and height, width.

    Raises: ConfigError where nobody knows it.
    """
    if (run / VIEWS).is_file():
        with open(run / VIEWS) as file:
            next(file)
            rows = [[float(x) for x in line.split("\t")] for line in deque(file, LATEST)]
        if rows:
            columns = dict(zip(views.COLUMNS, torch.tensor(rows, dtype=torch.float64).unbind(1)))
            fx, fy, cx, cy = (columns[name].median() for name in ("fx", "fy", "cx", "cy"))
            K = torch.eye(3, dtype=torch.float64)
            K[0, 0], K[1, 1], K[0, 2], K[1, 2] = fx, fy, cx, cy
            return K, (int(columns["height"][0]), int(columns["width"][0]))
    source = build.source(settings)
    if source.camera_intrinsics is None:
        raise ConfigError(f"{source.name} has no intrinsics; wanted source.intrinsics in {run / RUN}")
    return source.camera_intrinsics, tuple(source[0].image.shape[-2:])


def _images(run: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and pose of each image, one by one; a name is the stamp."""
    with open(run / TRAJECTORY) as file:
        for line in file:
            if not line.startswith("#"):
                stamp, *numbers = line.split()
                values = torch.tensor([float(x) for x in numbers], dtype=torch.float64)
                yield f"{stamp}.png", motion_from_quaternion(values[:3], values[3:])


def _pictures(run: Path, settings: ReconstructSettings, folder: Path) -> int:
    """Writes the source's pictures whose poses are known; how many."""
    wanted, count = {name for name, _ in _images(run)}, 0
    folder.mkdir(parents=True, exist_ok=True)
    for frame in build.source(settings):
        name = f"{float(frame.time_s[0]):.6f}.png"
        if name in wanted:
            rgb = (pictures.colours(frame.image[0].cpu()) * 255).round().to(torch.uint8)
            Image.fromarray(rgb.numpy()).save(folder / name)
            count += 1
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="streammem export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("meshes", type=Path, nargs="*", help="mesh files to write: .ply, .glb")
    parser.add_argument("--points", type=Path, metavar="FILE", help="a .ply file of points")
    parser.add_argument("--colmap", type=Path, metavar="DIR", help="a folder for a COLMAP model in text")
    parser.add_argument("--pictures", action="store_true", help="also write the pictures of the COLMAP model")
    return parser


if __name__ == "__main__":
    sys.exit(cli.main(["export", *sys.argv[1:]]))
