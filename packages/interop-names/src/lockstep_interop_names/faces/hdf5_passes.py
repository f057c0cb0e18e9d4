"""The `.h5` of torch.utils.dumper: `/{operator}/{number}/{input|output}/{parameter}`, numbers in order of time."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.files import replacing
from lockstep.recordings import Array, Call, Phase, TensorRecord
from lockstep_interop_names.faces.api_calls import ApiPass, place_of

_TENSOR, _NUMBERS, _INTEGER, _TRUTH, _DOUBLE = 0, 2, 3, 4, 5
"""Codes of what a dataset is (`Type`), as the tool publishes them."""
_DTYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11,
}  # fmt: skip
_DEVICES = {"cpu": 0, "cuda": 1, "npu": 10}
_ND = 2


@dataclass(slots=True)
class Hdf5Pass:
    """One pass of an operator in such a file.

    op, number: `linear`, or `LinearBackward`; and its place in time.
    entering, leaving: What went in and came out, by parameter.
    settings: Plain numbers among the arguments, by parameter.
    device: Where it ran: "cpu".
    dtypes: Dtypes that NumPy has not, by part and parameter (`input/arg_0`): their elements are wider here.
    """

    op: str
    number: int
    entering: dict[str, Array] = field(default_factory=dict)
    leaving: dict[str, Array] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    dtypes: dict[str, str] = field(default_factory=dict)


def hdf5_name(one: ApiPass) -> str:
    """Return the name of a pass: `layer_norm` forward, `LayerNormBackward` backward."""
    name = one.api[1].rpartition(".")[2]
    if one.phase is Phase.FORWARD:
        return name
    return "".join(part.capitalize() for part in name.split("_")) + "Backward"


def hdf5_label(record: TensorRecord, call: Call) -> str:
    """Return the name of a tensor within its pass: `arg_0`, `arg_2_1`, `arg_weight`."""
    return f"arg_{place_of(record, call).replace('.', '_')}"


def hdf5_pass(one: ApiPass, number: int) -> Hdf5Pass:
    """A recorded pass as such a file has it. Raises LookupError if its tensors were not saved whole."""
    made = Hdf5Pass(hdf5_name(one), number)
    for what, records, into in (
        ("input", one.entering, made.entering),
        ("output", one.leaving, made.leaving),
    ):
        for record in records:
            name = hdf5_label(record, one.call)
            into[name] = record.load()
            made.device = record.content.device.partition(":")[0] or made.device
            if record.dtype != str(into[name].dtype):
                made.dtypes[f"{what}/{name}"] = record.dtype
    if one.phase is Phase.FORWARD:
        for key, value in one.call.arguments.items():
            start, _, place = key.partition(".")
            if start in ("args", "kwargs") and _type_of(value) is not None:
                made.settings[f"arg_{place.replace('.', '_')}"] = value
    return made


def write_hdf5(path: Path, passes: Iterable[Hdf5Pass]) -> int:
    """Write a file of passes, in place of one that is there; how many tensors it holds.

    Raises UsageError if h5py is not installed. Raises OSError if it cannot be written.
    """
    count = 0
    with replacing(path) as aside, h5py(path).File(aside, "w") as file:
        for one in passes:
            for what, tensors in (("input", one.entering), ("output", one.leaving)):
                for name, array in tensors.items():
                    place = f"/{one.op}/{one.number}/{what}/{name}"
                    attributes = file.create_dataset(place, data=array).attrs
                    dtype = one.dtypes.get(f"{what}/{name}", str(array.dtype))
                    attributes.update(
                        Type=_TENSOR, DataType=_DTYPES.get(str(array.dtype), 1), FormatType=_ND, dtype=dtype,
                        DeviceType=_DEVICES.get(one.device, 1), Stride=_strides(array.shape),
                    )  # fmt: skip
                    count += 1
            for name, value in one.settings.items():
                place = f"/{one.op}/{one.number}/input/{name}"
                file.create_dataset(place, data=value).attrs.update(
                    Type=_type_of(value), DeviceType=_DEVICES.get(one.device, 1)
                )
    return count


def _type_of(value: Any) -> int | None:
    """The code of a plain argument; None for what has none."""
    if isinstance(value, list):
        whole = value and all(type(one) is int for one in value)
        return _NUMBERS if whole else None
    return {bool: _TRUTH, int: _INTEGER, float: _DOUBLE}.get(type(value))


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]


def h5py(path: Path) -> Any:
    """The library. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise UsageError(
            f"{path}: .h5 files need h5py; pip install 'lockstep-numerics[interop-names]'"
        ) from error
