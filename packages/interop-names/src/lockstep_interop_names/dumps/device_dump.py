"""One file of an Ascend dump: the length of a header, the header (`toolkit.dumpdata.DumpData`), the tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS, size_of
from lockstep.recordings import Bytes, LaterTensor, Role
from lockstep_interop_names.dumps.device_layouts import BLOCKED, PLAIN, put_back
from lockstep_interop_names.dumps.wire import Fields, fields_of, numbers_of

_HEADER_BYTES = 64 << 20
_MOST_AXES = 32
_DTYPES = {
    1: "float32", 2: "float16", 3: "int8", 4: "uint8", 5: "int16", 6: "uint16", 7: "int32", 8: "int64", 9: "uint32",
    10: "uint64", 11: "bool", 12: "float64", 16: "complex64", 17: "complex128", 27: "bfloat16", 34: "float8_e5m2",
    35: "float8_e4m3fn",
}  # fmt: skip
_CELLS = {"bfloat16": "u2", "float8_e5m2": "u1", "float8_e4m3fn": "u1"}


@dataclass(frozen=True, slots=True)
class Origin:
    """The operator of the framework's graph that an output comes from, its number there, and its axes."""

    name: str
    index: int
    format: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a file, as its header tells it."""

    role: Role
    index: int
    dtype: int
    format: int
    shape: tuple[int, ...]
    original: tuple[int, ...]
    start: int
    size_bytes: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class DeviceDump:
    """One file: the operator that its header names, "" where it names none, and its tensors, inputs first."""

    operator: str
    parts: list[Part]


def dump_in(path: Path) -> DeviceDump:
    """Return what the header of a file tells. Raises CorruptError if it is none of these, or cut off."""
    size = size_of(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _HEADER_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = fields_of(file.read(length))
            parts = list(_parts(header, 8 + length))
            operator = _bytes(header[6][-1]).decode(errors="replace") if 6 in header else ""
        end = max((one.start + one.size_bytes for one in parts), default=0)
        if end > size:
            raise ValueError(f"tensors up to byte {end} of {size}")
        if not parts:
            raise ValueError("no tensor")
    except (ValueError, OSError) as error:
        raise CorruptError(
            path, f"is not a dump of a device, or cut off ({error})", advice="dump again"
        ) from error
    return DeviceDump(operator, parts)


def _parts(header: Fields, start: int) -> Iterator[Part]:
    if header.get(2) is None or not isinstance(header[2][0], int):
        raise ValueError("a header without a time")
    for role, number, of_size, of_original in ((Role.INPUT, 4, 5, 6), (Role.OUTPUT, 3, 6, 7)):
        for index, message in enumerate(header.get(number, ())):
            told = fields_of(_bytes(message))
            size = _number(told, of_size)
            shape = _shape(told, 3)
            yield Part(
                role, index, _number(told, 1), _number(told, 2), shape, _shape(told, of_original) or shape,
                start, size, _origin(told) if role is Role.OUTPUT else None,
            )  # fmt: skip
            start += size


def _origin(told: Fields) -> Origin | None:
    if 4 not in told:
        return None
    found = fields_of(_bytes(told[4][0]))
    name = _bytes(found[1][0]).decode(errors="replace") if 1 in found else ""
    return Origin(name, _number(found, 2), _number(found, 4)) if name else None


def _bytes(value: int | bytes | memoryview) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of a message")
    return bytes(value)


def _number(told: Fields, number: int) -> int:
    value = told.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError("a message in place of a number")
    return value


def _shape(told: Fields, number: int) -> tuple[int, ...]:
    if number not in told:
        return ()
    shape = tuple(numbers_of(fields_of(_bytes(told[number][-1])).get(1, [])))
    if len(shape) > _MOST_AXES or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"the impossible shape {shape[:4]} ...")
    return shape


def tensor_of(path: Path, part: Part) -> LaterTensor:
    """The tensor as the framework has it; without elements where its dtype or its format is not known, which it says.

    Raises CorruptError if its bytes are no tensor of that shape.
    """
    dtype, place = _DTYPES.get(part.dtype), f"{path}:{part.role.value} {part.index}"
    if dtype is None or part.format not in PLAIN | BLOCKED:
        what = f"dtype {part.dtype}" if dtype is None else f"format {part.format}"
        return LaterTensor(
            dtype or f"ascend dtype {part.dtype}", part.original, note=f"its {what} is not read"
        )
    if math.prod(part.shape) * np.dtype(_CELLS.get(dtype, dtype)).itemsize > part.size_bytes:
        raise CorruptError(
            path,
            f"{part.role.value} {part.index}: {part.size_bytes} bytes are no {dtype}{list(part.shape)}",
        )
    load = partial(_elements, path, part, _CELLS.get(dtype, dtype))
    return LaterTensor(dtype, part.original, load=load, place=place)


def _elements(path: Path, part: Part, cell: str) -> Bytes:
    kind = np.dtype(cell).newbyteorder("<")
    values = np.fromfile(path, kind, math.prod(part.shape), offset=part.start)
    wanted = None if part.origin is None else part.origin.format
    try:
        whole = put_back(values.reshape(part.shape), part.format, part.original, wanted)
    except ValueError as error:
        raise CorruptError(path, f"{part.role.value} {part.index}: {error}") from error
    return np.ascontiguousarray(whole).astype(cell, copy=False).reshape(-1).view(np.uint8)
