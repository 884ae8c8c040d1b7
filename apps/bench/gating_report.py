"""The bench of update rules as one HTML file: tables with spread, and the picture."""

import html
from pathlib import Path

from .gating_chart import TRAINED

ERRORS = {
    "ate": "Trajectory error (rmse after a similarity) [m]",
    "late": "Error of the last 16 positions, no alignment [m]",
    "turn": "Error of the last 16 orientations [rad]",
    "depth": "Relative error of depth",
}
STYLE = (
    "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}"
)


def write_report(path: Path, charts: dict[str, Path], tables: dict[str, dict]) -> None:
    """Tables of tables[walk][rule][length], whose fields are tensors of an error a sequence, each under its picture."""
    body = [
        "<h1>Does gating help?</h1>",
        f"<p>The network was trained on at most {TRAINED} frames. Mean &plusmn; standard deviation over sequences. "
        "still: a camera that never moves; frozen: the state of the first view for ever.</p>",
    ]
    for walk, table in tables.items():
        body += [f"<h2>Walk: {html.escape(walk)}</h2>", charts[walk].read_text()]
        body += [_table(table, error, words) for error, words in ERRORS.items()]
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><title>Gating</title><style>{STYLE}</style>' + "\n".join(body)
    )


def _table(table: dict, error: str, words: str) -> str:
    lengths = list(next(iter(table.values())))
    head = "".join(f"<th>{length}</th>" for length in lengths)
    rows = []
    for rule, by_length in table.items():
        found = [getattr(score, error) for score in by_length.values()]
        if not any(x.isnan().any() for x in found):
            cells = "".join(f"<td>{x.mean():.3f} &plusmn; {x.std():.3f}</td>" for x in found)
            rows.append(f"<tr><td>{html.escape(rule)}</td>{cells}</tr>")
    return f"<h3>{html.escape(words)}</h3><table><tr><th>frames</th>{head}</tr>{''.join(rows)}</table>"
