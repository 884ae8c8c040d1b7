"""What the network says of each view: a line a view, as a table, and the view itself as a file where it is wanted."""

from pathlib import Path

import numpy as np

from streammem.recon.reconstructor import Seen

COLUMNS = (
    "time_s", "fx", "fy", "cx", "cy", "scale", "gate_mean", "gate_std", "gate_min", "gate_max",
    "confidence_median", "written", "resets", "unaligned", "width", "height",
)  # fmt: skip
HEADING = "\t".join(COLUMNS) + "\n"


def line(seen: Seen, size: tuple[int, int]) -> str:
    """Time; intrinsics of the camera's own picture, pixels; the chunk's scale; gate over tokens; confidence, and the
    share of pixels written; resets so far, and those whose chunks could not be aligned; the camera's picture, whose
    height and width are `size`."""
    K, gate = seen.intrinsics[0].cpu(), seen.gate[0].float().cpu()
    numbers = [
        *(float(K[i, j]) for i, j in ((0, 0), (1, 1), (0, 2), (1, 2))),
        float(seen.scale[0]),
        *(float(x) for x in (gate.mean(), gate.std(correction=0), gate.min(), gate.max())),
        float(seen.confidence[0].median()),
        float((seen.frame.depth[0] > 0).float().mean()),
    ]
    counts = f"{int(seen.resets[0])}\t{int(seen.unaligned[0])}\t{size[1]}\t{size[0]}"
    told = "\t".join(f"{number:.6g}" for number in numbers)
    return f"{float(seen.frame.time_s[0]):.6f}\t{told}\t{counts}\n"


def save(folder: Path, number: int, seen: Seen) -> None:
    """Writes one view as a file of numpy's: points [h, w, 3] in the world and confidence [h, w], float16; the depth
    [h, w] that the map was given; image [h, w, 3] uint8; world_from_camera [4, 4]; intrinsics [3, 3] of this picture.
    """
    folder.mkdir(exist_ok=True)
    frame = seen.frame
    rgb = ((frame.image[0].permute(1, 2, 0) + 1) * 127.5).round().clamp(0, 255)
    np.savez_compressed(
        folder / f"{number:06d}.npz",
        points=seen.points[0].half().cpu().numpy(),
        confidence=seen.confidence[0].half().cpu().numpy(),
        depth=frame.depth[0].half().cpu().numpy(),
        image=rgb.cpu().numpy().astype(np.uint8),
        world_from_camera=frame.world_from_camera[0].cpu().numpy(),
        intrinsics=frame.intrinsics[0].cpu().numpy(),
    )
