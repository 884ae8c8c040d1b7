"""A trajectory as a drawing: inline SVG that takes its colours from the page."""

import torch
from torch import Tensor

WIDTH, HEIGHT, MARGIN = 640, 360, 24
MOST_POINTS = 1500  # of a line; more than the drawing can show


def trajectory(found: Tensor, true: Tensor | None, marks: list[tuple[int, Tensor]]) -> str:
    """Camera centres [T, 3], the true ones dashed, and numbered marks, seen along the direction they vary least in."""
    found = found[:: max(1, len(found) // MOST_POINTS)]
    if true is not None:
        true = true[true.isfinite().all(-1)]
        true = true[:: max(1, len(true) // MOST_POINTS)]
    everything = torch.cat([found, *([] if true is None else [true]), *(at[None] for _, at in marks)])
    flat = _flattened(everything)
    scale, origin = _fit(flat(everything))
    lines = [] if true is None or not len(true) else [_line(flat(true), scale, origin, "true")]
    lines += [_line(flat(found), scale, origin, "found")]
    for number, at in marks:
        (x, y) = _pixels(flat(at[None]), scale, origin)[0]
        lines.append(f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
        lines.append(f'<text class="number" x="{x:.1f}" y="{y + 4:.1f}">{number}</text>')
    lines.append(_ruler(scale))
    label = "Camera trajectory"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(lines)}</svg>'


def _flattened(points: Tensor):
    """A function that drops the direction [3] in which points [P, 3] vary least."""
    middle = points.mean(0)
    _, axes = torch.linalg.eigh((points - middle).mT @ (points - middle))
    return lambda some: (some - middle) @ axes[:, [2, 1]]


def _fit(points: Tensor) -> tuple[float, Tensor]:
    """Pixels a metre, and the point in the middle of the drawing."""
    low, high = points.amin(0), points.amax(0)
    extent = (high - low).clamp(min=0.05)
    scale = min((WIDTH - 2 * MARGIN) / float(extent[0]), (HEIGHT - 3 * MARGIN) / float(extent[1]))
    return scale, (low + high) / 2


def _pixels(points: Tensor, scale: float, origin: Tensor) -> list[list[float]]:
    middle = points.new_tensor([WIDTH / 2, (HEIGHT - MARGIN) / 2])
    return ((points - origin) * scale + middle).tolist()


def _line(points: Tensor, scale: float, origin: Tensor, name: str) -> str:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in _pixels(points, scale, origin))
    return f'<polyline class="{name}" points="{corners}"/>'


def _ruler(scale: float) -> str:
    metres = next((m for m in (50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02) if m * scale <= WIDTH / 3), 0.01)
    x, y = MARGIN, HEIGHT - MARGIN / 2
    bar = f'<path class="ruler" d="M{x} {y}h{metres * scale:.1f}"/>'
    return f'{bar}<text class="ruler" x="{x + metres * scale + 8:.1f}" y="{y + 4}">{metres:g} m</text>'
