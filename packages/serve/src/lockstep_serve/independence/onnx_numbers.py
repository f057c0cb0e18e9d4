"""Shape arithmetic of ONNX, followed with symbols: sizes that are taken from shapes and become shapes again."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper

from lockstep_serve.independence.extents import Extent, product, symbol
from lockstep_serve.independence.values import ONE, Mixes, Shape, Value
from lockstep_serve.servable import Array

Inputs = Sequence["Value | None"]
Attributes = Mapping[str, Any]


_MOST = 4096


def from_array(array: Array) -> Array | None:
    """Whole numbers as extents; None of others."""
    return None if array.dtype.kind not in "iub" else _extents(array)


def _extents(array: Array) -> Array:
    found = np.empty(array.shape, object)
    for at in np.ndindex(array.shape):
        found[at] = Extent(int(array[at]))
    return found


def plain(numbers: Array) -> Array | None:
    """Extents as whole numbers; None where one is a symbol."""
    flat = [*numbers.ravel()]
    if any(one.symbols for one in flat):
        return None
    return np.array([one.number for one in flat], "int64").reshape(numbers.shape)


def value_of(numbers: Array) -> Value:
    """Return a value that holds these numbers."""
    known = plain(numbers)
    below = (
        None if known is None or not known.size or known.min() < 0 else Extent(int(known.max()) + 1)
    )
    return Value(tuple(map(Extent, numbers.shape)), numbers=numbers, below=below)


def folded(kind: str, inputs: Inputs, attributes: Attributes) -> Array | None:
    """The numbers that an operator gives; None where it is none of those that compute sizes, or they are not known."""
    if kind in ("Shape", "Size"):
        value = inputs[0]
        if value is None or value.shape is None:
            return None
        taken = value.shape[attributes.get("start", 0) : attributes.get("end")]
        return _array(taken) if kind == "Shape" else np.array(product(value.shape), object)
    fold = _FOLDS.get(kind)
    if fold is None or not inputs or any(one is not None and one.numbers is None for one in inputs):
        return None
    arrays = [None if one is None else one.numbers for one in inputs]
    try:
        found = fold(arrays, attributes)
    except (TypeError, ValueError, IndexError, KeyError, _UnknownError):
        return None
    if found is None:
        return None
    if isinstance(found, Extent):  # numpy unpacks a single element
        found = _array([found]).reshape(())
    return found if found.size <= _MOST else None


class _UnknownError(Exception):
    """It depends on a symbol."""


def _array(extents: Sequence[Extent]) -> Array:
    found = np.empty(len(extents), object)
    found[:] = extents
    return found


def _ints(array: Array | None) -> list[int]:
    if array is None or any(one.symbols for one in array.ravel()):
        raise _UnknownError
    return [one.number for one in array.ravel()]


def _each(compute: Callable[..., Extent]) -> Callable[[Sequence[Any], Attributes], Any]:
    return lambda arrays, _: np.frompyfunc(compute, len(arrays), 1)(*arrays)


def _equal(one: Extent, other: Extent) -> Extent:
    if one == other or (not one.symbols and not other.symbols):
        return Extent(int(one == other))
    if min(one.number, other.number) < 0 < max(one.number, other.number):
        return Extent(0)  # an extent is never negative
    raise _UnknownError


def _where(chosen: Extent, one: Extent, other: Extent) -> Extent:
    if chosen.symbols:
        raise _UnknownError
    return one if chosen.number else other


def _cast(arrays: Sequence[Any], attributes: Attributes) -> Any:
    return arrays[0] if attributes["to"] in (6, 7) else None


def _slice(arrays: Sequence[Any], attributes: Attributes) -> Any:
    data, *rest = arrays
    if "starts" in attributes:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes"), None
    else:
        starts, ends = _ints(rest[0]), _ints(rest[1])
        axes = _ints(rest[2]) if len(rest) > 2 and rest[2] is not None else None
        steps = _ints(rest[3]) if len(rest) > 3 and rest[3] is not None else None
    cuts = [slice(None)] * data.ndim
    for at, axis in enumerate(axes if axes is not None else range(len(starts))):
        cuts[axis] = slice(starts[at], ends[at], steps[at] if steps else None)
    return data[tuple(cuts)]


def _squeezed(arrays: Sequence[Any], attributes: Attributes) -> Any:
    axes = _ints(arrays[1]) if len(arrays) > 1 and arrays[1] is not None else attributes.get("axes")
    return np.squeeze(arrays[0], None if axes is None else tuple(axes))


def _unsqueezed(arrays: Sequence[Any], attributes: Attributes) -> Any:
    axes = _ints(arrays[1]) if len(arrays) > 1 else attributes["axes"]
    return np.expand_dims(arrays[0], tuple(axes))


def _constant_of_shape(arrays: Sequence[Any], attributes: Attributes) -> Array | None:
    fill = attributes.get("value")
    number = np.zeros(1, "f4") if fill is None else numpy_helper.to_array(fill)
    extents = _ints(arrays[0])
    if number.dtype.kind not in "iub" or np.prod(extents) > _MOST:
        return None
    found = np.empty(extents, object)
    found[...] = Extent(int(number.ravel()[0]))
    return found


def _range(arrays: Sequence[Any], attributes: Attributes) -> Array:
    return _extents(np.arange(*(_ints(one)[0] for one in arrays)))


_FOLDS: dict[str, Callable[[Sequence[Any], Attributes], Array | Extent | None]] = {
    "Add": _each(operator.add), "Sub": _each(operator.sub), "Mul": _each(operator.mul),
    "Div": _each(operator.floordiv), "Mod": _each(operator.mod), "Neg": _each(operator.neg),
    "Equal": _each(_equal), "Where": _each(_where), "Cast": _cast, "Identity": lambda arrays, _: arrays[0],
    "Gather": lambda arrays, told: np.take(arrays[0], np.array(_ints(arrays[1]), int).reshape(arrays[1].shape),
                                           axis=told.get("axis", 0)),
    "Concat": lambda arrays, told: np.concatenate(arrays, axis=told["axis"]),
    "Slice": _slice, "Squeeze": _squeezed, "Unsqueeze": _unsqueezed, "Range": _range,
    "Reshape": lambda arrays, _: arrays[0].reshape(_ints(arrays[1])),
    "ReduceProd": lambda arrays, _: np.array([product(arrays[0].ravel())], object) if len(arrays) == 1 else None,
    "ConstantOfShape": _constant_of_shape,
}  # fmt: skip


def _numbers(value: Value | None) -> list[Extent]:
    if value is None or value.numbers is None:
        raise Mixes("has a shape that is computed by what is not followed")
    return [*value.numbers.ravel()]


def _value(inputs: Inputs) -> Shape:
    first = inputs[0]
    if first is None or first.shape is None:
        raise Mixes("has an input of which the number of axes is not known")
    return first.shape


def _reshaped(inputs: Inputs, attributes: Attributes) -> Shape:
    value = _value(inputs)
    told = (
        [Extent(one) for one in attributes["shape"]]
        if "shape" in attributes
        else _numbers(inputs[1])
    )
    kept = not attributes.get("allowzero", 0)
    found = [value[at] if one == Extent(0) and kept else one for at, one in enumerate(told)]
    free = [at for at, one in enumerate(found) if one == Extent(-1)]
    if free:
        rest = product(one for at, one in enumerate(found) if at != free[0])
        found[free[0]] = product(value) // rest
    return tuple(found)


def _expanded(inputs: Inputs, attributes: Attributes) -> Shape:
    value, told = _value(inputs), tuple(_numbers(inputs[1]))
    rank = max(len(value), len(told))
    pairs = zip(
        (*[ONE] * (rank - len(value)), *value), (*[ONE] * (rank - len(told)), *told), strict=True
    )
    return tuple(_broadcast(*pair) for pair in pairs)


def _broadcast(one: Extent, other: Extent) -> Extent:
    if one.is_one or one == other:
        return other
    if other.is_one or not one.symbols:
        return one
    return symbol("({}|{})", one, other) if other.symbols else other


def _flattened(inputs: Inputs, attributes: Attributes) -> Shape:
    value = _value(inputs)
    axis = attributes.get("axis", 1)
    axis = axis + len(value) if axis < 0 else axis
    return product(value[:axis]), product(value[axis:])


def _tiled(inputs: Inputs, attributes: Attributes) -> Shape:
    return tuple(
        one * times for one, times in zip(_value(inputs), _numbers(inputs[1]), strict=True)
    )


def _blockwise(inputs: Inputs, attributes: Attributes) -> Shape:
    return (*_value(inputs)[:-1], Extent(attributes["N"]))


def _of_two(inputs: Inputs, attributes: Attributes) -> Shape:
    one, other = _value(inputs), _value(inputs[3:])
    if len(one) != len(other):
        raise Mixes("has operands of another number of axes each")
    return tuple(map(_broadcast, one, other))


def _of_shape(inputs: Inputs, attributes: Attributes) -> Shape:
    return tuple(_numbers(inputs[0]))


SHAPES: dict[str, Callable[[Inputs, Attributes], Shape]] = {
    "Reshape": _reshaped, "Expand": _expanded, "Flatten": _flattened, "Tile": _tiled,
    "ConstantOfShape": _of_shape, "MatMulNBits": _blockwise, "QLinearAdd": _of_two, "QLinearMul": _of_two,
}  # fmt: skip
"""Result shapes of operators whose products and symbols ONNX's own inference drops."""
