"""The report of a live run: one HTML file with everything in it, the film too where it is not too large."""

import base64
from html import escape

import numpy as np
import torch

from streammem import tree
from streammem.policy.tasks.arm import STEP_S

from . import pictures
from .policy_film import Frames
from .policy_run import RUN, LiveRun
from .report import STYLE, table

LARGEST = 12 << 20  # bytes of a film that goes into the report
SMALL = 320  # pixels, width of a key frame
THINGS = {"search": "holes", "imitate": "demonstrations"}
BARS = 48  # of the histogram
WIDE, HIGH, MARGIN = 640, 220, 28


def write_report(run: LiveRun, shown: Frames) -> None:
    """Writes report.html; nothing in it is loaded from elsewhere, but a film too large for it."""
    things = THINGS.get(run.settings.mode, "things")
    title = f"streammem: {run.settings.mode}, {run.settings.items} {things}, a history of {run.settings.history} steps"
    parts = [_summary(run), _film(shown), _answers(run), _latency(run), _observations(run), _keys(shown), _about(run)]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}'
    head += "video, img.film { width: 100%; max-width: 720px; } rect.bar { fill: var(--accent); }</style>"
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    (run.out / "report.html").write_text(f"{head}{meta}<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "</html>\n")


def _summary(run: LiveRun) -> str:
    verdicts = run.world.told.verdicts()
    ended = "complete" if run.world.done else f"ended after {run.world.tick} of {run.world.task.length} ticks"
    right = f"{sum(x.right for x in verdicts)} of {len(verdicts)} questions answered right"
    state = f"a state of {tree.nbytes(run.loop.snapshot()):,} bytes, fixed"
    writes = f"{len(run.writes)} of {run.world.tick} ticks written"
    return f'<p class="soft">{ended}: {right}; {writes}; {state}; {run.world.arm} arm, seed {run.settings.seed}.</p>'


def _film(shown: Frames) -> str:
    if shown.path is None:
        return ""
    kind, source = ("image/gif" if shown.path.suffix == ".gif" else "video/mp4"), shown.path.name
    if shown.path.stat().st_size <= LARGEST:
        source = f"data:{kind};base64,{base64.b64encode(shown.path.read_bytes()).decode()}"
    if kind == "image/gif":
        return f'<h2>Film</h2><img class="film" alt="the episode" src="{source}">'
    return f'<h2>Film</h2><video controls loop muted src="{source}"></video>'


def _answers(run: LiveRun) -> str:
    rows = [
        (f"{i + 1}", x.asked, f"{x.ago_s:.1f} s", x.found, "right" if x.right else "wrong")
        for i, x in enumerate(run.world.told.verdicts())
    ]
    if not rows:
        return "<h2>Questions</h2><p>None was reached.</p>"
    return "<h2>Questions</h2>" + table(("", "asked", "taught before", "", ""), rows)


def _latency(run: LiveRun) -> str:
    report = run.loop.report()
    rows = [
        (name, f"{x.count}", *(f"{value:.3f} ms" for value in x[1:]))
        for name, x in (("tick, from when it was due", report.tick), ("observe", report.observe), ("act", report.act))
    ]
    ticks = ", ".join(f"{count} {name}" for name, count in vars(report.ticks).items())
    pace = "as fast as it goes" if run.settings.fast else "in real time"
    note = f"{pace}, {run.settings.rate_hz:g} Hz; {ticks}; deadline: {run.settings.deadline}."
    heads = ("", "ticks", "p50", "p99", "p99.9", "most")
    durations = 1e3 * run.loop.durations("tick")
    drawing = histogram(durations) if len(durations) else ""
    return f'<h2>Time</h2>{table(heads, rows)}{drawing}<p class="soft">{note}</p>'


def histogram(durations_ms: np.ndarray) -> str:
    """Counts by duration, both on logarithmic scales, as inline SVG."""
    low, high = max(1e-3, durations_ms.min()), max(durations_ms.max(), 2e-3)
    edges = np.geomspace(low, max(high, 1.01 * low), BARS + 1)
    counts, _ = np.histogram(durations_ms.clip(edges[0], edges[-1]), edges)
    top, step = np.log1p(counts.max()), (WIDE - 2 * MARGIN) / BARS
    bars = []
    for i, count in enumerate(counts):
        height = (HIGH - 2 * MARGIN) * np.log1p(count) / top
        x, y = MARGIN + i * step, HIGH - MARGIN - height
        bars.append(f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{step - 1:.1f}" height="{height:.1f}"/>')
    ends = (
        f'<text x="{MARGIN}" y="{HIGH - 8}">{edges[0]:.3g} ms</text>'
        f'<text x="{WIDE - MARGIN}" y="{HIGH - 8}" text-anchor="end">{edges[-1]:.3g} ms</text>'
        f'<text x="{MARGIN}" y="18">ticks by duration, {counts.max()} in the highest bar; both logarithmic</text>'
    )
    return f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="Ticks by duration">{"".join(bars)}{ends}</svg>'


def _observations(run: LiveRun) -> str:
    rows = [(name, f"{count[0]}") for name, count in run.loop.counters().items()]
    return "<h2>Observations</h2>" + table(("", "count"), rows)


def _keys(shown: Frames) -> str:
    cells = []
    for shot, picture in shown.keys:
        source = pictures.inline(torch.from_numpy(picture.copy()) / 255, SMALL)
        words = f"{shot.tick * STEP_S:.1f} s: {escape(shot.shown.words)}"
        cells.append(f'<div><img alt="{words}" src="{source}"><span>{words}</span></div>')
    return f'<h2>Key frames</h2><div class="row">{"".join(cells)}</div>' if cells else ""


def _about(run: LiveRun) -> str:
    text = escape((run.out / RUN).read_text())
    return f"<details><summary>Settings, versions, commit</summary><pre>{text}</pre></details>"
