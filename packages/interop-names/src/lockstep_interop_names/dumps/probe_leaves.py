"""The values in a record of mindstudio-probe: tensors with their numbers, plain arguments, containers of both."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import CorruptError
from lockstep.files import MOST_ELEMENTS
from lockstep.recordings import (
    Bytes,
    LaterTensor,
    Note,
    NoteKind,
    ReadLater,
    ReadTensor,
    Role,
    Statistics,
    is_floating,
    statistics_of,
)
from lockstep_interop_names.dumps.places import file_in
from lockstep_interop_names.dumps.torch_file import tensors_in

_DEPTH = 32
_CRC_DIGITS = 8


def tensors_of(
    file: Path, tensors: Path, value: Any, name: str, role: Role
) -> Iterator[ReadTensor]:
    """The tensors of a value, each by where it stands in it: `args.1.0`.

    file, tensors: The dump, for messages, and the folder of its tensors.
    value: As the dump writes it.
    name: What the value is called.

    Raises CorruptError if a tensor makes no sense.
    """
    found = list(_leaves(value, name, _DEPTH))
    # One result is "result", as a value of parameters is "weight": the dump puts a list around both.
    alone = name == "result" and isinstance(value, list) and len(value) == 1
    for label, leaf in found:
        if role in (Role.PARAM, Role.PARAM_GRAD):
            label = (
                label.removeprefix(".").removesuffix(".0")
                if role is Role.PARAM_GRAD
                else label.removeprefix(".")
            )
        elif alone:
            label = "result" + label.removeprefix("result.0")
        yield ReadTensor(role, label, _tensor(file, tensors, label, leaf))


def arguments_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Plain arguments of a record, by position and name."""
    given = body.get("input_args")
    named = body.get("input_kwargs")
    plain = {
        f"args.{number}": one for number, one in enumerate(given if isinstance(given, list) else ())
    }
    plain.update(
        (f"kwargs.{key}", one) for key, one in (named.items() if isinstance(named, dict) else ())
    )
    return {
        key: _plain(one, _DEPTH) for key, one in plain.items() if not any(_leaves(one, "", _DEPTH))
    }


def _is_tensor(value: Mapping[str, Any]) -> bool:
    return str(value.get("type", "")).endswith("Tensor") and "shape" in value and "dtype" in value


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, dict) and _is_tensor(value):
        yield name, value
    elif isinstance(value, (dict, list)) and depth:
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(one, f"{name}.{key}", depth - 1)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        return [_plain(one, depth - 1) for one in value] if depth else None
    if isinstance(value, dict):
        if "value" in value and "type" in value:
            return _plain(value["value"], depth - 1) if depth else None
        return {str(key): _plain(one, depth - 1) for key, one in value.items()} if depth else None
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _tensor(file: Path, tensors: Path, name: str, leaf: Mapping[str, Any]) -> LaterTensor:
    dtype = str(leaf["dtype"]).rpartition(".")[2].lower()
    shape = leaf["shape"]
    if not isinstance(shape, list) or not all(
        type(extent) is int and extent >= 0 for extent in shape
    ):
        raise CorruptError(file, f"the tensor {name} has no shape", advice="dump again")
    if math.prod(shape) > MOST_ELEMENTS:
        raise CorruptError(
            file, f"the tensor {name} has the impossible shape {shape}", advice="dump again"
        )
    numbers, note = _statistics(leaf)
    known = LaterTensor(dtype, tuple(shape), numbers, _digest(leaf, dtype, shape), None, note)
    written = leaf.get("data_name")
    return known if not isinstance(written, str) else with_file(file_in(tensors, written), known)


def _digest(leaf: Mapping[str, Any], dtype: str, shape: list[int]) -> str | None:
    if not math.prod(shape):
        return f"empty:{dtype}{shape}"
    written = leaf.get("md5")
    if not isinstance(written, str) or not written:
        return None
    return digest_of(written, dtype, shape)


def digest_of(written: str, dtype: str, shape: list[int]) -> str:
    """A digest as such a tool writes it, which is a CRC-32 where it has eight digits, told apart from other kinds."""
    kind = "crc32" if len(written) == _CRC_DIGITS else f"of {len(written)} digits"
    return f"{kind}:{written}:{dtype}{shape}"


def _statistics(leaf: Mapping[str, Any]) -> tuple[Statistics | None, str]:
    """Its numbers, NaN for those that were left out; and what is to be known about them."""
    return statistics_in([leaf.get(key) for key in ("Max", "Min", "Mean", "Norm")], leaf["shape"])


def statistics_in(written: Sequence[Any], shape: Sequence[int]) -> tuple[Statistics | None, str]:
    """Numbers about a tensor, given its largest, smallest, mean and norm as they were written, None for none."""
    high, low, mean, norm = map(_number, written)
    if high is None or low is None:
        return None, "" if not math.prod(shape) else "no numbers of it were written"
    nan = math.isnan(high) or math.isnan(low)
    infinite = math.isinf(high) or math.isinf(low)
    least, most, middle, size = (
        math.nan if one is None or not math.isfinite(one) else one
        for one in (low, high, mean, norm)
    )
    if nan or infinite or size < 0:  # the mean and the norm are of all elements then
        middle = size = math.nan
    numbers = Statistics(least, most, middle, size, int(nan), int(infinite and not nan), 0)
    return numbers, NoteKind.UNCOUNTED.value if nan or infinite else ""


def _number(value: Any) -> float | None:
    if isinstance(value, (bool, int, float)):
        return float(value)
    return None


def with_file(path: Path, known: LaterTensor) -> LaterTensor:
    """The same with its elements, where the file is there.

    Raises CorruptError if the file holds another tensor than the dump says, or none.
    """
    if not path.exists():
        return replace(known, note=known.note or str(Note(NoteKind.FILE_MISSING, path.name)))
    found = (
        npy_in(path) if path.suffix == ".npy" else next((one for _, one in tensors_in(path)), None)
    )
    if found is not None and (found.dtype, known.dtype) == ("float32", "bfloat16"):
        found = narrowed(found)
    if found is None or (found.dtype, found.shape) != (known.dtype, known.shape):
        what = "no tensor" if found is None else f"a {found.dtype} of shape {list(found.shape)}"
        wanted = f"the {known.dtype} of shape {list(known.shape)} of the dump"
        raise CorruptError(path, f"holds {what}, not {wanted}", advice="dump again")
    numbers, note = known.statistics, known.note
    digest = found.digest  # that of what was read, whatever stands in the dump
    if digest is None:
        assert found.load is not None
        digest = f"crc32:{zlib.crc32(found.load().data):08x}:{found.dtype}{list(found.shape)}"
    if is_floating(known.dtype) and (numbers is None or note or math.isnan(numbers.norm)):
        numbers, note = statistics_of(ReadLater(found)()), ""
    return replace(found, statistics=numbers, digest=digest, note=note)


def narrowed(found: LaterTensor) -> LaterTensor:
    """A bfloat16 that was written as float32, which other formats have."""
    widened = found.load
    assert widened is not None

    def load() -> Bytes:
        return (widened().view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)

    return replace(found, dtype="bfloat16", load=load, digest=None)


def npy_in(path: Path) -> LaterTensor:
    """A tensor of a `.npy` file, which holds no code."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise CorruptError(
            path, f"is not a .npy file of numbers, or cut off ({error})", advice="dump again"
        ) from error

    def load() -> Bytes:
        values = np.ascontiguousarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(-1).view(np.uint8)

    return LaterTensor(str(array.dtype.newbyteorder("=")), array.shape, load=load, place=str(path))
