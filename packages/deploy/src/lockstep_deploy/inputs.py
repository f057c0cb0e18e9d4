"""Read or draw the inputs of a model, and check them against its signature."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from lockstep.errors import UsageError
from lockstep.terminal import listed
from lockstep_deploy.engines import bfloat16, engine
from lockstep_deploy.model_file import TensorSpec

Array = npt.NDArray[Any]

MOST_ELEMENTS = 1 << 31
"""The most elements that a text may ask for: 8 GB of float32."""

_SPEC = re.compile(
    r"(?P<name>[\w./:-]+?):(?P<dtype>[a-z]+\d*)\[(?P<shape>[\d,\s]*)\](?:<(?P<below>\d+))?"
)
_DTYPES = ("bfloat16", "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
           "uint32", "uint64")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """An input to draw: floats from the standard normal distribution, whole numbers from 0 to below `below`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    below: int = 2

    def array(self, seed: int) -> Array:
        """The same numbers for the same name and seed, on every machine.

        seed: Any whole number from 0.
        """
        generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(self.name.encode())]))
        kind = bfloat16() if self.dtype == "bfloat16" else np.dtype(self.dtype)
        if _is_float(self.dtype):
            return np.asarray(generator.standard_normal(self.shape), dtype=kind)
        return np.asarray(generator.integers(0, self.below, self.shape), dtype=kind)


def read_inputs(
    given: Sequence[str],
    signature: Sequence[TensorSpec],
    *,
    seed: int = 0,
    free: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """The inputs of a model by name, in the signature's order.

    given: Files (.npz, .npy, .safetensors, .pt) and texts such as `x:float32[1,3,32,32]` or `ids:int64[2,16]<1000`. An
        array without a name of the model (`arr_0`, a .npy) is its next input in order. Without any, all are drawn.
    signature: What the model takes; without one, whatever is given.
    seed: Of what is drawn.
    free: Extents of the signature's free axes by name, for inputs that are drawn without a text; 1 where none is said.

    Raises UsageError if something cannot be read, is missing, or does not fit the signature.
    """
    found = named(given, signature, seed=seed)
    if not signature:
        return found
    if not given:
        found = {spec.name: _drawn_by_signature(spec, free or {}).array(seed) for spec in signature}
    return checked(found, signature)


def named(
    given: Sequence[str], signature: Sequence[TensorSpec], *, seed: int = 0
) -> dict[str, Array]:
    """Arrays as they are given, by the model's names of them; `read_inputs` checks them too."""
    found: dict[str, Array] = {}
    for one in given:
        for name, array in _arrays(one, seed).items():
            found[_name_in(name, signature, found)] = array
    if len(found) == len(signature) == 1 and isinstance(next(iter(found)), AnyName):
        return {signature[0].name: next(iter(found.values()))}
    return found


class AnyName(str):
    """The name of a file's only array, which is a model's only input whatever that is called."""

    __slots__ = ()


def input_sets(given: Sequence[str], *, seed: int = 0) -> list[dict[str, Array]]:
    """Several sets of inputs: a name that was given before begins the next one; what that leaves out is the first's.

    given, seed: As `read_inputs` takes them.

    Raises UsageError if something cannot be read.
    """
    sets: list[dict[str, Array]] = [{}]
    for number, one in enumerate(given):
        arrays = _arrays(one, seed + number if len(sets) > 1 else seed)
        if any(name in sets[-1] and not re.fullmatch(r"arr_\d+", name) for name in arrays):
            sets.append({})
            arrays = _arrays(one, seed + len(sets) - 1)
        sets[-1].update(arrays)
    return [sets[0] | one for one in sets]


def checked(
    found: Mapping[str, Array],
    signature: Sequence[TensorSpec],
    *,
    option: str = "--inputs",
    are_samples: bool = False,
) -> dict[str, Array]:
    """Inputs in the signature's order, each with the dtype and the shape that it says.

    found, signature: By name, and what the model takes.
    option: How the user gave them.
    are_samples: Whether the first axis is that of samples, of which there may be any number.

    Raises UsageError if one is missing, unknown, or of another dtype or shape.
    """
    wanted = [spec.name for spec in signature]
    missing = [str(spec) for spec in signature if spec.name not in found]
    unknown = [name for name in found if name not in wanted]
    if missing or unknown:
        parts = [
            *([f"lacks {listed(missing)}"] if missing else []),
            *([f"has {listed(unknown)}, which the model does not take"] if unknown else []),
        ]
        raise UsageError(
            f"{option} {' and '.join(parts)}; the model takes {listed([str(one) for one in signature], 9)}"
        )
    extents: dict[str, tuple[int, str]] = {}
    for spec in signature:
        free = replace(spec, shape=(None, *spec.shape[1:])) if are_samples and spec.shape else spec
        try:
            _check_one(free, found[spec.name], extents)
        except ValueError as error:
            more = ", samples along the first axis" if are_samples else ""
            raise UsageError(
                f"{option} {spec.name} {error}; the model takes {spec}{more}"
            ) from None
    return {name: found[name] for name in wanted}


def spec_of(text: str) -> Drawn:
    """An input to draw, of a text such as `ids:int64[2,16]<1000`.

    Raises UsageError if it is no such text, or asks for too much.
    """
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--inputs {text}: neither a file that is there ({', '.join(_READERS)}) nor NAME:DTYPE[SHAPE], as in"
            " x:float32[1,3,32,32] or ids:int64[2,16]<1000"
        )
    if match["dtype"] not in _DTYPES:
        raise UsageError(
            f"--inputs {text}: no dtype {match['dtype']}; there are {', '.join(_DTYPES)}"
        )
    shape = tuple(int(one) for one in match["shape"].split(",") if one.strip())
    if np.prod(np.array(shape, dtype=object)) > MOST_ELEMENTS:
        raise UsageError(
            f"--inputs {text}: more than {MOST_ELEMENTS:,} elements; give a smaller shape"
        )
    below = int(match["below"] or 2)
    if match["below"] is not None and (_is_float(match["dtype"]) or below < 1):
        raise UsageError(f"--inputs {text}: <{below} bounds whole numbers, from 1; leave it out")
    return Drawn(match["name"], match["dtype"], shape, below)


