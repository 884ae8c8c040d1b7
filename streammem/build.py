"""Settings to things that run: the only place that knows both."""

import inspect
from pathlib import Path

import torch

from streammem.errors import CheckpointError, ConfigError
from streammem.mapping import Mapper
from streammem.recon import weights
from streammem.recon.intrinsics import Fitted, Median
from streammem.recon.reconstructor import Reconstructor
from streammem.recon.update import UpdateRule
from streammem.recon.updates import UPDATES
from streammem.recon.weights import Weights
from streammem.settings import ReconSettings, ReconstructSettings
from streammem.sources import SOURCES, Source

LENSES = {"median": Median(), "fitted": Fitted(), "source": None}
TINY = Path(__file__).parent / "recon" / "tiny.safetensors"  # knows synthetic rooms, nothing else


def source(settings: ReconstructSettings) -> Source:
    """The stream of frames; a synthetic one is made on the device, from the run's seed unless it has its own.

    Raises: SourceError where a recording cannot be read.
    """
    told = settings.source
    make, options = SOURCES[told.kind], told.options()
    known = inspect.signature(make).parameters
    defaults = {"seed": settings.seed, "device": settings.device}
    options = {name: value for name, value in defaults.items() if name in known} | options
    return make(*([] if told.path is None else [told.path]), **options)


def mapper(settings: ReconstructSettings) -> Mapper:
    """A map that has seen nothing."""
    return Mapper(settings.map, device=device(settings.device))


def reconstructor(settings: ReconstructSettings, source: Source) -> tuple[Reconstructor, Weights]:
    """The network as a depth camera for that source, and what its file says of it.

    Raises: CheckpointError where there are no weights, or they are not whole; ConfigError for a rule or a lens that
        there is not.
    """
    told = settings.recon
    path = told.weights
    if path is None and settings.source.kind == "synthetic:rgb" and TINY.is_file():
        path = TINY
    if path is None:
        raise CheckpointError(weights.WHERE)
    model, found = weights.load(path, device(settings.device), update(told))
    if told.lens == "source" and source.camera_intrinsics is None:
        raise ConfigError(f"recon.lens is 'source', but {source.name} has no intrinsics; wanted source.intrinsics")
    return Reconstructor(model, 1, LENSES[told.lens], told.trust, told.reset_every, told.align), found


def update(told: ReconSettings) -> UpdateRule:
    """The rule of that name.

    Raises: ConfigError for a name or an argument that there is not.
    """
    if told.update not in UPDATES:
        raise ConfigError(f"recon.update is {told.update!r}; wanted one of {', '.join(UPDATES)}")
    make = UPDATES[told.update]
    known = inspect.signature(make).parameters
    for name in told.update_args:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"{name} is no argument of {told.update}; {has}")
    try:
        return make(**told.update_args)
    except TypeError as error:
        raise ConfigError(
            f"recon.update_args are {told.update_args}; {told.update} cannot use them: {error}"
        ) from error


def device(name: str) -> torch.device:
    """The device of that name.

    Raises: ConfigError where this machine, or this torch, has none of it.
    """
    try:
        torch.zeros(1, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"device is {name!r}: {first}; wanted cpu, or cuda where there is a GPU") from error
