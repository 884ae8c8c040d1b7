"""Learns a scene from a stream of depth frames, and writes what was learnt: mesh, trajectory, state, report.

A stream of colour alone (video:FILE, webcam, synthetic:rgb, or any with --weights) is seen through a network first.

exit status:
  0           the stream was learnt to its end
  1           the stream came to its end, but no frame of it could be learnt; the report says why
  2           the settings, the source or the state file cannot be used
  130, 143    ended early by Ctrl-C or SIGTERM, with everything written; a second one ends at once
"""

import signal
import sys
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from tqdm import tqdm

from streammem import config
from streammem.errors import CheckpointError, StreamMemError
from streammem.export import write_mesh
from streammem.mapping.readout import GIVEN
from streammem.sources import FirstFramesCheck, Prefetch, Source, Synthetic
from streammem.types import Frame

from . import cli, views
from .arguments import RUN, wish
from .bench.figure import commit, machine, resident_bytes, versions
from .journal import tum_line
from .report import Finished, write_preview, write_report
from .run import TRAJECTORY, TRUTH, VIEWS, Run, opened
from .score import looks, paths, score
from .stop import Stop

SEEN, FOLDER = "pose from the network", "views"
MESH, REPORT, PREVIEW = "mesh.ply", "report.html", "preview.png"
CHECKS = {"strict": "raise", "warn": "warn", "silent": "off"}


def main(argv: list[str]) -> int:
    """Reconstructs; returns the exit status that the module's first lines state."""
    wanted = wish(argv, __doc__)
    stop = Stop()
    try:
        with stop:
            run = opened(wanted, _silent if wanted.quiet else _aloud)
            about = _about(argv, run)
            run.say(f"{run.source.name}: {_length(run.source)}, from {run.journal.frames} on, into {run.out}")
            _learn(run, stop, wanted.quiet)
            if stop.signal:
                run.say(f"{stop.signal.name} after {run.journal.frames} frames: writing everything")
            _finish(run, about)
    except (BrokenPipeError, StreamMemError):
        raise
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}; the last saved state is whole") from error
    except KeyboardInterrupt:
        print("streammem reconstruct: ended at once; the last saved state is whole", file=sys.stderr)
        return 128 + signal.SIGINT
    if stop.signal:
        return 128 + stop.signal
    return 0 if run.mapper.health()["written"] else 1


def _learn(run: Run, stop: Stop, quiet: bool) -> None:
    """Frame by frame, to the end of the stream or until somebody ends it; the state is saved at the end."""
    every, journal = run.settings.autosave_frames, run.journal
    pace = 0.1 if sys.stderr.isatty() else 10.0  # seconds between two looks of the bar; a log file wants few
    with tqdm(
        total=len(run.source) if run.source.again else None,
        initial=journal.frames,
        unit="frame",
        disable=quiet,
        smoothing=0.1,
        mininterval=pace,
    ) as bar:
        frames = _checked(run)
        while stop.signal is None:
            with journal.timed("read a frame"):
                frame = next(frames, None)
            if frame is None:
                break
            _step(run, frame)
            if every and journal.frames % every == 0:
                run.save()
            bar.set_postfix_str(_words(run), refresh=False)
            bar.update()
    run.save()


def _checked(run: Run) -> Iterator[Frame]:
    """The frames that are still to come, after a look at the first of them."""
    if run.journal.frames == len(run.source):
        return iter(())
    coming = run.source.since(run.journal.frames)
    if not run.source.again:
        coming = Prefetch(coming, policy="drop_oldest")  # a live camera does not wait
    check = FirstFramesCheck(coming, check=CHECKS[run.settings.check])
    frames = iter(check)
    for finding in check.findings:
        run.say(f"first frames, {finding.severity}: {finding.message}")
    return frames


