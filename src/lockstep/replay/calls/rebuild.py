"""From a recorded call back to a function and its arguments."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lockstep.core.devices import device_of
from lockstep.core.operators import Family, Trait, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.calls.functions import Function, function_of
from lockstep.replay.calls.imported import imported_function
from lockstep.replay.calls.refusals import NO_OPERATOR, CannotReplay

CPU = torch.device("cpu")

_SLICE = re.compile(r"slice\((None|-?\d+), (None|-?\d+), (None|-?\d+)\)")
_NAMED = re.compile(r"torch\.[a-z]\w*")
_NUMBERS = frozenset({"inf", "-inf", "nan"})
_INDEXING = ("__getitem__", "__setitem__")

_FREE_NUMBERS = 1 << 16
"""Product of the whole numbers among the arguments up to which no output is too large to make."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for an input tensor in the arguments of a call."""

    index: int


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A recorded operator call that can be run again.

    op: As recorded.
    function: What the name means.
    args, kwargs: Arguments with a `Slot` for every tensor.
    inputs: Input records by index.
    """

    op: str
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: dict[int, TensorRecord]

    def filled(
        self,
        tensors: Mapping[int, torch.Tensor],
        dtype_of: Callable[[torch.dtype], torch.dtype],
        device: torch.device = CPU,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with tensors in the slots; `dtype_of` translates dtypes among them, `device` stands for devices."""

        def plain(value: Any) -> Any:
            return device if isinstance(value, torch.device) else dtype_of(value)

        args = tuple(_filled(value, tensors, plain) for value in self.args)
        return args, {key: _filled(value, tensors, plain) for key, value in self.kwargs.items()}

    def with_settings(self, other: Rebuilt) -> Rebuilt:
        """The same call with the plain arguments of another of the same form.

        Raises CannotReplay if tensors stand elsewhere among the other's arguments.
        """
        if _form((other.args, other.kwargs)) != _form((self.args, self.kwargs)):
            raise CannotReplay("the two runs pass their tensors in another way")
        return replace(other, inputs=self.inputs)


def rebuild(call: Call) -> Rebuilt:
    """Put a recorded operator call together again.

    Raises
    ------
    CannotReplay
        If the operator is not one of torch's, or its arguments were not recorded completely.
    """
    if call.kind is not CallKind.OPERATOR:
        raise CannotReplay(f"{call.site.op} is not an operator")
    imported = imported_function(call.site.op)
    function = imported or function_of(call.site.op)
    if function is None:
        raise CannotReplay(f"{call.site.op} {NO_OPERATOR}")
    if isinstance(call.arguments.get("kwargs.generator"), str):
        raise CannotReplay(
            "it draws from a generator of the script's own, whose state was not saved"
        )
    inputs = {record.index: record for record in call.with_role(Role.INPUT)}
    tree: dict[str, Any] = {"args": {}, "kwargs": {}}
    for name, value in call.arguments.items():
        _put(tree, name, _Plain(value))
    for index, record in inputs.items():
        _put(tree, record.argument or record.name, Slot(index))
    positional = _grown(tree["args"]) if tree["args"] else ()
    keyword = {key: _grown(child) for key, child in tree["kwargs"].items()}
    if not isinstance(positional, tuple):
        raise CannotReplay("its positional arguments were not recorded completely")
    if call.site.op.endswith(_INDEXING) and len(positional) > 1:
        positional = _with_index(call, positional)
    built = Rebuilt(call.site.op, function, positional, keyword, inputs)
    if (
        imported is None
    ):  # what the user has asked for makes what it makes, and need not know tensors without memory
        _refuse_what_explodes(built, call)
    return built


