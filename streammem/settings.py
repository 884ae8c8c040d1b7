"""What a run can be told: frozen values with their defaults. YAML and the command line hold only what differs."""

import inspect
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from streammem.errors import ConfigError
from streammem.mapping import MapSettings
from streammem.recon.align import Robust
from streammem.recon.trust import Trust
from streammem.sources import PLACELESS, SOURCES, SPECS

COLOUR_ONLY = ("synthetic:rgb", "video", "webcam")  # kinds of source that never bring a depth

__all__ = ["MapSettings", "ReconSettings", "ReconstructSettings", "SourceSettings"]


@dataclass(frozen=True)
class SourceSettings:
    """Which frames. An option that is None is left to the source; one that the source does not have is refused.

    Raises: ConfigError for an option of another kind of source, or a path too many or too few.
    """

    kind: Literal["synthetic", "folder", "tum", "video", "synthetic:rgb", "webcam"] = "synthetic"
    path: str | None = None
    frames: int | None = None  # at most so many
    every: int | None = None  # take every n-th
    # synthetic
    height: int | None = None
    width: int | None = None
    seed: int | None = None
    noise: str | None = None
    moving_objects: int | None = None
    removed_at: int | None = None
    dropout: float | None = None
    # recordings
    depth_scale: float | str | None = None  # units a metre, or millimetres, tum, metres
    intrinsics: tuple[float, ...] | str | None = None  # fx fy cx cy, or a camera's name
    rate_hz: float | None = None
    max_depth_m: float | None = None  # deeper is unknown
    resample: str | None = None
    tolerance_s: float | None = None

    def __post_init__(self):
        if (self.path is None) != (self.kind in PLACELESS) and self.kind != "webcam":
            said = "has no path" if self.path is None else f"has the path {self.path!r}"
            raise ConfigError(f"{self.kind} {said}; wanted --source {SPECS}")
        if self.frames is not None and self.frames < 1:
            raise ConfigError(f"frames is {self.frames}; wanted at least 1")
        known = inspect.signature(SOURCES[self.kind]).parameters
        for name in self.options():
            if name not in known:
                has = ", ".join(
                    field.name for field in fields(self) if field.name in known and field.name not in ("path", "frames")
                )
                raise ConfigError(f"{name} is no option of {self.kind}; it has frames, {has}")

    def options(self) -> dict:
        """Arguments of the source's class, but the path: those that were set."""
        told = {field.name: getattr(self, field.name) for field in fields(self)[2:]}
        if not self.kind.startswith("synthetic"):
            told["limit"] = told.pop("frames")
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class ReconSettings:
    """How a colour camera alone is reconstructed; used where frames bring no depth, or weights are given."""

    weights: str | None = None  # safetensors; None: the small network of synthetic rooms, for synthetic:rgb only
    update: str = "confidence"  # rule by which the network's state is written
    update_args: dict[str, Any] = field(default_factory=dict)
    reset_every: int = 0  # frames after which the network starts over, aligned with what was before; 0: never
    lens: Literal["median", "fitted", "source"] = "median"  # how intrinsics come about; "source": it knows them
    save_views: bool = False  # each view's depth, confidence, pose and intrinsics as views/NUMBER.npz
    trust: Trust = field(default_factory=Trust)  # which pixels are written to the map, and how often
    align: Robust = field(default_factory=Robust)


@dataclass(frozen=True)
class ReconstructSettings:
    """One reconstruction.

    Raises: ConfigError for values that cannot be run.
    """

    source: SourceSettings = field(default_factory=SourceSettings)
    map: MapSettings = field(default_factory=MapSettings)
    recon: ReconSettings = field(default_factory=ReconSettings)
    poses: Literal["given", "find"] = "given"  # "find": the source's poses are kept back, to be compared with
    out: Path | None = None  # folder; None: out/SOURCE-DATE
    autosave_frames: int = 150  # between two saves of the state; 0: only at the end
    check: Literal["strict", "warn", "silent"] = "strict"  # of the first frames
    mesh: bool = True
    previews: int = 4  # frames that the report shows, from all over the stream
    device: str = "cpu"
    threads: int | None = None  # None: as many as torch takes
    seed: int = 0

    def __post_init__(self):
        if self.autosave_frames < 0 or not 0 <= self.previews <= 16:
            told = f"autosave_frames is {self.autosave_frames}, previews {self.previews}"
            raise ConfigError(f"{told}; wanted autosave_frames >= 0 and previews from 0 to 16")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is {self.threads}; wanted at least 1")

    @property
    def colour_only(self) -> bool:
        """Whether the network stands for the depth camera: the source has no depth, or it is held back."""
        return self.recon.weights is not None or self.source.kind in COLOUR_ONLY
