"""Weights of the reconstruction network: official files read without running them, ours written as safetensors."""

import dataclasses
import functools
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streammem.errors import CheckpointError, StreamMemError
from streammem.recon import archive, constructor
from streammem.recon.archive import Archive
from streammem.recon.config import PRESETS, ReconConfig
from streammem.recon.model import ReconModel
from streammem.recon.ties import is_second, tied, twin

FORMAT = "streammem-recon-weights"
OFFICIAL = (
    "official CUT3R weights: CC BY-NC-SA 4.0, for non-commercial use only, share alike "
    "(https://creativecommons.org/licenses/by-nc-sa/4.0)"
)
UNSAID = "the file does not say; if it was made from official CUT3R weights, CC BY-NC-SA 4.0: non-commercial use only"
WHERE = (
    "no weights: download cut3r_512_dpt_4_64.pth from https://github.com/CUT3R/CUT3R (CC BY-NC-SA 4.0, "
    "non-commercial), run `streammem weights convert cut3r_512_dpt_4_64.pth weights/cut3r_512.safetensors`, and say "
    "--weights weights/cut3r_512.safetensors"
)
MODEL, ARGUMENTS = "model", "args"  # members of an official file
WRAPPED = "module."  # prefix of a model saved from inside DataParallel
STATE_DECODER, IMAGE_DECODER = "dec_blocks_state.", "dec_blocks."
SHOWN = 12  # names of a list that are said


class Weights(NamedTuple):
    """What a file holds, whole or not."""

    path: Path
    kind: str  # "torch.save" or "safetensors"
    config: ReconConfig | None  # None: the file does not say, and its shapes fit none of ours
    said: bool  # whether the file itself states its configuration
    tensors: dict[str, Tensor]
    missing: list[str]
    unexpected: list[str]  # left out by `convert` and `load`
    wrong: list[str]  # name, shape, wanted shape
    foreign: list[str]  # what a pickle names besides tensors and containers
    calls: list[str]  # those of them that torch's unpickler would have called; here nothing was
    licence: str
    fingerprint: str  # sixteen hex digits of names, shapes and values

    @property
    def whole(self) -> bool:
        """Whether a model can be made of it."""
        return self.config is not None and not self.missing and not self.wrong


def read(path: str | Path, config: ReconConfig | None = None) -> Weights:
    """Reads an official `.pth` or one of our safetensors files, and compares it with what the network wants.

    config: overrules what the file says or its shapes tell.
    Raises: CheckpointError where the file cannot be read at all; what is missing is only listed.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            f"{path}: there is no such file; wanted weights, as .safetensors or .pth (data/README.md)"
        )
    return _read_archive(path, config) if _is_zip(path) else _read_safetensors(path, config)


def convert(path: str | Path, out: str | Path, config: ReconConfig | None = None) -> Weights:
    """Writes the weights of an official `.pth` file as safetensors, whole or not at all; tied tensors once.

    Raises: CheckpointError where tensors are missing, of other shapes or not finite, or `out` cannot be
        written.
    """
    weights = checked(read(path, config))
    source = f"{weights.path.name} sha256 {_digest(weights.path)}"
    write(out, weights.tensors, _about(weights.config, weights.licence, source))
    return weights


def save(out: str | Path, model: ReconModel, licence: str, source: str) -> None:
    """Writes a network's weights with its configuration, so that `load` needs nothing else.

    licence: of the weights; source: where they are from, in words.
    Raises: CheckpointError where `out` cannot be written.
    """
    write(out, model.state_dict(), _about(model.config, licence, source))


def _about(config: ReconConfig, licence: str, source: str) -> dict[str, str]:
    return {"format": FORMAT, "config": json.dumps(dataclasses.asdict(config)), "licence": licence, "source": source}


def write(out: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Writes tensors with what is said about them; of two tied names the first is kept."""
    out = Path(out)
    kept = {name: x for name, x in tensors.items() if twin(name) not in tensors or not is_second(name)}
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: x.contiguous() for name, x in kept.items()}, partial, dict(about))
        os.replace(partial, out)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{out}: could not be written ({error})") from error


def load(path: str | Path, device="cpu", update=None, config: ReconConfig | None = None) -> tuple[ReconModel, Weights]:
    """A network with the weights of a file, ready to run, and what the file said (without its tensors).

    update: the rule by which the state is written; None is the network's default.
    Raises: CheckpointError where the file cannot be read, or is not whole.
    """
    weights = checked(read(path, config))
    with torch.device("meta"):
        model = ReconModel(weights.config) if update is None else ReconModel(weights.config, update)
    model.load_state_dict(weights.tensors, strict=True, assign=True)
    return model.to(device).eval().requires_grad_(False), weights._replace(tensors={})


def checked(weights: Weights) -> Weights:
    """The weights, where they are whole and finite, without what is not the network's.

    Raises: CheckpointError with what is wrong.
    """
    if weights.config is None:
        names = ", ".join(PRESETS)
        raise CheckpointError(
            f"{weights.path}: does not say what it is, and its {len(weights.tensors)} tensors have the shapes of "
            f"none of {names}; wanted a file with its configuration, or the name of one"
        )
    for words, names in (
        ("are missing", weights.missing),
        ("have other shapes or types", weights.wrong),
        ("are not finite", _nonfinite(weights)),
    ):
        if names:
            raise CheckpointError(f"{weights.path}: {len(names)} tensors {words}: {listed(names)}; wanted all of them")
    return weights._replace(tensors={name: weights.tensors[name] for name in wanted(weights.config)})


