"""A state as one crash-safe file: safetensors, and in its metadata what the state is of.

A save is whole or it is not there: the bytes go to a file beside the target, reach the disk, and take its name. The
format's own writer leaves a file behind whenever it is killed, so the bytes are laid out here.
"""

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from streammem import tree
from streammem.errors import CheckpointError, ShapeError

FORMAT = "streammem-state"
CONTAINER = 1  # version of what this file writes around a state
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class Stored(NamedTuple):
    """What a file holds."""

    tensors: dict[str, Tensor]
    schema: int
    rule: str
    fingerprint: str
    notes: dict[str, str]  # whatever else the writer wished to say

    def into(self, like):
        """Returns the tensors as a tree of the structure of `like`.

        Raises: CheckpointError where names, shapes or types differ.
        """
        try:
            return tree.from_dict(like, self.tensors)
        except ShapeError as error:
            raise CheckpointError(f"the file holds another state: {error}") from error


def save(path, state, *, schema: int, rule: str, fingerprint: str = "", notes: Mapping[str, str] | None = None) -> None:
    """Writes a tree, or a dict of named tensors, to `path`, atomically.

    schema: version of the state's layout, raised by its owner when the layout changes. rule: repr of what learns.
    fingerprint: of the model whose state this is, as `fingerprint` makes it.

    Raises: CheckpointError where the disk refuses, or another process is writing to the same path.
    """
    path = Path(path)
    tensors = _plain(state if isinstance(state, Mapping) else tree.to_dict(state))
    about = {"schema": schema, "rule": rule, "fingerprint": fingerprint, "notes": dict(notes or {})}
    metadata = {
        "format": FORMAT,
        "container": str(CONTAINER),
        "about": json.dumps(about),
        "checksum": _checksum(tensors, json.dumps(about)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with _alone(partial) as file:
        try:
            _write(file, tensors, metadata)
            os.fsync(file.fileno())
            os.replace(partial, path)
            _sync(path.parent)
        except OSError as error:
            raise CheckpointError(f"{path}: could not be written ({error}); what was there before is whole") from error


def load(path, *, schema: int, rule: str | None = None, fingerprint: str | None = None, device="cpu") -> Stored:
    """Reads what `save` wrote; `rule` and `fingerprint` are compared where they are given.

    Raises: CheckpointError where the file is missing, foreign, damaged, of another schema, or of another rule or model.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file; wanted a state written by streammem")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()} if _ours(metadata) else {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: not a whole state file ({error}); it is damaged, cut short or foreign"
        ) from error
    about = _about(path, metadata, tensors)
    _compare(path, about, {"schema": schema, "rule": rule, "fingerprint": fingerprint})
    return Stored({name: x.to(device) for name, x in tensors.items()}, **about)


def fingerprint(model: nn.Module) -> str:
    """Sixteen hex digits of the names, shapes, types and values of the model's parameters and buffers."""
    digest = hashlib.sha256()
    for name, x in sorted(model.state_dict().items()):
        digest.update(f"{name} {list(x.shape)} {x.dtype}".encode())
        digest.update(_bytes(x.detach().cpu().contiguous()))
    return digest.hexdigest()[:16]


def _ours(metadata: Mapping[str, str]) -> bool:
    return metadata.get("format") == FORMAT and metadata.get("container") == str(CONTAINER)


def _about(path: Path, metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> dict:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: a safetensors file, but no state written by streammem")
    if metadata.get("container") != str(CONTAINER):
        raise CheckpointError(
            f"{path}: container version {metadata.get('container')}; this streammem reads version {CONTAINER}"
        )
    if metadata.get("checksum") != _checksum(tensors, metadata.get("about", "")):
        raise CheckpointError(f"{path}: the checksum does not match; the file was damaged after it was written")
    return json.loads(metadata["about"])


def _compare(path: Path, about: dict, wanted: dict) -> None:
    if about["schema"] > wanted["schema"]:
        raise CheckpointError(
            f"{path}: schema {about['schema']}, written by a newer streammem; this one reads schema {wanted['schema']}"
        )
    for name, value in wanted.items():
        if value is not None and about[name] != value:
            raise CheckpointError(f"{path}: {name} is {about[name]}; wanted {value}")


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the host and contiguous.

    Raises: CheckpointError at a type that the format cannot hold.
    """
    for name, x in tensors.items():
        if x.dtype not in DTYPES:
            raise CheckpointError(f"{name} is {x.dtype}; wanted one of {', '.join(map(str, DTYPES))}")
    return {name: x.detach().cpu().contiguous() for name, x in tensors.items()}


def _write(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """The safetensors layout: length of the header, header, tensors; the widest types first, to stay aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, at = {"__metadata__": metadata}, 0
    for name in order:
        x, end = tensors[name], at + tree.nbytes(tensors[name])
        header[name] = {"dtype": DTYPES[x.dtype], "shape": list(x.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(_bytes(tensors[name]))
    file.flush()


def _checksum(tensors: Mapping[str, Tensor], about: str) -> str:
    total = zlib.crc32(about.encode())
    for name in sorted(tensors):
        total = zlib.crc32(_bytes(tensors[name]), zlib.crc32(name.encode(), total))
    return f"{total:08x}"


def _bytes(x: Tensor):
    return x.reshape(-1).view(torch.uint8).numpy() if x.numel() else b""


@contextmanager
def _alone(partial: Path):
    """Opens the file beside the target, empty and locked; a writer that was killed leaves it to the next."""
    with open(os.open(partial, os.O_CREAT | os.O_RDWR, 0o666), "wb", closefd=True) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = partial.stat().st_ino == os.fstat(file.fileno()).st_ino  # else it became somebody's target
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise CheckpointError(f"{partial}: another writer is at work; wanted one writer a file")
        file.truncate(0)
        yield file


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
