"""Settings to things that run: the only place that knows both."""

import inspect

import torch

from streammem.errors import ConfigError
from streammem.mapping import Mapper
from streammem.settings import ReconstructSettings
from streammem.sources import SOURCES, Source


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
