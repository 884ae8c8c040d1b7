"""The report of a run: one HTML file with everything in it, and one picture."""

from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

from streammem import config
from streammem.mapping import Mapper, Mesh
from streammem.metrics import DepthError
from streammem.settings import ReconstructSettings
from streammem.sources import Source

from . import pictures, plot
from .journal import Journal
from .score import Look, Paths, Score, aligned

SMALL = 320  # pixels, width of a picture in the report

STYLE = """
:root { color-scheme: light dark; --ink: #1d2230; --soft: #667; --line: #d9dce3; --page: #fff; --accent: #b3432b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ee; --soft: #9aa1b0; --line: #333a48; --page: #14171d; --accent: #f08a5d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1080px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { max-width: 75ch; } .soft, figcaption, th { color: var(--soft); font-weight: normal; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.4rem .2rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; }
figure { margin: 1rem 0; }
.row { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 6px; }
.row img { width: 100%; border-radius: 3px; display: block; } .row span { font-size: .8rem; color: var(--soft); }
svg { width: 100%; max-width: 720px; height: auto; border: 1px solid var(--line); border-radius: 3px; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } .found { stroke: var(--accent); }
.true { stroke: var(--soft); stroke-dasharray: 5 4; } path.ruler { stroke: var(--ink); stroke-width: 2; }
text { font: 12px system-ui, sans-serif; fill: var(--ink); } .mark { fill: var(--page); stroke: var(--accent); }
.number { text-anchor: middle; } pre { overflow-x: auto; font-size: .85rem; }
"""


class Finished(NamedTuple):
    """A run that came to its end, or was ended."""

    settings: ReconstructSettings
    source: Source
    mapper: Mapper
    journal: Journal
    score: Score
    shown: list[Look]
    paths: Paths
    mesh: Mesh | None
    about: dict


def write_report(path: Path, run: Finished) -> None:
    """Writes the file; nothing in it is loaded from elsewhere."""
    title = f"streammem: {escape(run.source.name)}"
    parts = [_summary(run), _views(run), _trajectory(run), _errors(run), _frames(run), _times(run), _about(run)]
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    path.write_text(f"{head}{meta}<h1>{title}</h1>\n" + "\n".join(part for part in parts if part) + "</html>\n")


def write_preview(path: Path, look: Look, settings: ReconstructSettings) -> None:
    """Writes one look as a PNG: image and depth of the camera on the left, then the map's, then shape and doubt."""
    camera, colour, shade, depth, doubt, _ = (picture for _, picture in panels(look, settings))
    seen = pictures.depths(look.depth, settings.map.near_m, settings.map.max_depth_m)
    rows = [pictures.beside([camera, colour, shade]), pictures.beside([seen, depth, doubt])]
    path.write_bytes(pictures.encoded(pictures.below(rows), "PNG", 1280))


def panels(look: Look, settings: ReconstructSettings) -> list[tuple[str, torch.Tensor]]:
    """Named pictures of a look, [h, w, 3] each."""
    view, near_m, far_m = look.view, settings.map.near_m, settings.map.max_depth_m
    both = (view.depth > 0) & (look.depth > near_m) & (look.depth < far_m)
    return [
        ("camera", pictures.colours(look.image)),
        ("map: colour", pictures.known(view.colour, view.depth)),
        ("map: shape", pictures.shaded(view.normal, view.depth, look.camera.world_from_camera)),
        ("map: depth", pictures.depths(view.depth, near_m, far_m)),
        ("map: standard deviation (red: 1 cm)", pictures.doubts(view.variance, view.depth)),
        ("depth, map - camera (red: 5 cm)", pictures.errors(view.depth - look.depth, both)),
    ]


def _summary(run: Finished) -> str:
    about, counts = run.about, run.journal.statuses()
    live = not run.source.again
    ended = "live" if live else "ended early" if run.journal.frames < len(run.source) else "complete"
    rate = run.journal.stages.get("track and write it")
    pace = f", {rate.count / rate.total_s:.1f} frames/s learnt" if rate else ""
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common()) or "none"
    state = f"state {about['state_bytes'] / 2**20:.0f} MiB, fixed"
    poses = "poses given by the source" if run.settings.poses == "given" else "poses found against the map"
    poses = "depth and poses by a network, from colour alone" if run.settings.colour_only else poses
    frames = f"{run.journal.frames}{'' if live else f' of {len(run.source)}'} frames"
    return f'<p class="soft">{frames}, {ended}: {told}{pace}; {state}; {poses}.</p>'


