"""Finding the tensors, and the plain values, inside the arguments and results of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch

from lockstep.capture.silence import Silence
from lockstep.core.manifest import NotSeen
from lockstep.core.secrets import masked, masked_setting
from lockstep.core.text import words_of
from lockstep.devices.methods import detach, item, numel

NamedTensor = tuple[str, torch.Tensor]

_MAX_DEPTH = 8
_MAX_TEXT = 120
_PLAIN = (bool, int, float, str)
_ARE_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SEQUENCES = frozenset({tuple, list, torch.Size})
_AS_THEY_ARE = frozenset({int, bool, type(None)})
_FIXED = frozenset({*_PLAIN, tuple})
"""Types of settings whose values stay as they are."""
_MAY_BE_SETTINGS = (*_PLAIN, tuple, list)
"""Types of which others are, whose values may change: a list, a class of the script's."""
_MAX_ITEMS = 32
_POSITIONS = tuple(f"args.{position}" for position in range(16))
"""Made once: there are a dozen names, and a call needs some each time."""

_refused: dict[str, str] = {}
"""Types of values that did not let themselves be looked at since they were last asked for, each with its error."""


def tensors_in(value: Any, name: str, depth: int = 0) -> Iterator[NamedTensor]:
    """Yield every tensor inside nested tuples, lists, mappings and dataclasses with its dotted name.

    >>> [name for name, _ in tensors_in((torch.zeros(1), {"mask": torch.ones(1)}), "args")]
    ['args.0', 'args.1.mask']
    """
    try:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif depth < _MAX_DEPTH and type(value) not in _PLAIN:
            for key, child in _children(value):
                yield from tensors_in(child, f"{name}.{key}", depth + 1)
    except Exception as error:
        _refuse(value, error)


def _refuse(value: Any, error: Exception) -> None:
    """A value of the script's raised as it was looked at: it is left out, and noted."""
    kind = type(value)
    words = words_of(error) or type(error).__name__
    _refused.setdefault(f"{kind.__module__}.{kind.__qualname__}", words)


def values_refused() -> list[NotSeen]:
    """Return the values that were left out since the last call."""
    gaps = [
        NotSeen(f"what a value of type {kind} holds", f"it raised as it was looked at: {error}")
        for kind, error in _refused.items()
    ]
    _refused.clear()
    return gaps


def _children(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None) or range(len(value))
        yield from zip(names, value, strict=False)
    elif isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield item.name, getattr(value, item.name, None)


def argument_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NamedTensor]:
    """Tensors among the arguments of a call, named `args.0`, `kwargs.mask` ..."""
    found: list[NamedTensor] = []
    for name, value in _named(args, kwargs):
        # The type, rather than `isinstance`: a value may refuse to say what it is.
        if type(value) in _ARE_TENSORS:
            found.append((name, value))
        elif value is not None and type(value) not in _PLAIN:
            found.extend(tensors_in(value, name))
    return found


def flattened(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[NamedTensor], dict[str, Any]]:
    """`argument_tensors` and `plain_arguments` of a call, in one walk."""
    tensors: list[NamedTensor] = []
    plain: dict[str, Any] = {}
    simple = not kwargs and len(args) <= len(_POSITIONS)
    for name, value in zip(_POSITIONS, args, strict=False) if simple else _named(args, kwargs):
        kind = type(value)
        if kind in _ARE_TENSORS:
            tensors.append((name, value))
        elif value is None or kind is int or kind is bool:
            plain[name] = value
        elif kind in _SEQUENCES and _AS_THEY_ARE.issuperset(map(type, value)):
            plain[name] = list(value[:_MAX_ITEMS])
        elif kind is float or kind is str:
            plain[name] = plain_setting(name, value)
        else:
            with Silence():
                tensors.extend(tensors_in(value, name))
                _add_plain(plain, name, value)
    return tensors, plain


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Arguments with their names in a recording."""
    if len(args) <= len(_POSITIONS):
        named: Iterable[tuple[str, Any]] = zip(_POSITIONS, args, strict=False)
    else:
        named = [(f"args.{position}", value) for position, value in enumerate(args)]
    if not kwargs:
        return named
    return [*named, *[(f"kwargs.{key}", value) for key, value in kwargs.items()]]


def result_tensors(result: Any) -> list[NamedTensor]:
    """Tensors in what a call returned, named `result`, `result.0` ..."""
    if type(result) in _ARE_TENSORS:
        return [("result", result)]
    return list(tensors_in(result, "result"))


def plain_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Non-tensor arguments of a call as JSON values.

    Where a tuple, list or mapping holds tensors, what else is in it stands under its dotted name:
    with the names of the tensors the argument can be put together again.

    >>> plain_arguments(((slice(3), torch.zeros(1)),), {"dim": 1})
    {'args.0.0': 'slice(None, 3, None)', 'kwargs.dim': 1}
    """
    found: dict[str, Any] = {}
    for name, value in _named(args, kwargs):
        _add_plain(found, name, value)
    return found


