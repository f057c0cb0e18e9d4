"""Read a file of `torch.save` without running any of it: tensors by name, their bytes on demand.

The file is a zip: `data.pkl` says how the value is built, `data/N` holds the bytes of each storage, uncompressed
(https://docs.pytorch.org/docs/stable/notes/serialization.html). The pickle is followed with stand-ins for the few
functions that build tensors; one that names any other is refused. The zip keeps a CRC-32 of each storage. It is the
tensor's digest here, once the bytes were read and have it: a checksum that merely stands in a file proves nothing.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS, size_of
from lockstep.recordings import Bytes, LaterTensor
from lockstep_interop_names.dumps.zip_member import member_bytes

_PICKLE_BYTES = 64 << 20
_DEPTH = 32
_STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}  # fmt: skip
_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}  # fmt: skip
_BAD = (
    zipfile.BadZipFile, zlib.error, struct.error, OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError,
    IndexError, ValueError, TypeError, AttributeError, OverflowError, UnicodeDecodeError, MemoryError, AssertionError,
)  # fmt: skip
"""What reading a damaged file may end in."""


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_row_after_row(self) -> bool:
        expected, strides = 1, []
        for extent in reversed(self.shape):
            strides.append(expected)
            expected *= extent
        pairs = zip(self.shape, self.strides, reversed(strides), strict=True)
        return all(extent <= 1 or left == right for extent, left, right in pairs)


def tensors_in(path: Path) -> Iterator[tuple[str, LaterTensor]]:
    """Every tensor of a file by where it stands in the value, "" for a value that is one.

    Raises CorruptError if the file is damaged, holds code, or is none that `torch.save` writes.
    """
    size_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            prefix = _prefix(path, archive)
            little = f"{prefix}byteorder" not in archive.namelist() or (
                _member(path, archive, f"{prefix}byteorder", 16).strip() == b"little"
            )
            found = [
                (name, _later(path, archive, prefix, one, little=little))
                for name, one in _leaves(_value(path, archive, prefix), "", _DEPTH)
            ]
    except _BAD as error:
        raise CorruptError(
            path, f"is not a file that torch.save wrote, or damaged ({_words(error)})"
        ) from error
    yield from found


def noted_in(path: Path, key: str) -> dict[str, Any]:
    """Return the values under a key, if the value is a dictionary; {} if there is none.

    Raises CorruptError as of `tensors_in`.
    """
    size_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            value = _value(path, archive, _prefix(path, archive))
    except _BAD as error:
        raise CorruptError(
            path, f"is not a file that torch.save wrote, or damaged ({_words(error)})"
        ) from error
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _value(path: Path, archive: zipfile.ZipFile, prefix: str) -> Any:
    text = _member(path, archive, f"{prefix}data.pkl", _PICKLE_BYTES)
    return _Followed(path, io.BytesIO(text)).load()


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _prefix(path: Path, archive: zipfile.ZipFile) -> str:
    for name in archive.namelist():
        if name == "data.pkl" or name.endswith("/data.pkl"):
            return name.removesuffix("data.pkl")
    raise CorruptError(path, "is a zip without data.pkl, which torch.save writes")


def _member(path: Path, archive: zipfile.ZipFile, name: str, most_bytes: int) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > min(
        most_bytes, path.stat().st_size
    ):
        raise CorruptError(path, f"its {name} is compressed or too large")
    return member_bytes(path, info).tobytes()


class _Followed(pickle.Unpickler):
    """Follows a pickle with stand-ins alone: nothing that it names is imported or called."""

    def __init__(self, path: Path, file: io.BytesIO) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name."""
        found = _STAND_INS.get((module, name))
        if found is not None:
            return found
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _Named(_STORAGES[name])
        if module == "torch" and name in _ITEM_BYTES:
            return _Named(name)
        raise CorruptError(
            self._path,
            f"its pickle names {module}.{name}, and would run it: nothing but tensors is read",
            advice="save the tensors alone, as torch.load(weights_only=True) reads them",
        )

    def persistent_load(self, saved: Any) -> _Storage:
        """A storage, by what the pickle says of it."""
        kind, dtype, key = saved[0], saved[1], saved[2]
        if kind != "storage" or not isinstance(dtype, _Named) or not isinstance(key, str):
            raise ValueError(f"a storage that is none: {saved!r:.80}")
        return _Storage(key, dtype.name)


