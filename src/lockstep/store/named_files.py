"""Files that tensors are written to for others, by their suffix; one tensor is in memory at a time."""

from __future__ import annotations

import importlib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.core.errors import UsageError
from lockstep.core.records import Array, TensorRecord
from lockstep.store.later_tensors import ReadLater
from lockstep.store.stored_contents import StoredTensor
from lockstep.store.tensors import can_store, write_named


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """One whole tensor to be written by a name; it is read at that moment.

    Parameters
    ----------
    name
        As in `RANK/stepN/MODULE/OPERATOR#CALL/ROLE.NAME`, where NAME is what the code calls it: "args.0", "0.weight".
    dtype, shape
        As recorded, e.g. "bfloat16", (4, 128).
    stored
        Where it lies.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: StoredTensor | ReadLater

    def widened(self) -> Array:
        """The tensor as NumPy has it, of this shape; bfloat16 and float8 as float32, exactly.

        Raises
        ------
        CorruptError
            If it is not there or is damaged.
        """
        return self.stored()

    def undecoded(self) -> Array:
        """Its elements as they were in memory, shape (numel,), bfloat16 as uint16 and float8 as uint8.

        Raises
        ------
        CorruptError
            If it is not there or is damaged.
        """
        return self.stored.undecoded(self.dtype)


def whole_tensor(name: str, record: TensorRecord) -> NamedTensor | None:
    """The tensor of a record under a name; None where it was not saved whole."""
    content = record.content
    if isinstance(content.loader, (StoredTensor, ReadLater)) and can_store(content.dtype):
        return NamedTensor(name, content.dtype, content.shape, content.loader)
    return None


Writer = Callable[[Path, Sequence[NamedTensor]], None]
"""Writes tensors to a new file; raises `OSError` if it cannot."""


def writer_for(path: Path) -> Writer:
    """Return the writer of files with this suffix.

    Raises
    ------
    UsageError
        If no format has it, or what writes it is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        raise UsageError(f"{path}: give a name that ends in {', '.join(_WRITERS)}")
    if suffix in (".h5", ".hdf5"):
        _h5py(path)
    return _WRITERS[suffix]


def _write_safetensors(path: Path, tensors: Sequence[NamedTensor]) -> None:
    with path.open("xb") as file:
        write_named(file, [(one.name, one.dtype, one.shape, one.undecoded) for one in tensors])


def _write_npz(path: Path, tensors: Sequence[NamedTensor]) -> None:
    with zipfile.ZipFile(path, "x") as archive:
        for tensor in tensors:
            with archive.open(f"{tensor.name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, tensor.widened(), allow_pickle=False)


def _write_hdf5(path: Path, tensors: Sequence[NamedTensor]) -> None:
    with _h5py(path).File(path, "x") as file:
        for tensor in tensors:
            file.create_dataset(tensor.name, data=tensor.widened()).attrs["dtype"] = tensor.dtype


def _write_text(path: Path, tensors: Sequence[NamedTensor]) -> None:
    with path.open("x", encoding="utf-8") as file:
        for tensor in tensors:
            array = tensor.widened()
            file.write(f"# {tensor.name} {tensor.dtype} {list(tensor.shape)}\n")
            if array.size:
                rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
                np.savetxt(file, rows, fmt=[_digits(array.dtype)] * rows.shape[1])


def _digits(dtype: np.dtype[Any]) -> str:
    """As many digits as tell two numbers of a dtype apart: 9 for float32, 17 for float64 (IEEE 754-2019, 5.12.2)."""
    if dtype.kind in "biu":
        return "%d"
    parts = 2 if dtype.kind == "c" else 1
    digits = 17 if dtype.itemsize == 8 * parts else 9
    return f"%.{digits}g" if parts == 1 else f"%.{digits}g%+.{digits}gj"


def _h5py(path: Path) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise UsageError(
            f"{path}: .h5 files need h5py; pip install 'lockstep-numerics[hdf5]', or give another suffix"
        ) from error


_WRITERS: dict[str, Writer] = {
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".txt": _write_text,
}