def _arrays(given: str, seed: int) -> dict[str, Array]:
    path = Path(given)
    if path.suffix.lower() in _READERS and ":" not in path.name:
        found = _file_arrays(path)
        return {AnyName(name): one for name, one in found.items()} if len(found) == 1 else found
    drawn = spec_of(given)
    return {drawn.name: drawn.array(seed)}


def _file_arrays(path: Path) -> dict[str, Array]:
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            return _READERS[suffix](file)
    except (
        OSError,
        ValueError,
        EOFError,
        LookupError,
        TypeError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path}: cannot be read as {suffix} ({said}); give arrays without objects in them"
        ) from error


def _numpy(file: BinaryIO) -> dict[str, Array]:
    """Arrays of a .npy or .npz file, without objects."""
    found = np.load(file, allow_pickle=False)
    return {"arr_0": found} if isinstance(found, np.ndarray) else dict(found)


_SAFE_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
                "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?"}  # fmt: skip


def _safetensors(file: BinaryIO) -> dict[str, Array]:
    """Tensors of a .safetensors file; its own reader for NumPy has no bfloat16."""
    try:
        found = engine("safetensors").deserialize(file.read())
    except engine("safetensors").SafetensorError as error:
        raise ValueError(str(error)) from error
    kinds = {"BF16": bfloat16(), **_SAFE_DTYPES}
    return {
        name: np.frombuffer(one["data"], kinds[one["dtype"]]).reshape(one["shape"])
        for name, one in found
    }


def _pt(file: BinaryIO) -> dict[str, Array]:
    """Tensors that `torch.save` wrote, by name or in order."""
    from lockstep_deploy.calls import saved_tensors  # torch is slow to load

    return saved_tensors(file)


def _is_float(dtype: str) -> bool:
    return dtype == "bfloat16" or np.dtype(dtype).kind == "f"


_READERS: dict[str, Callable[[BinaryIO], dict[str, Array]]] = {
    ".npz": _numpy,
    ".npy": _numpy,
    ".safetensors": _safetensors,
    ".pt": _pt,
}


def _name_in(name: str, signature: Sequence[TensorSpec], found: Mapping[str, Array]) -> str:
    """The model's name of an array; one that NumPy counted is the next input."""
    wanted = [spec.name for spec in signature]
    if name in wanted or not re.fullmatch(r"arr_\d+", name):
        return name
    free = [one for one in wanted if one not in found]
    return free[0] if free else name


def _drawn_by_signature(spec: TensorSpec, free: Mapping[str, int]) -> Drawn:
    if spec.shape is None or spec.dtype not in _DTYPES:
        raise UsageError(f"--inputs: nothing can be drawn for {spec}; give it in a file")
    shape = tuple(one if isinstance(one, int) else free.get(one or "", 1) for one in spec.shape)
    return spec_of(f"{spec.name}:{spec.dtype}[{','.join(map(str, shape))}]")


def _check_one(spec: TensorSpec, array: Array, extents: dict[str, tuple[int, str]]) -> None:
    if spec.dtype and str(array.dtype) != spec.dtype:
        raise ValueError(f"is of {array.dtype}")
    if spec.shape is None:
        return
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(want, int) or have == want
        for have, want in zip(array.shape, spec.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"has the shape {list(array.shape)}")
    for have, want in zip(array.shape, spec.shape, strict=True):
        if isinstance(want, str):
            known, by = extents.setdefault(want, (have, spec.name))
            if known != have:
                raise ValueError(f"has {have} along {want!r}, and {by} has {known}")
