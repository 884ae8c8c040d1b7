"""The trade-off curve as an SVG, written by hand so that no plotting package is needed."""

import math
from collections.abc import Sequence
from pathlib import Path

from .protocols import Score

WIDTH, HEIGHT, EDGE = 640, 400, 60
INK = {"hindsight": "#1f6fb4", "streaming": "#c8502d"}


def curve(path: Path, labels: Sequence[str], found: dict[str, list[Score]], peers: dict[str, Score]) -> None:
    """Mean error of each protocol over the retention, the last label apart from the rest; Open3D's as dashed lines."""
    top = 1.1 * max(x.mean_mm for scores in (*found.values(), peers.values()) for x in scores)
    body = [*_axes(labels, top)]
    for row, (name, scores) in enumerate(found.items()):
        points = " ".join(f"{_x(i, labels):.1f},{_y(s.mean_mm, top):.1f}" for i, s in enumerate(scores[:-1]))
        level, ink = _y(peers[name].mean_mm, top), INK[name]
        body.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2"/>')
        dots = (f"{_x(i, labels):.1f}" for i in range(len(scores)))
        body += [f'<circle cx="{x}" cy="{_y(s.mean_mm, top):.1f}" r="3" fill="{ink}"/>' for x, s in zip(dots, scores)]
        body.append(_line(EDGE, level, WIDTH - EDGE, level, ink, "6 4"))
        label = f"{name}: ours (solid), Open3D (dashed)"
        body.append(_text(EDGE + 10, 20 + 18 * row, label, ink, "start"))
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>\n"]))


def _axes(labels: Sequence[str], top: float) -> list[str]:
    lines = [
        _line(EDGE, HEIGHT - EDGE, WIDTH - EDGE, HEIGHT - EDGE, "#333"),
        _line(EDGE, EDGE, EDGE, HEIGHT - EDGE, "#333"),
        _text(WIDTH / 2, HEIGHT - 15, "frames that a single average keeps; default: a slow and a fast value"),
        f'<g transform="rotate(-90 18 {HEIGHT / 2})">{_text(18, HEIGHT / 2, "mean depth error [mm]")}</g>',
    ]
    lines += [_text(_x(i, labels), HEIGHT - EDGE + 18, label) for i, label in enumerate(labels)]
    step = 10 ** math.floor(math.log10(top)) / 2
    levels = [k * step for k in range(int(top / step) + 1)]
    return lines + [_text(EDGE - 8, _y(x, top) + 4, f"{x:g}", anchor="end") for x in levels]


def _x(index: int, labels: Sequence[str]) -> float:
    return EDGE + 20 + (WIDTH - 2 * EDGE - 40) * index / max(1, len(labels) - 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * value / top


def _line(x1: float, y1: float, x2: float, y2: float, ink: str, dash: str = "none") -> str:
    return f'<line x1="{x1}" y1="{y1:.1f}" x2="{x2}" y2="{y2:.1f}" stroke="{ink}" stroke-dasharray="{dash}"/>'


def _text(x: float, y: float, words: str, ink: str = "#333", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" font-size="12" text-anchor="{anchor}">{words}</text>'
