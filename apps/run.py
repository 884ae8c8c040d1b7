"""A run of a reconstruction: opened whole or not at all, saved so that another can go on from there."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from streammem import build, config, store
from streammem.errors import CheckpointError, ConfigError
from streammem.mapping import Mapper
from streammem.mapping.mapper import SCHEMA
from streammem.recon.reconstructor import Reconstructor
from streammem.recon.weights import Weights
from streammem.settings import ReconstructSettings
from streammem.sources import Source

from . import views
from .arguments import RUN, STATE, Wish
from .journal import Journal, Lines

TRAJECTORY, TRUTH, VIEWS = "trajectory.tum", "truth.tum", "views.tsv"
NOTE = "reconstruct"  # name of our note in a state file
NETWORK = "recon."  # what the names of the network's state begin with, in a state file
HEADINGS = {VIEWS: views.HEADING}
HEADING = "# time tx ty tz qx qy qz qw: world_from_camera, metres\n"


class Run(NamedTuple):
    """What is at work during a run."""

    settings: ReconstructSettings
    source: Source
    mapper: Mapper
    journal: Journal
    lines: dict[str, Lines]  # files that grow with the stream, by name
    out: Path
    say: Callable[[str], None]
    eye: Reconstructor | None = None  # what sees depth in colour, where the source brings none
    weights: Weights | None = None  # what the eye's file says

    def save(self) -> None:
        """Writes the state, and beside it how far the stream and its files have come: those reach the disk first."""
        lengths = {name: file.sync() for name, file in self.lines.items()}
        note = {"journal": self.journal.dump(), "lengths": lengths, "stream": stream(self.settings)}
        with self.journal.timed("save the state"):
            if self.eye is None:
                self.mapper.save(self.out / STATE, {NOTE: json.dumps(note)})
            else:
                note |= {"eye": repr(self.eye)}
                seen = {NETWORK + name: x for name, x in self.eye.state_tree().items()}
                rule, mark = repr(self.settings.map), self.weights.fingerprint
                tensors = self.mapper.state_tree() | seen
                store.save(
                    self.out / STATE,
                    tensors,
                    schema=SCHEMA,
                    rule=rule,
                    fingerprint=mark,
                    notes={NOTE: json.dumps(note)},
                )


def opened(wish: Wish, say: Callable[[str], None]) -> Run:
    """Opens everything before anything is written.

    Raises: StreamMemError where the settings, the source, the state or the folder cannot be used.
    """
    settings = wish.settings
    torch.manual_seed(settings.seed)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = build.device(settings.device)
    source, journal, lengths = build.source(settings), Journal(settings.previews), {}
    eye, found = build.reconstructor(settings, source) if settings.colour_only else (None, None)
    if wish.resume is None:
        mapper = build.mapper(settings)
    else:
        mapper, notes = Mapper.load(wish.resume, settings.map, device=device)
        lengths = _recall(notes, journal, settings, source, wish.resume)
        if eye is not None:
            look_again(wish.resume, eye, found, notes, settings)
    out = settings.out or Path("out") / f"{source.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    _prepare(out, wish)
    beside = out if wish.resume is None else wish.resume.parent
    names = [TRAJECTORY] + [TRUTH] * (settings.poses == "find") + [VIEWS] * (eye is not None)
    lines = {
        name: Lines(out / name, HEADINGS.get(name, HEADING), lengths.get(name, 0), beside / name) for name in names
    }
    for name in (name for name, file in lines.items() if file.cut):
        say(f"{beside / name} is shorter than the state remembers: {out / name} starts at frame {journal.frames}")
    if found is not None:
        say(f"{found.path.name}: {found.licence}")
    return Run(settings, source, mapper, journal, lines, out, say, eye, found)


def stream(settings: ReconstructSettings) -> dict:
    """What makes frame i the same frame: all of the source's settings but its place and its end."""
    told = config.plain(settings.source) | {"poses": settings.poses, "run_seed": settings.seed}
    return {name: value for name, value in told.items() if name not in ("path", "frames")}


def _recall(notes: dict, journal: Journal, settings: ReconstructSettings, source: Source, path: Path) -> dict:
    """Reads our note into the journal; returns the lengths of the files that grew with the stream.

    Raises: CheckpointError where the state is of another program, another source, or a longer stream.
    """
    if NOTE not in notes:
        raise CheckpointError(f"{path}: a map, but not one that `streammem reconstruct` was saving")
    note, now = json.loads(notes[NOTE]), stream(settings)
    told = ", ".join(f"{name}={value}" for name, value in note["stream"].items() if value != now.get(name))
    if told:
        raise CheckpointError(f"{path} was learnt from another stream ({told}); wanted the same one, to go on with it")
    journal.read(note["journal"])
    if journal.frames > len(source):
        raise CheckpointError(f"{path} has seen {journal.frames} frames; wanted a stream longer than {len(source)}")
    return note["lengths"]


def look_again(path: Path, eye: Reconstructor, found: Weights, notes: dict, settings: ReconstructSettings) -> None:
    """Gives the eye the state that it had.

    Raises: CheckpointError where the state is of other weights, or of another rule.
    """
    note = json.loads(notes.get(NOTE, "{}"))
    if note.get("eye") != repr(eye):
        raise CheckpointError(f"{path}: was learnt by {note.get('eye', 'a depth camera')}; wanted {eye!r}, to go on")
    stored = store.load(path, schema=SCHEMA, rule=repr(settings.map), fingerprint=found.fingerprint)
    named = stored.tensors.items()
    eye.adopt({name.removeprefix(NETWORK): x for name, x in named if name.startswith(NETWORK)})


def _prepare(out: Path, wish: Wish) -> None:
    """Makes the folder.

    Raises: ConfigError where it cannot be written to, or holds another run.
    """
    state = out / STATE
    resumed = wish.resume is not None and wish.resume.resolve() == state.resolve()
    if state.exists() and not resumed and not wish.overwrite:
        choices = f"another --out, --resume {state} to go on with it, or --overwrite to lose it"
        raise ConfigError(f"{out} holds a run; wanted {choices}")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RUN).touch()
        if not resumed:
            state.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"out is {out}: {error.strerror}; wanted a folder that can be written to") from error
