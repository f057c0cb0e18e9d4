"""Whole tensors read from safetensors shards through a memory map; `lockstep.store.tensors` writes them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Formula, Stored
from lockstep.core.mapped import give_back
from lockstep.core.records import Array, Pieces
from lockstep.store.derived.derived_tensor import Derived, Elements, FormulaError, formula_from_json
from lockstep.store.derived.evaluation import elements_of, pieces_of
from lockstep.store.integrity import Files
from lockstep.store.limits import HEADER_BYTES, MOST_ELEMENTS, size_of, values_of
from lockstep.store.pieces import Decoded, Mapped, decoded
from lockstep.store.schema import shard_name
from lockstep.store.tensors import DTYPES, SAFETENSORS_NAMES, raw_dtype, width_bytes


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFiles:
    """The shards of one rank, opened when they are asked for.

    directory: The rank's directory.
    files: What its files are held against; None for those of this process.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory, self._files = directory, files
        self._shards: dict[int, Shard] = {}

    @property
    def unchecked(self) -> dict[str, str]:
        """Return the marks of the files that were not compared with them yet."""
        return {} if self._files is None else self._files.unchecked

    def load(self, shard: int, number: int | None) -> Array:
        """Decode one tensor; bfloat16 and float8 are widened to float32, exactly.

        Raises CorruptError if there is no such tensor, or what it is made of is damaged.
        """
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        if not isinstance(found, Derived):
            return self._shard(shard).load(number)
        return decoded(self._derived(shard, found), found.dtype)

    def undecoded(self, shard: int, number: int | None, dtype: str) -> Array:
        """The elements of one tensor bit by bit, shape (count,): bfloat16 as uint16, float8 as uint8.

        Raises CorruptError as `load`, or if it is of another dtype.
        """
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        name = found.dtype if isinstance(found, Derived) else found[0]
        if name != SAFETENSORS_NAMES.get(dtype):
            raise CorruptError(self._shard(shard).path, f"tensor {number} is {name}, not {dtype}")
        return self._derived(shard, found) if isinstance(found, Derived) else found[1]

    def _derived(self, shard: int, tensor: Derived) -> Array:
        try:
            return elements_of(tensor, self.find)
        except (FormulaError, RecursionError) as error:
            raise self._unreadable(shard, tensor.number, error) from error

    def open(self, shard: int, number: int | None) -> Pieces:
        """As `load`, to be read in pieces. Raises CorruptError as `load`."""
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        if not isinstance(found, Derived):
            return Decoded(Mapped(found[1]), found[0])
        try:
            return Decoded(pieces_of(found, self.find), found.dtype)
        except (FormulaError, RecursionError) as error:
            raise self._unreadable(shard, number, error) from error

    def _absent(self, shard: int) -> CorruptError:
        return CorruptError(self._shard(shard).path, "tensor None is not in this file")

    def _unreadable(self, shard: int, number: int, error: Exception) -> CorruptError:
        return CorruptError(
            self._shard(shard).path, f"tensor {number} cannot be put together ({error})"
        )

    def close(self) -> None:
        """Let go of all files, and of their pages that count as memory; each is opened again when asked for."""
        self._shards = {}
        give_back()

    def find(self, stored: Stored) -> tuple[str, Array] | Derived:
        """One tensor as it is stored, undecoded. Raises CorruptError if there is no such tensor."""
        return self._shard(stored.shard).find(stored.number)

    def formula(self, stored: Stored) -> Formula | None:
        """The formula that gives a tensor to the last bit; None if it is stored as it is or was corrected.

        Raises CorruptError if there is no such tensor, or its formula is damaged.
        """
        return self._shard(stored.shard).formula(stored.number)

    def find_in_pieces(self, stored: Stored) -> tuple[str, Elements] | Derived:
        """Find as `find`, without counting the read bytes as memory of this process.

        Raises CorruptError if there is no such tensor.
        """
        return self._shard(stored.shard).find_in_pieces(stored.number)

    def check(self, shards: Iterable[int]) -> None:
        """Hold shards against their digests, those that were not yet; no tensor is decoded.

        Raises CorruptError if one was changed.
        """
        if self._files is None:
            return
        for number in shards:
            self._files.check(self.directory / shard_name(number))

    def _shard(self, number: int) -> Shard:
        known = self._shards.get(number)
        if known is None:  # of two threads that open it, the first one counts
            path = self.directory / shard_name(number)
            if self._files is not None:
                self._files.check(path)
            known = self._shards.setdefault(number, Shard(path))
        return known


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Elements of a file, read when asked for; `mapped` are the same in its memory map, `start` is their first byte."""

    path: Path
    mapped: Array
    start: int

    @property
    def size(self) -> int:
        return self.mapped.size

    def __getitem__(self, part: slice) -> Array:
        first, end, _ = part.indices(self.size)
        offset = self.start + first * self.mapped.itemsize
        return np.fromfile(self.path, self.mapped.dtype, end - first, offset=offset)


class Shard:
    """A safetensors file that is opened for reading; tensors are decoded when asked for.

    Raises
    ------
    CorruptError
        If the header is not that of a safetensors file whose every tensor lies inside the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size_of(path)
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CorruptError(path, f"cannot be read as a tensor file ({error})") from error
        self._derived: dict[str, Any] = {}
        self._formulas: dict[int, Formula | None] = {}
        self._base, self._entries = self._read_header()

    def load(self, number: int) -> Array:
        """Decode one tensor that is stored as it is; see `TensorFiles.load`.

        Raises
        ------
        CorruptError
            If the shard does not hold it.
        """
        entry, raw = self._stored(str(number))
        try:
            return decoded(raw, entry.dtype).reshape(entry.shape)
        except ValueError as error:  # more extents than an array can have, or too large ones
            raise CorruptError(
                self.path, f"tensor {number} has an impossible shape ({error})"
            ) from error

    def listed(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each tensor that is stored as it is, in the order of the header."""
        for name, entry in self._entries.items():
            yield name, DTYPES[entry.dtype], entry.shape

    def undecoded(self, name: str) -> Array:
        """Elements of a tensor by its name, shape (count,): bfloat16 as uint16, float8 as uint8.

        Raises
        ------
        CorruptError
            If the file does not hold it.
        """
        return self._stored(name)[1]

    def find(self, number: int) -> tuple[str, Array] | Derived:
        """Return one tensor undecoded: its dtype and elements, shape (count,), or the formula it is derived from.

        Raises
        ------
        CorruptError
            If the shard does not hold it.
        """
        if str(number) in self._derived:
            return self._read_derived(number, self._derived[str(number)])
        entry, raw = self._stored(str(number))
        return entry.dtype, raw

    def formula(self, number: int) -> Formula | None:
        """Return what gives a tensor to the last bit, read once; None if it is stored as it is or was corrected.

        Raises
        ------
        CorruptError
            If the shard does not hold it, or its formula is damaged.
        """
        if number not in self._formulas:
            found, known = self.find(number), None
            if isinstance(found, Derived) and not found.places.size:
                known = found.formula
            self._formulas[number] = known
        return self._formulas[number]

    def find_in_pieces(self, number: int) -> tuple[str, Elements] | Derived:
        """As `find`, without the memory map."""
        found = self.find(number)
        if isinstance(found, Derived):
            return found
        entry = self._entries[str(number)]
        return entry.dtype, _Pieces(self.path, found[1], self._base + entry.start)

    def _stored(self, name: str) -> tuple[_Entry, Array]:
        entry = self._entries.get(name)
        if entry is None:
            raise CorruptError(self.path, f"tensor {name} is not in this file")
        count, start = math.prod(entry.shape), self._base + entry.start
        return entry, np.frombuffer(self._map, raw_dtype(entry.dtype), count, start)

    def _read_derived(self, number: int, value: Any) -> Derived:
        tensor = f"tensor {number}"
        match value:
            case {"dtype": str(dtype), "count": int(count), "block": int(block), "formula": form}:
                pass
            case _:
                raise CorruptError(self.path, f"{tensor} has a malformed formula")
        if width_bytes(dtype) is None:
            raise CorruptError(self.path, f"{tensor} has the unknown dtype {dtype!r}")
        if max(count, block) > MOST_ELEMENTS:
            raise CorruptError(self.path, f"{tensor} has {max(count, block)} elements")
        places, values = (
            np.empty(0, "<u4"),
            np.empty((0, block if block > 0 else 0), raw_dtype(dtype)),
        )
        if f"{number}.places" in self._entries:
            of_places, places = self._stored(f"{number}.places")
            of_values, values = self._stored(f"{number}.values")
            if (
                of_places.dtype not in ("U32", "U64")
                or of_values.dtype != dtype
                or len(of_values.shape) != 2
            ):
                raise CorruptError(self.path, f"{tensor} has malformed corrections")
            values = values.reshape(of_values.shape)
        try:
            return Derived(number, dtype, count, formula_from_json(form), block, places, values)
        except (FormulaError, RecursionError) as error:
            raise CorruptError(self.path, f"{tensor} has a malformed formula ({error})") from error

    def _read_header(self) -> tuple[int, dict[str, _Entry]]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little") if size >= 8 else -1
        if not 2 <= length <= min(size - 8, HEADER_BYTES):
            raise CorruptError(
                self.path, f"header length {length} does not fit a file of {size} bytes"
            )
        try:
            header = values_of(self._map[8 : 8 + length])
        except ValueError as error:
            raise CorruptError(self.path, f"the header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise CorruptError(self.path, "the header is not a JSON object")
        self._derived = self._read_formulas(header.pop("__metadata__", None))
        base = 8 + length
        return base, {
            str(name): self._entry(str(name), value, size - base) for name, value in header.items()
        }

    def _read_formulas(self, metadata: object) -> dict[str, Any]:
        match metadata:
            case {"derived": str(text)}:  # tensors.DERIVED
                pass
            case _:
                return {}
        try:
            formulas = values_of(text)
        except ValueError as error:
            raise CorruptError(self.path, f"its formulas are not JSON ({error})") from error
        if not isinstance(formulas, dict):
            raise CorruptError(self.path, "its formulas are not a JSON object")
        return formulas

    def _entry(self, name: str, value: object, available: int) -> _Entry:
        tensor = f"tensor {name!r}"
        match value:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                pass
            case _:
                raise CorruptError(self.path, f"{tensor} has a malformed header entry")
        width = width_bytes(dtype)
        if width is None:
            raise CorruptError(self.path, f"{tensor} has the unknown dtype {dtype!r}")
        if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
            raise CorruptError(self.path, f"{tensor} has an impossible shape {shape}")
        if not 0 <= start <= end <= available:
            raise CorruptError(
                self.path,
                f"{tensor} lies at bytes {start}-{end} of {available}: the file is cut short",
            )
        if math.prod(shape) * width != end - start:
            raise CorruptError(
                self.path,
                f"{tensor}: shape {shape} of {dtype} does not fill its {end - start} bytes",
            )
        return _Entry(dtype, tuple(shape), start, end)
