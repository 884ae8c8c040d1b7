"""The zip files that `torch.save` writes, read without its unpickler: tensors out of stored bytes, names as data."""

import mmap
import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from streammem.errors import CheckpointError
from streammem.recon import pickled
from streammem.recon.pickled import Named, Pickled, Stored, Stub

STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
REBUILD, PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
ORDERED = "collections.OrderedDict"
KNOWN = {REBUILD, PARAMETER, ORDERED, *(f"torch.{name}" for name in STORAGES)}
LOCAL_HEADER = 30  # bytes of a zip member's own header before its name
MAGIC = b"PK\x03\x04"


class Kept(NamedTuple):
    """Where a tensor lies: which storage, which part of it."""

    member: str
    dtype: torch.dtype
    numel: int  # of the storage, as the file claims
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Archive:
    """An opened file of `torch.save`. Nothing in it is run; tensors are read when asked for.

    value: its object; a dict stays a dict, whatever else a class would have made is a `Stub`.
    foreign: names that are neither torch's tensors nor plain containers, sorted.
    calls: those of them that torch's unpickler would have called.

    Raises: CheckpointError where the file is missing, foreign, damaged or cut short.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._bytes, self._members = _opened(self.path)
        pickles = [name for name in self._members if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise CheckpointError(
                f"{self.path}: a zip file with {len(pickles)} members called data.pkl; wanted one, as torch.save writes"
            )
        self._root = pickles[0].removesuffix("data.pkl")
        if self._member("byteorder", optional=True) not in (b"", b"little"):
            raise CheckpointError(f"{self.path}: written on a big-endian machine; wanted little-endian tensors")
        read: Pickled = pickled.read(self._member("data.pkl"), str(self.path))
        self.value = read.value
        self.foreign = sorted(read.names - KNOWN)
        self.calls = sorted(read.calls - KNOWN)

    def tensor(self, value: object, name: str) -> Tensor:
        """The tensor that a value of the pickle stands for, in its own memory.

        Raises: CheckpointError where it is no tensor, or claims more than its storage holds.
        """
        kept = _kept(value)
        if kept is None:
            raise CheckpointError(f"{self.path}: {name} is {told(value)}; wanted a tensor")
        data = self._view(f"data/{kept.member}")
        size = kept.dtype.itemsize
        last = kept.offset + sum((n - 1) * s for n, s in zip(kept.shape, kept.stride))
        count = 1
        for n in kept.shape:
            count *= n
        fits = kept.offset >= 0 and min((*kept.shape, *kept.stride, 0)) >= 0 and len(kept.shape) == len(kept.stride)
        if not fits or kept.numel * size > len(data) or (count and last >= kept.numel) or count > kept.numel:
            raise CheckpointError(
                f"{self.path}: {name} claims {list(kept.shape)} of a storage of {kept.numel}, which has {len(data)} "
                "bytes; wanted a tensor that lies within its storage"
            )
        if count == 0:
            return torch.empty(kept.shape, dtype=kept.dtype)
        flat = torch.frombuffer(data, dtype=kept.dtype, count=kept.numel)
        return flat.as_strided(kept.shape, kept.stride, kept.offset).clone(memory_format=torch.contiguous_format)

    def _member(self, name: str, optional: bool = False) -> bytes:
        if optional and self._root + name not in self._members:
            return b""
        return bytes(self._view(name))

    def _view(self, name: str) -> memoryview:
        """The bytes of a member, without a copy, their checksum compared."""
        member = self._members.get(self._root + name)
        if member is None:
            raise CheckpointError(f"{self.path}: has no member {name}; it is damaged or no file of torch.save")
        at, size = member.header_offset, member.file_size
        head = self._bytes[at : at + LOCAL_HEADER]
        if member.compress_type != zipfile.ZIP_STORED or len(head) < LOCAL_HEADER or head[:4] != MAGIC:
            raise CheckpointError(f"{self.path}: {name} is compressed or damaged; wanted stored bytes, as torch writes")
        start = at + LOCAL_HEADER + sum(struct.unpack("<HH", head[26:30]))
        if start + size > len(self._bytes):
            raise CheckpointError(f"{self.path}: {name} claims {size} bytes, more than the file holds")
        view = memoryview(self._bytes)[start : start + size]
        if zlib.crc32(view) != member.CRC:
            raise CheckpointError(f"{self.path}: the checksum of {name} does not match; the file is damaged")
        return view


def is_tensor(value: object) -> bool:
    """Whether a value of the pickle stands for a tensor."""
    return _kept(value) is not None


def plain(value: object) -> object:
    """An OrderedDict as the dict that it is; everything else as it is."""
    return value.items if isinstance(value, Stub) and value.called == ORDERED else value


def told(value: object) -> str:
    """What a value of the pickle is, in words, never longer than a line."""
    if isinstance(value, Stub):
        return f"what a call of {value.called} would make"
    return f"the name {value}" if isinstance(value, Named) else f"a {type(value).__name__}"


def _opened(path: Path) -> tuple[mmap.mmap, dict[str, zipfile.ZipInfo]]:
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    try:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        with zipfile.ZipFile(path) as archive:
            return data, {member.filename: member for member in archive.infolist()}
    except (ValueError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise CheckpointError(
            f"{path}: not a whole file of torch.save ({error}); it is cut short, or something else"
        ) from error


def _kept(value: object) -> Kept | None:
    """Where the tensor lies that a value stands for; None where it stands for something else."""
    if isinstance(value, Stub) and value.called == PARAMETER and value.arguments:
        value = value.arguments[0]
    if not isinstance(value, Stub) or value.called != REBUILD or len(value.arguments) < 4:
        return None
    storage, offset, shape, stride = value.arguments[:4]
    what = storage.what if isinstance(storage, Stored) else None
    if not (isinstance(what, tuple) and len(what) == 5 and what[0] == "storage" and isinstance(what[1], Named)):
        return None
    _, kind, member, _, numel = what
    numbers = (offset, numel, *shape, *stride) if isinstance(shape, tuple) and isinstance(stride, tuple) else (None,)
    if str(kind) not in KNOWN or kind.name not in STORAGES or not all(type(n) is int for n in numbers):
        return None
    return Kept(
        str(member) if isinstance(member, (str, int)) else "", STORAGES[kind.name], numel, offset, shape, stride
    )