@dataclass(frozen=True, slots=True)
class _Named:
    name: str

    def __call__(self, *_: Any) -> NoReturn:
        raise ValueError(f"{self.name} is called")


def _rebuilt(storage: _Storage, offset: int, size: Any, stride: Any, *_: Any) -> _Tensor:
    return _Tensor(
        storage, storage.dtype, int(offset), tuple(map(int, size)), tuple(map(int, stride))
    )


def _rebuilt_as(
    storage: _Storage,
    offset: int,
    size: Any,
    stride: Any,
    gradient: Any,
    hooks: Any,
    dtype: _Named,
    *_: Any,
) -> _Tensor:
    return _Tensor(storage, dtype.name, int(offset), tuple(map(int, size)), tuple(map(int, stride)))


def _first(value: Any, *_: Any) -> Any:
    return value


def _nothing(*_: Any) -> None:
    return None


def _as_tuple(value: Any = ()) -> tuple[Any, ...]:
    return tuple(value)


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuilt,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuilt_as,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch", "Size"): _as_tuple,
    ("torch", "device"): _nothing,
    ("torch.serialization", "_get_layout"): _nothing,
}


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, _Tensor]]:
    if isinstance(value, _Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        if not depth:
            raise ValueError(f"nested more than {_DEPTH} deep")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _leaves(item, f"{name}.{key}" if name else str(key), depth - 1)


def _later(
    path: Path, archive: zipfile.ZipFile, prefix: str, tensor: _Tensor, *, little: bool
) -> LaterTensor:
    name = f"{prefix}data/{tensor.storage.key}"
    info, item = archive.getinfo(name), _ITEM_BYTES[tensor.dtype]
    count = math.prod(tensor.shape)
    sizes = [*tensor.shape, *tensor.strides, tensor.offset]
    if len(tensor.shape) != len(tensor.strides) or min(sizes) < 0 or count > MOST_ELEMENTS:
        raise ValueError(f"a tensor of impossible shape {tensor.shape}")
    reach = zip(tensor.shape, tensor.strides, strict=True)
    last = (
        tensor.offset + sum((extent - 1) * stride for extent, stride in reach) + 1 if count else 0
    )
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > path.stat().st_size:
        raise ValueError(f"{name} is compressed or too large")
    if last * item > info.file_size:
        raise ValueError(
            f"{name} has {info.file_size} bytes, and its tensor reaches to {last * item}"
        )
    if count * item > max(4 * info.file_size, 1 << 20):
        raise ValueError(f"a tensor of shape {tensor.shape} is made of {info.file_size} bytes")
    digest = None
    if tensor.is_row_after_row and not tensor.offset and count * item == info.file_size and little:
        data = member_bytes(path, info)  # which refuses bytes that have another one
        checksum = info.CRC or zlib.crc32(data.data)
        digest = f"crc32:{checksum:08x}:{tensor.dtype}{list(tensor.shape)}"
    load = partial(_bytes_of, path, name, tensor, little=little)
    return LaterTensor(tensor.dtype, tensor.shape, digest=digest, load=load, place=str(path))


def _bytes_of(path: Path, name: str, tensor: _Tensor, *, little: bool) -> Bytes:
    """The bytes of one tensor, row after row.

    Raises CorruptError if they are not what they were when the tensor was met.
    """
    size_of(path)
    try:
        with zipfile.ZipFile(path) as archive:
            data = member_bytes(path, archive.getinfo(name))
    except _BAD as error:
        raise CorruptError(path, f"cannot be read ({_words(error)})") from error
    item = _ITEM_BYTES[tensor.dtype]
    count = math.prod(tensor.shape)
    if tensor.is_row_after_row:
        rows = data[tensor.offset * item : (tensor.offset + count) * item]
    else:
        cells = data[: data.size // item * item].reshape(-1, item)
        strides = [stride * item for stride in tensor.strides]
        view = np.lib.stride_tricks.as_strided(
            cells[tensor.offset :], (*tensor.shape, item), (*strides, 1), writeable=False
        )
        rows = np.ascontiguousarray(view).reshape(-1)
    if not little:
        part = item // 2 if tensor.dtype.startswith("complex") else item
        rows = np.ascontiguousarray(rows.reshape(-1, part)[:, ::-1]).reshape(-1)
    return rows