def _step(run: Run, frame: Frame) -> None:
    """Learns one frame and writes down where it was seen from."""
    true = _true_pose(run, frame)
    if run.settings.poses == "find":
        frame = frame._replace(world_from_camera=None)
    if run.eye is not None:
        with run.journal.timed("see it through the network"):
            seen = run.eye.step(frame)
        frame = seen.frame
        run.lines[VIEWS].write(views.line(seen, run.eye.fit.input_size))
        if run.settings.recon.save_views:
            views.save(run.out / FOLDER, run.journal.frames, seen)
    with run.journal.timed("track and write it"):
        readout = run.mapper.step(frame)
        status, reason = readout.status, readout.reason
    if run.eye is not None and reason == GIVEN:
        reason = SEEN
    pose, time_s = readout.world_from_camera[0].cpu(), float(frame.time_s[0])
    if run.journal.enter(status, reason, pose):
        run.lines[TRAJECTORY].write(tum_line(time_s, pose))
    if TRUTH in run.lines and true is not None and bool(true.isfinite().all()):
        run.lines[TRUTH].write(tum_line(time_s, true[0]))


def _length(source: Source) -> str:
    return f"{len(source)} frames" if source.again else "live, until it is ended"


def _true_pose(run: Run, frame: Frame) -> Tensor | None:
    """The pose that the frame brings, or else what a synthetic source holds back, [1, 4, 4]."""
    if frame.world_from_camera is None and isinstance(run.source, Synthetic):
        return run.source.camera_at(run.journal.frames).world_from_camera[None]
    return frame.world_from_camera


def _again(run: Run, number: int) -> Frame:
    """A frame of the stream once more, as the mapper gets it; nothing is written."""
    frame = run.source[number]
    return frame if run.eye is None else run.eye.peek(frame).frame


def _truth(run: Run, number: int) -> Tensor | None:
    """The exact depth of a frame, [h, w], in the picture that the mapper gets; None where nobody knows it."""
    if not isinstance(run.source, Synthetic):
        return None
    camera = run.source.camera_at(number)
    camera = camera if run.eye is None else run.eye.fit.camera_to_model(camera)
    return run.source.scene_at(number).render(camera).depth.cpu()


def _finish(run: Run, about: dict) -> None:
    """Writes everything but the state, which is written already."""
    mesh = None
    if run.settings.mesh:
        with run.journal.timed("extract and write the mesh"):
            mesh = run.mapper.mesh()
            write_mesh(run.out / MESH, mesh.vertices, mesh.triangles, mesh.normals, mesh.colours)
    with run.journal.timed("render and compare"):
        scaled = run.eye is not None
        way = paths(run.out / TRAJECTORY, run.out / TRUTH if TRUTH in run.lines else None, scaled)
        sights = run.journal.sights.chosen() if run.source.again else []
        shown = list(looks(run.mapper, sights, partial(_again, run), partial(_truth, run), scaled))
        result = score(shown, way, mesh, run.source)
    about |= {"ended": _now(), "frames": run.journal.frames, "statuses": dict(run.journal.statuses())}
    about |= {"state_bytes": run.mapper.nbytes, "peak_resident_bytes": resident_bytes(high=True)}
    _write_record(run, about)
    finished = Finished(run.settings, run.source, run.mapper, run.journal, result, shown, way, mesh, about)
    write_report(run.out / REPORT, finished)
    if shown:
        write_preview(run.out / PREVIEW, shown[len(shown) // 2], run.settings)
    for name in sorted(path.name for path in run.out.iterdir() if path.is_file()):
        run.say(f"  {run.out / name}")


def _about(argv: list[str], run: Run) -> dict:
    """What a run says about itself, written before it starts and completed when it ends."""
    about = {
        "command": ["streammem", "reconstruct", *argv],
        "out": str(run.out.resolve()),
        "started": _now(),
        "first_frame": run.journal.frames,
        "commit": commit(),
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    if run.weights is not None:
        said = run.weights
        about["weights"] = {"file": str(said.path), "fingerprint": said.fingerprint, "licence": said.licence}
    _write_record(run, about)
    return about


def _write_record(run: Run, about: dict) -> None:
    """The settings, all of them, and what the run says about itself: `streammem reconstruct run.yaml` repeats it."""
    settings = config.plain(run.settings) | {"out": None}
    (run.out / RUN).write_text(config.dump({"settings": settings, "run": about}))


def _words(run: Run) -> str:
    statuses = ", ".join(f"{status} {count}" for status, count in run.journal.statuses().most_common())
    return f"{statuses}, state {run.mapper.nbytes / 2**20:.0f} MiB"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _aloud(text: str) -> None:
    tqdm.write(text, file=sys.stderr)


def _silent(text: str) -> None:
    """Says nothing."""


if __name__ == "__main__":
    sys.exit(cli.main(["reconstruct", *sys.argv[1:]]))