def listed(names: list[str], most: int = SHOWN) -> str:
    """Some of the names, and how many more there are."""
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


@functools.lru_cache(maxsize=8)
def wanted(config: ReconConfig) -> Mapping[str, tuple[int, ...]]:
    """Shapes of a network's tensors by name, without making them."""
    with torch.device("meta"):
        model = ReconModel(config)
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


def _read_archive(path: Path, config: ReconConfig | None) -> Weights:
    file = Archive(path)
    named, text = _parts(file)
    named = _official_names(named)
    tensors = {name: _float(file.tensor(value, name)) for name, value in named.items() if archive.is_tensor(value)}
    said = config is None and text is not None
    if said:
        try:
            config = constructor.config(text)
        except StreamMemError as error:
            raise CheckpointError(f"{path}: {error}") from error
    return _compared(path, "torch.save", config, said, tensors, file.foreign, file.calls, OFFICIAL)


def _parts(file: Archive) -> tuple[dict[str, object], str | None]:
    """The values of the state dict by name, and the text of the configuration where there is one."""
    whole = archive.plain(file.value)
    if not isinstance(whole, dict):
        ran = f"; it would have called {listed(file.calls)}: nothing was run" if file.calls else ""
        raise CheckpointError(f"{file.path}: holds {archive.told(whole)}; wanted a dict with weights{ran}")
    state = archive.plain(whole.get(MODEL, whole))
    if not isinstance(state, dict) or not any(archive.is_tensor(value) for value in state.values()):
        keys = listed([str(key)[:40] for key in whole if isinstance(key, str)])
        raise CheckpointError(f"{file.path}: no tensors under {MODEL!r} (it has {keys or 'nothing'}); wanted weights")
    named = {name: value for name, value in state.items() if isinstance(name, str)}
    return named, constructor.text_of(whole.get(ARGUMENTS)) if MODEL in whole else None


def _official_names(named: dict[str, object]) -> dict[str, object]:
    """Names without the wrapper's prefix; a file from before the state had its own decoder lends it the image's."""
    if all(name.startswith(WRAPPED) for name in named):
        named = {name.removeprefix(WRAPPED): value for name, value in named.items()}
    if not any(name.startswith(STATE_DECODER) for name in named):
        lent = {name: value for name, value in named.items() if name.startswith(IMAGE_DECODER)}
        named |= {STATE_DECODER + name.removeprefix(IMAGE_DECODER): value for name, value in lent.items()}
    return named


def _read_safetensors(path: Path, config: ReconConfig | None) -> Weights:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            about = file.metadata() or {}
            tensors = {name: _float(file.get_tensor(name)) for name in file.keys()}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: neither a zip file of torch.save nor whole safetensors ({error}); it is damaged, cut short, "
            "older than torch 1.6, or something else"
        ) from error
    said = config is None and "config" in about
    if said:
        config = _config_from(path, about["config"])
    return _compared(path, "safetensors", config, said, tensors, [], [], about.get("licence", UNSAID))


def _config_from(path: Path, text: str) -> ReconConfig:
    """What `convert` wrote.

    Raises: CheckpointError for fields of a newer program, or values that are none.
    """
    try:
        fields = {name: tuple(x) if isinstance(x, list) else x for name, x in json.loads(text).items()}
        return ReconConfig(**fields)
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: its configuration cannot be read ({error}); wanted what convert writes"
        ) from error


def _compared(path, kind, config, said, tensors, foreign, calls, licence) -> Weights:
    config = config or _guess(tensors)
    tensors = tied(path, tensors, wanted(config) if config else {})
    shapes = wanted(config) if config else {}
    missing = [name for name in shapes if name not in tensors]
    unexpected = [name for name in tensors if name not in shapes] if config else []
    wrong = [
        f"{name} {list(tensors[name].shape)} {str(tensors[name].dtype)[6:]}, not {list(shape)} float32"
        for name, shape in shapes.items()
        if name in tensors and (tuple(tensors[name].shape) != shape or not tensors[name].is_floating_point())
    ]
    mark = _fingerprint({name: x for name, x in tensors.items() if name in shapes or not shapes})
    return Weights(path, kind, config, said, tensors, missing, unexpected, wrong, foreign, calls, licence, mark)


def _guess(tensors: Mapping[str, Tensor]) -> ReconConfig | None:
    """The one of ours whose shapes these are; the counts of heads, which no shape tells, come with it."""
    for config in PRESETS.values():
        shapes = wanted(config)
        shared = [name for name in tensors if name in shapes]
        if 2 * len(shared) > len(shapes) and all(tuple(tensors[name].shape) == shapes[name] for name in shared):
            return config
    return None


def _float(x: Tensor) -> Tensor:
    return x.float() if x.is_floating_point() else x


def _nonfinite(weights: Weights) -> list[str]:
    return [name for name in wanted(weights.config) if name in weights.tensors and not _finite(weights.tensors[name])]


def _finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def _is_zip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == archive.MAGIC


def _fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Of checksums, not of the bytes themselves: three gigabytes in a second or two."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        data = tensors[name].contiguous().view(-1).view(torch.uint8).numpy() if tensors[name].numel() else b""
        digest.update(f"{name} {list(tensors[name].shape)} {zlib.crc32(data)}".encode())
    return digest.hexdigest()[:16]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()