def optimizer_settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of an optimizer as recorded, as Python values."""
    return {key: _value(value) for key, value in arguments.items()}


@dataclass(frozen=True, slots=True)
class _Plain:
    value: Any


def _put(tree: dict[str, Any], name: str, leaf: object) -> None:
    parts = name.split(".")
    if parts[0] not in tree or len(parts) < 2:
        raise CannotReplay(f"it is not recorded which argument {name!r} is")
    node: Any = tree
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise CannotReplay("its arguments are recorded in contradiction")
    if parts[-1] in node:
        raise CannotReplay("its arguments are recorded in contradiction")
    node[parts[-1]] = leaf


def _grown(node: Any) -> Any:
    """Nested arguments from their dotted names: tuples where the names are 0, 1, 2 ..."""
    if isinstance(node, Slot):
        return node
    if isinstance(node, _Plain):
        return _value(node.value)
    if all(key.isdigit() for key in node):
        numbers = sorted(int(key) for key in node)
        if numbers != list(range(len(numbers))):
            raise CannotReplay("its arguments were not recorded completely")
        return tuple(_grown(node[str(number)]) for number in numbers)
    return {key: _grown(child) for key, child in node.items()}


def _value(value: Any) -> Any:
    """A plain argument as `lockstep.capture.calls.leaves.plain` wrote it, back as a Python value."""
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _value(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if value in _NUMBERS:
        return float(value)
    if value == "...":
        return ...
    if device_of(value) is not None:
        return CPU
    found = _SLICE.fullmatch(value)
    if found:
        return slice(*(None if part == "None" else int(part) for part in found.groups()))
    if _NAMED.fullmatch(value):
        named = vars(torch).get(value.removeprefix("torch."))
        if isinstance(named, (torch.dtype, torch.memory_format, torch.layout)):
            return named
    return value


def _with_index(call: Call, positional: tuple[Any, ...]) -> tuple[Any, ...]:
    """Whether an index was a tuple or a list is not recorded: `x[0, 2]` or `x[[0, 2]]`."""
    index = positional[1]
    if isinstance(index, list):
        source = next(iter(call.with_role(Role.INPUT)), None)
        result = next(iter(call.with_role(Role.OUTPUT)), None)
        numbers = all(isinstance(item, int) for item in index)
        as_list = (
            numbers
            and source is not None
            and result is not None
            and call.site.op.endswith("__getitem__")
            and len(result.shape) == len(source.shape)
        )
        index = index if as_list else tuple(index)
    return (positional[0], index, *positional[2:])


def _filled(
    value: Any,
    tensors: Mapping[int, torch.Tensor],
    plain: Callable[[Any], Any],
) -> Any:
    if isinstance(value, Slot):
        return tensors[value.index]
    if isinstance(value, (torch.dtype, torch.device)):
        return plain(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(item, tensors, plain) for item in value)
    if isinstance(value, dict):
        return {key: _filled(item, tensors, plain) for key, item in value.items()}
    return value


def _form(value: Any) -> Any:
    """Where tensors stand, without what else there is."""
    if isinstance(value, Slot):
        return value.index
    if isinstance(value, (tuple, list)):
        found = [_form(item) for item in value]
        while found and found[-1] is None:  # one call may leave out what the other one gives
            found.pop()
        return tuple(found) or None
    if isinstance(value, dict):
        return {key: form for key, item in value.items() if (form := _form(item)) is not None}
    return None


def _refuse_what_explodes(built: Rebuilt, call: Call) -> None:
    """Numbers in a recording must not make this process allocate what the training never had.

    Where they might, the call is run on tensors without memory first; its outputs must have the
    recorded shapes. Where the data decide these, or torch makes no such tensors, memory is bounded by the limit of the
    process that runs calls again, and shapes are compared when it has.
    """
    product = math.prod(
        max(1, abs(number)) for number in _whole_numbers((built.args, built.kwargs))
    )
    seen = max((record.content.numel for record in call.records), default=1)
    free = max(_FREE_NUMBERS, seen)
    if product <= free and not _may_multiply(call, free):
        return
    tensors = {
        index: torch.empty(record.shape, dtype=torch_dtype(record.dtype), device="meta")
        for index, record in built.inputs.items()
    }
    args, kwargs = built.filled(tensors, lambda dtype: dtype)
    kwargs = {key: "meta" if key == "device" else value for key, value in kwargs.items()}
    try:
        with torch.no_grad():
            results = tensors_in(built.function(*args, **kwargs))
    except Exception:
        return
    recorded = {record.index: record.shape for record in call.with_role(Role.OUTPUT)}
    for index, tensor in enumerate(results):
        if recorded.get(index, tuple(tensor.shape)) != tuple(tensor.shape):
            raise CannotReplay("its arguments do not give the recorded shapes")


def _may_multiply(call: Call, free: int) -> bool:
    """Whether an operator may make far more than goes in, or than `free`, without a number that says so.

    The dry run of some that go element by element, `torch.pow` above all, makes torch load its compiler, which takes
    longer than all re-runs of a step.
    """
    operator = operator_of(call.site.op)
    if Trait.SELECTS in operator.traits:  # no dry run can tell how much
        return False
    if Trait.ELEMENTWISE in operator.traits:
        shapes = [reversed(record.shape) for record in call.with_role(Role.INPUT)]
        return math.prod(map(max, itertools.zip_longest(*shapes, [1], fillvalue=1))) > free
    return operator.family is Family.UNKNOWN or Trait.GROWS in operator.traits


def _whole_numbers(value: Any) -> list[int]:
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [value]
    if isinstance(value, (tuple, list)):
        return [number for item in value for number in _whole_numbers(item)]
    if isinstance(value, dict):
        return [number for item in value.values() for number in _whole_numbers(item)]
    return []


def torch_dtype(name: str) -> torch.dtype:
    """Dtype of a recorded name. Raises CannotReplay if torch has no such dtype."""
    found = vars(torch).get(name)
    if not isinstance(found, torch.dtype):
        raise CannotReplay(f"this torch has no dtype {name!r}")
    return found


def tensors_in(result: Any) -> list[torch.Tensor]:
    """Tensors in a result, in the order in which the recorder numbers outputs."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in tensors_in(item)]
    return []