def _add_plain(found: dict[str, Any], name: str, value: Any, depth: int = 0) -> None:
    try:
        if isinstance(value, torch.Tensor):
            return
        if not _holds_tensor(value):
            found[name] = plain_setting(name, value)
        elif depth < _MAX_DEPTH and isinstance(value, (tuple, list, Mapping)):
            for key, child in _children(value):
                _add_plain(found, f"{name}.{key}", child, depth + 1)
    except Exception as error:
        _refuse(value, error)


def plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Public settings of a module (eps, momentum, kernel_size ...) as JSON values."""
    found = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training" and _is_setting(value):
            found[name] = plain_setting(name, value)
    found["training"] = module.training
    return found


class KeptAttributes:
    """`plain_attributes` of modules, made anew where an attribute is another object than it was, or of another type."""

    def __init__(self) -> None:
        self._kept: dict[torch.nn.Module, _Kept] = {}

    def of(self, module: torch.nn.Module) -> dict[str, Any]:
        """What `plain_attributes` gives now; not to be changed."""
        own = vars(module)
        kept = self._kept.get(module)
        if kept is not None and kept.types.issuperset(map(type, own.values())):
            fixed = [item for item in own.items() if type(item[1]) in _FIXED]
            if len(fixed) == len(kept.fixed):
                for (name, value), (before, was) in zip(fixed, kept.fixed, strict=True):
                    if value is not was or name != before:
                        break
                else:
                    return kept.found
        found = plain_attributes(module)
        types = frozenset(map(type, own.values()))
        if not any(issubclass(kind, _MAY_BE_SETTINGS) for kind in types - _FIXED):
            fixed = [item for item in own.items() if type(item[1]) in _FIXED]
            self._kept[module] = _Kept(types, fixed, found)
        return found

    def forget(self) -> None:
        """Let go of all modules."""
        self._kept.clear()


class _Kept(NamedTuple):
    types: frozenset[type]
    fixed: list[tuple[str, Any]]
    found: dict[str, Any]


def plain_setting(name: str, value: Any) -> Any:
    """The value of a setting as JSON; masked where the name, or the value, says that it is a secret."""
    try:
        return plain(
            masked_setting(name, value[: 2 * _MAX_TEXT]) if isinstance(value, str) else value
        )
    except Exception as error:
        _refuse(value, error)
        return type(value).__name__


def plain(value: Any) -> Any:
    """A value as JSON: numbers, strings and nested lists as they are, anything else as short text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return masked(value[: 2 * _MAX_TEXT])[:_MAX_TEXT]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value[:_MAX_ITEMS]]
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):  # a bound may be a tensor, which torch reads as its number
        return str(slice(*map(plain, (value.start, value.stop, value.step))))
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format)):
        return str(value)
    if isinstance(value, dict):
        return {
            str(key): plain_setting(str(key), item)
            for key, item in list(value.items())[:_MAX_ITEMS]
        }
    if isinstance(value, Integral):  # a number of NumPy's
        return int(value)
    if isinstance(value, Real):
        return plain(float(value))
    return type(value).__name__


def _plain_tensor(value: torch.Tensor) -> Any:
    """The number in a tensor of one element (a learning rate, say), where it has one."""
    if numel(value) != 1 or value.device.type == "meta" or value.layout is not torch.strided:
        return "tensor"
    number = item(detach(value))
    return str(number) if isinstance(number, complex) else plain(number)


def _is_setting(value: Any) -> bool:
    if type(value) in _PLAIN:
        return True
    try:
        if isinstance(value, (tuple, list)):
            return len(value) <= 8 and all(isinstance(item, _PLAIN) for item in value)
        return isinstance(value, _PLAIN)
    except Exception as error:
        _refuse(value, error)
        return False


def _holds_tensor(value: Any) -> bool:
    return next(tensors_in(value, ""), None) is not None
