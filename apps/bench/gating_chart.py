"""Errors over the length of the stream, one line a rule, as an SVG written by hand."""

import math
from pathlib import Path

WIDTH, HEIGHT, EDGE = 1080, 430, 56
PANELS = {
    "ate": "trajectory error after alignment [m]",
    "late": "error of the last 16 positions [m]",
    "depth": "relative error of depth",
}
TRAINED = 16  # frames of the longest sequence in training
INKS = {
    "replace": "#222222",
    "confidence": "#c8502d",
    "constant": "#1f6fb4",
    "kalman": "#2e8b57",
    "topk": "#999999",
    "frame": "#8a4fa0",
    "temporal_spatial": "#b8860b",
    "orthogonal": "#d0699a",
    "frozen": "#bbbbbb",
}


def chart(path: Path, title: str, table: dict) -> None:
    """Means and standard errors by rule and length: table[rule][length] has a tensor of errors for each panel."""
    lengths = list(next(iter(table.values())))
    wide = (WIDTH - EDGE) / len(PANELS)
    body = [
        _text(
            WIDTH / 2,
            16,
            f"walk: {title}; bars: standard error over sequences; grey: as long as in training; dashed: starting over",
        )
    ]
    for column, (error, words) in enumerate(PANELS.items()):
        left, right = EDGE + column * wide, column * wide + wide
        means = {rule: [getattr(x, error).mean().item() for x in row.values()] for rule, row in table.items()}
        spans = {
            rule: [getattr(x, error).std().item() / math.sqrt(len(getattr(x, error))) for x in row.values()]
            for rule, row in table.items()
        }
        top = 1.1 * max(max(row) for row in means.values())
        body += _axes(left, right, lengths, top, words)
        for rule, row in means.items():
            at = [(_x(n, lengths, left, right), m) for n, m in zip(lengths, row)]
            points = " ".join(f"{x:.1f},{_y(m, top):.1f}" for x, m in at)
            ink = _ink(rule)
            dash = ' stroke-dasharray="5 3"' if "_reset" in rule else ""
            body.append(f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="1.6"{dash}/>')
            body += [_bar(x, m, span, top, ink) for (x, m), span in zip(at, spans[rule])]
    step = (WIDTH - 2 * EDGE) / len(table)
    body += [_text(EDGE + step * (i + 0.5), HEIGHT - 8, rule, _ink(rule)) for i, rule in enumerate(table)]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    path.write_text("\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>\n"]))


def _ink(rule: str) -> str:
    """Its colour; a rule that starts over has that of the rule alone."""
    return INKS[rule.partition("_reset")[0]]


def _axes(left: float, right: float, lengths: list[int], top: float, words: str) -> list[str]:
    bottom, high, until = HEIGHT - 2 * EDGE + 20, EDGE, _x(TRAINED, lengths, left, right)
    shade = f'<rect x="{left:.1f}" y="{high}" width="{until - left:.1f}" height="{bottom - high}" fill="#eee"/>'
    lines = [shade if lengths[0] <= TRAINED else ""]
    lines.append(f'<path d="M{left:.1f} {high}V{bottom}H{right:.1f}" fill="none" stroke="#333"/>')
    lines += [_text(_x(n, lengths, left, right), bottom + 16, str(n)) for n in lengths]
    lines += [_text(left - 6, _y(top * k / 4, top) + 4, f"{top * k / 4:.2g}", anchor="end") for k in range(5)]
    return [*lines, _text((left + right) / 2, 38, words), _text((left + right) / 2, bottom + 34, "frames")]


def _bar(x: float, mean: float, span: float, top: float, ink: str) -> str:
    a, b = _y(mean - span, top), _y(mean + span, top)
    return f'<line x1="{x:.1f}" y1="{a:.1f}" x2="{x:.1f}" y2="{b:.1f}" stroke="{ink}" stroke-width="1"/>'


def _x(length: int, lengths: list[int], left: float, right: float) -> float:
    first, last = math.log2(lengths[0]), math.log2(max(lengths[-1], lengths[0] + 1))
    return left + 12 + (right - left - 24) * (math.log2(length) - first) / (last - first)


def _y(value: float, top: float) -> float:
    bottom = HEIGHT - 2 * EDGE + 20
    return bottom - (bottom - EDGE) * value / top


def _text(x: float, y: float, words: str, ink: str = "#333", anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" font-size="12" text-anchor="{anchor}">{words}</text>'
