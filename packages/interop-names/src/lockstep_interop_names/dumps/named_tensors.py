"""Tensors by name, in files of many or of one: `.npy`, `.npz`, `.safetensors`, `.h5`, `.pt` (no pickle is run).

Each is read once, for what tells it from others, and then stays where it lies.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS, size_of
from lockstep.recordings import Bytes, LaterTensor, Shard
from lockstep_interop_names.dumps.hdf5_file import data_sets
from lockstep_interop_names.dumps.probe_leaves import narrowed, npy_in
from lockstep_interop_names.dumps.torch_file import tensors_in
from lockstep_interop_names.dumps.zip_member import opened_member

Named = Iterator[tuple[str, LaterTensor]]
_DAMAGED = (
    ValueError,
    EOFError,
    OSError,
    KeyError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
)


def named_tensors(path: Path) -> Named:
    """The tensors of one file, each by its name there; of a `.npy` file by "".

    Raises CorruptError if the file is damaged, a link, or holds what is no tensor.
    """
    size_of(path)
    yield from _FILES[path.suffix.lower()](path)


def _of_npy(path: Path) -> Named:
    yield "", npy_in(path)


def _of_npz(path: Path) -> Named:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                yield info.filename.removesuffix(".npy"), _of_member(path, archive, info)
    except _DAMAGED as error:
        raise CorruptError(path, f"is not a .npz file of numbers, or damaged ({error})") from error


def _of_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> LaterTensor:
    with opened_member(archive, info) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    claimed = dtype.itemsize * int(np.prod(shape, dtype=object))
    if dtype.hasobject or claimed > info.file_size or claimed > MOST_ELEMENTS:
        raise ValueError(f"{info.filename} is cut off, or holds objects")
    load = partial(_bytes_of_member, path, info.filename)
    return LaterTensor(
        str(dtype.newbyteorder("=")), shape, load=load, place=f"{path}:{info.filename}"
    )


def _bytes_of_member(path: Path, name: str) -> Bytes:
    try:
        with (
            zipfile.ZipFile(path) as archive,
            opened_member(archive, archive.getinfo(name)) as file,
        ):
            values = np.lib.format.read_array(file, allow_pickle=False)
    except _DAMAGED as error:
        raise CorruptError(path, f"cannot be read ({error})") from error
    values = np.ascontiguousarray(values)
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(-1).view(np.uint8)


def _of_safetensors(path: Path) -> Named:
    for name, dtype, shape in Shard(path).listed():
        load = partial(_bytes_of_safetensors, path, name)
        yield name, LaterTensor(dtype, shape, load=load, place=f"{path}:{name}")


def _bytes_of_safetensors(path: Path, name: str) -> Bytes:
    return Shard(path).undecoded(name).view(np.uint8)


def _of_hdf5(path: Path) -> Named:
    for one in data_sets(path):
        if one.tensor is not None:
            was = one.attributes.get("dtype") if one.tensor.dtype == "float32" else None
            yield one.path, narrowed(one.tensor) if was == "bfloat16" else one.tensor


_FILES: dict[str, Callable[[Path], Named]] = {
    ".npy": _of_npy, ".npz": _of_npz, ".safetensors": _of_safetensors, ".pt": tensors_in, ".pth": tensors_in,
    ".h5": _of_hdf5, ".hdf5": _of_hdf5,
}  # fmt: skip
SUFFIXES = frozenset(_FILES)
"""Of the files that are read."""
