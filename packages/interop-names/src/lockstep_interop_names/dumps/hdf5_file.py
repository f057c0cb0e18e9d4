"""Data sets of an HDF5 file by their paths, none of another file: links out of it and storage elsewhere are refused."""

from __future__ import annotations

import importlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import CorruptError, UsageError
from lockstep.files import size_of
from lockstep.recordings import Bytes, LaterTensor

_DEPTH = 32
_MOST_OBJECTS = 1 << 20
_PACKED = 1100
"""How much smaller a compressed data set can be: deflate gets to 1032 at best (RFC 1951)."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set: its path without the first slash, its attributes, and its values where they are numbers."""

    path: str
    attributes: Mapping[str, Any]
    tensor: LaterTensor | None


def data_sets(path: Path) -> Iterator[DataSet]:
    """Every data set of a file, in the order in which they were made where the file keeps that, else by name.

    Raises CorruptError if the file is damaged, or leads to others. Raises UsageError if h5py is not installed.
    """
    h5py = _h5py(path)
    size = size_of(path)
    try:
        with h5py.File(path, "r") as file:
            found = list(_below(h5py, path, file, "", size, [0], _DEPTH))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise CorruptError(path, f"is not an HDF5 file, or damaged ({error})") from error
    yield from found


def _below(
    h5py: Any, path: Path, group: Any, name: str, size: int, seen: list[int], depth: int
) -> Iterator[DataSet]:
    seen[0] += 1
    if not depth or seen[0] > _MOST_OBJECTS:
        raise CorruptError(path, "holds groups too deep within each other, or too many")
    for key in group:
        where = f"{name}/{key}" if name else key
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise CorruptError(path, f"{where} is a link, and leads elsewhere")
        one = group[key]
        if isinstance(one, h5py.Group):
            yield from _below(h5py, path, one, where, size, seen, depth - 1)
        elif isinstance(one, h5py.Dataset):
            if one.external or one.is_virtual:
                raise CorruptError(path, f"{where} is kept in another file")
            yield DataSet(where, dict(one.attrs), _tensor(path, where, one))


def _tensor(path: Path, where: str, one: Any) -> LaterTensor | None:
    if one.shape is None or one.dtype.kind not in "fciub":
        return None
    count = math.prod(one.shape)
    if count * one.dtype.itemsize > _PACKED * one.id.get_storage_size():
        raise CorruptError(path, f"{where} claims the shape {one.shape}, and holds less")
    dtype, shape = str(one.dtype.newbyteorder("=")), one.shape
    start = _start_of(one)
    if start is None:
        load = partial(_bytes_of, path, where)
    else:  # without the library, which takes longer to open a file than most tensors take to be read
        load = partial(_mapped, path, path.stat().st_mtime_ns, start, count * one.dtype.itemsize)
    return LaterTensor(dtype, shape, load=load, place=f"{path}:{where}")


def _bytes_of(path: Path, where: str) -> Bytes:
    h5py = _h5py(path)
    try:
        with h5py.File(path, "r") as file:
            values = np.ascontiguousarray(file[where][()])
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise CorruptError(path, f"{where} cannot be read ({error})") from error
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(-1).view(np.uint8)


def _start_of(one: Any) -> int | None:
    """Where a data set lies as it is, row after row in this machine's order; None for any other."""
    plain = one.chunks is None and not one.external and one.dtype.isnative
    start = one.id.get_offset() if plain and one.size else None
    return None if start is None else int(start)


def _mapped(path: Path, written: int, start: int, size_bytes: int) -> Bytes:
    """The bytes of such a data set, where they lie in the file."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime_ns != written:
                raise ValueError("it has changed since it was opened")
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(held, np.uint8, size_bytes, start)
    except (OSError, ValueError) as error:
        raise CorruptError(path, f"cannot be read ({error})") from error


def _h5py(path: Path) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise UsageError(
            f"{path}: .h5 files need h5py; pip install 'lockstep-numerics[hdf5]'"
        ) from error
