"""The only door to Open3D: surfaces out of blocks, and files out of surfaces."""

import torch
from torch import Tensor


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