def _views(run: Finished) -> str:
    if not run.shown:
        return "<h2>Views</h2><p>No frame could be learnt; the table of frames says why.</p>"
    figures = []
    for number, look in enumerate(run.shown, 1):
        cells = "".join(
            f'<div><img alt="{name}" src="{pictures.inline(picture, SMALL)}"><span>{name}</span></div>'
            for name, picture in panels(look, run.settings)
        )
        error = look.measured
        caption = (
            f"{number}: frame {look.frame}. Depth, map against camera: mean {error.mean_mm:.1f} mm, median "
            f"{error.median_mm:.1f} mm, {error.within_2cm:.0%} within 2 cm, {error.coverage:.1%} covered."
        )
        figures.append(f'<figure><div class="row">{cells}</div><figcaption>{caption}</figcaption></figure>')
    return "<h2>Views of the final map, from where frames were taken</h2>" + "".join(figures)


def _trajectory(run: Finished) -> str:
    if not len(run.paths.found):
        return ""
    marks = [(i, look.camera.world_from_camera[:3, 3].double()) for i, look in enumerate(run.shown, 1)]
    true = None if run.paths.true is None else run.paths.true[:, :3, 3]
    if true is not None:
        marks = []  # they are in the map's world, the line is moved onto the true one
    words = "solid: found, aligned; dashed: true" if true is not None else "numbers: the views above"
    return f'<h2>Trajectory</h2>{plot.trajectory(aligned(run.paths), true, marks)}<p class="soft">{words}</p>'


def _errors(run: Finished) -> str:
    rows, score = [], run.score
    for name, error in _depths(run.settings, score):
        if error is not None:
            shares = f"{error.within_2cm:.1%} within 2 cm, {error.coverage:.1%} covered"
            rows.append((name, f"{error.mean_mm:.1f} mm", f"{error.median_mm:.1f} mm", shares))
    if score.surface is not None:
        error = score.surface
        name, rest = "mesh, to the true surface", f"95 % within {error.p95_mm:.1f} mm"
        rows.append((name, f"{error.mean_mm:.1f} mm", f"{error.median_mm:.1f} mm", rest))
    if score.trajectory is not None:
        error = score.trajectory
        rest = f"rmse {error.rmse_m * 1000:.1f} mm, at most {error.max_m * 1000:.1f} mm, {error.poses} poses"
        how = "alignment with a scale" if run.paths.scaled else "rigid alignment"
        name = f"trajectory, after {how} (ATE)"
        rows.append((name, f"{error.mean_m * 1000:.1f} mm", f"{error.median_m * 1000:.1f} mm", rest))
    note = "Depth errors are of the views above: frames that the map has learnt from, from 0.1 m to its range."
    return "<h2>Errors</h2>" + table(("", "mean", "median", ""), rows) + f'<p class="soft">{note}</p>' if rows else ""


def _depths(settings: ReconstructSettings, score: Score) -> tuple[tuple[str, DepthError | None], ...]:
    """Depth errors by what they are of."""
    if settings.colour_only:
        seen, true = "depth, against what the network sees now", "depth, against the truth, medians made equal"
        return (seen, score.measured), (true, score.exact)
    return ("depth, against the camera", score.measured), ("depth, against the truth", score.exact)


def _frames(run: Finished) -> str:
    rows = [(*name.split(": ", 1), f"{count}") for name, count in run.journal.counts.most_common()]
    counters = [("the source", name, f"{count}") for name, count in sorted(run.source.counters.items())]
    health = [("the map", name.replace("_", " "), f"{count}") for name, count in run.mapper.health().items()]
    return "<h2>Frames</h2>" + table(("", "", "count"), [*rows, *counters, *health])


def _times(run: Finished) -> str:
    rows = [
        (
            name,
            f"{spread.count}",
            *(f"{1000 * spread.quantile(q):.1f} ms" for q in (0.5, 0.99)),
            f"{spread.total_s:.1f} s",
        )
        for name, spread in run.journal.stages.items()
    ]
    about = run.about
    peak = f"peak memory of the process {about['peak_resident_bytes'] / 2**20:.0f} MiB"
    note = f"{escape(about['machine'])}; {about['threads']} threads; {peak}."
    return "<h2>Times</h2>" + table(("", "times", "median", "p99", "all"), rows) + f'<p class="soft">{note}</p>'


def _about(run: Finished) -> str:
    text = escape(config.dump({"settings": run.settings, "run": run.about}))
    return f"<details><summary>Settings, versions, commit</summary><pre>{text}</pre></details>"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Cells of numbers are set to the right."""
    if not rows:
        return ""
    right = [any(row[i][:1].isdigit() for row in rows) and len(rows[0][i]) < 24 for i in range(len(heads))]
    kinds = [' class="number"' if numeric else "" for numeric in right]
    top = "".join(f"<th{kind}>{head}</th>" for kind, head in zip(kinds, heads))
    body = ["".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row)) for row in rows]
    return f'<div class="wide"><table><tr>{top}</tr>{"".join(f"<tr>{row}</tr>" for row in body)}</table></div>'
