"""Return the names of an operator's arguments, and their defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from lockstep.core.records import TensorRecord
from lockstep.replay.calls.rebuild import Rebuilt, Slot

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call.

    key: Position among the positional ones, or keyword.
    name: As the operator's signature has it; "argument 1" where it has none.
    value: As given, or the default.
    """

    key: int | str
    name: str
    value: Any

    def replaced(self, built: Rebuilt, value: Any) -> Rebuilt:
        """The same call with another value here."""
        if isinstance(self.key, str):
            return replace(built, kwargs={**built.kwargs, self.key: value})
        args = (*built.args[: self.key], value, *built.args[self.key + 1 :])
        return replace(built, args=args)


def arguments_of(built: Rebuilt) -> list[Argument]:
    """All arguments of a call, one level deep, those left at their default too."""
    signature = _signature_of(built)
    names = tuple(signature)
    found = [
        Argument(number, names[number] if number < len(names) else f"argument {number}", value)
        for number, value in enumerate(built.args)
    ]
    found += [Argument(name, name, value) for name, value in built.kwargs.items()]
    given = {one.name for one in found}
    for name, default in signature.items():
        if name not in given and default is not _MISSING and not name.startswith("_"):
            found.append(Argument(name, name, default))
    return found


def tensor_name(built: Rebuilt, record: TensorRecord) -> str:
    """Return an operator's name for one of its tensors: `weight`; `params[2]` for one in a list."""
    for argument in arguments_of(built):
        for place, slot in _slots(argument.value):
            if slot.index == record.index:
                return f"{argument.name}{place}"
    return record.argument or record.name or f"input {record.index}"


def named(built: Rebuilt | None, place: str) -> str:
    """The name of a recorded argument: `args.5` is `count_include_pad`, `kwargs.eps` is `eps`."""
    where, _, rest = place.partition(".")
    first, _, inner = rest.partition(".")
    if where == "args" and first.isdigit() and built is not None and int(first) < len(built.args):
        first = arguments_of(built)[int(first)].name
    elif where == "args":
        first = f"argument {first}"
    return f"{first}[{inner}]" if inner else first or place


def _slots(value: Any, place: str = "") -> Iterator[tuple[str, Slot]]:
    if isinstance(value, Slot):
        yield place, value
    elif isinstance(value, (tuple, list)):
        for number, item in enumerate(value):
            yield from _slots(item, f"{place}[{number}]")


def _signature_of(built: Rebuilt) -> Mapping[str, Any]:
    """Names of the arguments with their defaults, in order; empty where torch does not tell."""
    bare = built.op.rpartition(".")[2]
    found = _python_signature(built.op)
    if found:
        return found
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{bare.strip('_') or bare}")
    for schema in schemas:
        if _fits(schema, built):
            return {
                "input" if one.name == "self" else one.name: one.default_value
                if one.has_default_value()
                else _MISSING
                for one in schema.arguments
            }
    return {}


@cache
def _python_signature(op: str) -> Mapping[str, Any]:
    """Of a function that is written in Python; of the plain one of two that one name dispatches to."""
    bare = op.rpartition(".")[2]
    for name in (bare, f"_{bare}"):
        function = vars(torch.nn.functional).get(name)
        if not inspect.isfunction(function) or not op.startswith("torch.nn.functional"):
            continue
        parameters = inspect.signature(function).parameters.values()
        if not any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
            return {
                one.name: _MISSING if one.default is inspect.Parameter.empty else one.default
                for one in parameters
            }
    return {}


def _fits(schema: Any, built: Rebuilt) -> bool:
    """Whether a call may be of an overload, by the number, the names and the types of its arguments."""
    positional = [one for one in schema.arguments if not one.kwarg_only]
    names = {one.name: one for one in schema.arguments}
    if len(built.args) > len(positional) or not set(built.kwargs) <= set(names):
        return False
    given = {one.name for one in positional[: len(built.args)]} | set(built.kwargs)
    if any(name not in given and not one.has_default_value() for name, one in names.items()):
        return False
    pairs = [*zip(built.args, positional, strict=False)]
    pairs += [(value, names[name]) for name, value in built.kwargs.items()]
    return all(_may_be(value, str(one.type)) for value, one in pairs)


def _may_be(value: Any, kind: str) -> bool:
    if value is None:
        return kind.startswith("Optional")
    if isinstance(value, Slot):
        return "Tensor" in kind and "List" not in kind
    if isinstance(value, bool):
        return "bool" in kind
    if isinstance(value, int):
        return any(one in kind for one in ("int", "number", "Scalar", "float"))
    if isinstance(value, float):
        return any(one in kind for one in ("number", "Scalar", "float"))
    if isinstance(value, str):
        return "str" in kind
    return "List" in kind if isinstance(value, (tuple, list)) else True
