"""The curve of a training run as a picture: SVG, written by hand so that no plotting package is needed."""

import math
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, EDGE = 640, 380, 54
LOSS = "#888888"
INKS = ("#1f6fb4", "#c8502d", "#2e8b57", "#8a4fa0", "#b8860b")


def write_curve(
    path: Path, losses: Sequence[tuple[int, float]], scores: Sequence[tuple[int, dict[str, float]]]
) -> None:
    """Scores of every level over steps, on the left axis from 0 to 1; the loss in grey, logarithmic, on the right."""
    last = max((step for step, _ in (*losses, *scores)), default=1)
    body = [*_frame(last)]
    body += _loss(losses, last)
    for row, name in enumerate(scores[-1][1] if scores else ()):
        ink = INKS[row % len(INKS)]
        values = [(step, min(1.0, max(0.0, found[name]))) for step, found in scores]
        body.append(_line([(_x(step, last), _y(value)) for step, value in values], ink, 2))
        body.append(_text(EDGE, 18 + 15 * row, f"{name}: {scores[-1][1][name]:.3f}", ink, "start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>\n"]))


def _frame(last: int) -> list[str]:
    left, right, bottom = EDGE, WIDTH - EDGE, HEIGHT - EDGE
    drawn = [f'<path d="M{left} {_y(1):.1f}V{bottom}H{right}V{_y(1):.1f}" fill="none" stroke="#333"/>']
    drawn += [_text(left - 8, _y(x) + 4, f"{x:g}", anchor="end") for x in (0, 0.25, 0.5, 0.75, 1)]
    drawn += [_text(_x(step, last), bottom + 18, str(step)) for step in (0, last // 2, last)]
    return drawn + [_text(WIDTH / 2, HEIGHT - 14, "steps"), _text(14, _y(1) - 12, "score", anchor="start")]


def _loss(losses: Sequence[tuple[int, float]], last: int) -> list[str]:
    known = [(step, math.log10(max(loss, 1e-9))) for step, loss in losses if math.isfinite(loss)]
    if not known:
        return []
    low, high = math.floor(min(x for _, x in known)), math.ceil(max(x for _, x in known) + 1e-9)
    high = max(high, low + 1)

    def level(x: float) -> float:
        return _y((x - low) / (high - low))

    drawn = [_line([(_x(step, last), level(x)) for step, x in known], LOSS, 1)]
    drawn += [_text(WIDTH - EDGE + 8, level(x) + 4, f"1e{x}", LOSS, "start") for x in range(low, high + 1)]
    return [*drawn, _text(WIDTH - 14, _y(1) - 12, "loss", LOSS, "end")]


def _x(step: float, last: int) -> float:
    return EDGE + (WIDTH - 2 * EDGE) * step / max(1, last)


def _y(score: float) -> float:
    top = EDGE + 45  # room for the names of the levels
    return HEIGHT - EDGE - (HEIGHT - EDGE - top) * score


def _line(points: Sequence[tuple[float, float]], ink: str, width: int) -> str:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{corners}" fill="none" stroke="{ink}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, ink: str = "#333", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" font-size="12" text-anchor="{anchor}">{words}</text>'
