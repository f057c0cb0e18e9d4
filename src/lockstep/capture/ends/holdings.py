"""Collect the tensors, arrays and settings that objects hold, each by the path that a script would write.

Nothing of the script's is called: attributes are read where Python keeps them, never by `getattr`, properties or a
container's own methods. Nothing is named by an address, or in the order of a set.
"""

from __future__ import annotations

import functools
import math
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lockstep.capture.ends.instances import attributes_of, bases_of, class_attributes, module_of
from lockstep.core.members import OWN_PACKAGES
from lockstep.core.states import HeldSetting

MOST_PLACES = 100_000
"""Containers, objects and tensors that are looked at, as for `capture.ends.states_at_deletion`."""

MOST_CHILDREN = 1 << 21
"""Elements of all containers together that are looked at: a list of numbers may be long."""

_DEEPEST = 24
"""Steps of a path, at most: a list that is linked by its elements has no end that a reader could use."""

_LONGEST_KEY = 80
_ADDRESSES = 1 << 32
"""Whole numbers from here on that are keys may be identities, which are others in the next process."""

_NUMBERS = (bool, int, float)
_ENDS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    range,
    slice,
    type(...),
    types.ModuleType,
)
_DATA = (Dataset, DataLoader, Sampler, _BaseDataLoaderIter)
"""They give what enters the steps, where it is compared."""

_OF_EVERY_MODULE = frozenset(vars(Module()))
_WAYS_TO_COMPUTE = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "inplace", "verbose"}
)
"""Settings that choose a kernel, or what is printed, and mean nothing to the numbers."""

_WALKED_OF_STANDARD_LIBRARY = ("argparse", "collections", "types")
_PLAIN_OF_TYPES = (types.SimpleNamespace,)


@dataclass(slots=True)
class Holdings:
    """The tensors by path, the settings, and the parts that a bound has cut off, in words."""

    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    settings: list[HeldSetting] = field(default_factory=list)
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """The tensors that other parts of the recording hold already.

    told: Identities of the parameters, buffers and optimizers that are recorded by their own names.
    names: What parameters are called, by identity: keys of dictionaries may be parameters.
    numbers_before: Attributes of the script's own modules at the last recorded step, by the module's identity.
    """

    told: frozenset[int] = frozenset()
    names: Mapping[int, str] = field(default_factory=dict)
    numbers_before: Mapping[int, Mapping[str, object]] = field(default_factory=dict)


class Walk:
    """Goes through objects, those with the shortest paths first.

    known: What is told elsewhere.
    seen: Objects by identity that were met before and still live; those met here are added.
    """

    def __init__(self, known: Known, seen: dict[int, object]) -> None:
        self._known, self._seen = known, seen
        self._found = Holdings()
        self._waiting: deque[tuple[str, object, bool, int]] = deque()
        self._children = 0

    def through(self, roots: Iterable[tuple[str, object]]) -> Holdings:
        """Return the tensors and settings that these objects hold, by their paths."""
        for path, value in roots:
            try:
                self._wait(path, value, depth=0)
            except Exception as error:  # of a class that refuses to be told from others
                self._cut(f"{path}: {type(error).__name__}")
        places = 0
        while self._waiting:
            path, value, is_setting, depth = self._waiting.popleft()
            places += 1
            if (
                max(places, len(self._found.settings)) > MOST_PLACES
                or self._children > MOST_CHILDREN
            ):
                self._cut(f"{path} and what follows it, as there is too much")
                break
            try:
                self._visit(path, value, is_setting=is_setting, depth=depth)
            except (
                Exception
            ) as error:  # of a class that refuses, or a container that a thread writes to
                self._cut(f"{path}: {type(error).__name__}")
        return self._found

    def _cut(self, words: str) -> None:
        self._found.cut = self._found.cut or words

    def _wait(self, path: str, value: object, *, depth: int, is_setting: bool = False) -> None:
        """Look at a value later, or at once if there is nothing in it."""
        self._children += 1
        kind = type(value)
        if value is None or (kind in (dict, list, tuple) and not value):
            self._found.settings.append(HeldSetting(path, None))
        elif is_setting and kind in _NUMBERS:
            self._found.settings.append(HeldSetting(path, _plain(value)))
        elif kind in _ENDS or issubclass(kind, (str, int, float, types.ModuleType)):
            return
        elif depth > _DEEPEST:
            self._cut(f"{path}, as it is more than {_DEEPEST} steps from a variable")
        else:
            self._waiting.append((path, value, is_setting, depth))

    def _visit(self, path: str, value: object, *, is_setting: bool, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            self._tensor(path, value, depth)  # type: ignore[arg-type]
            return
        if issubclass(kind, np.ndarray):
            self._array(path, value)  # type: ignore[arg-type]
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        for step, child, setting in self._parts(path, value, kind, is_setting=is_setting):
            self._wait(path + step, child, depth=depth + 1, is_setting=setting)

    def _tensor(self, path: str, tensor: torch.Tensor, depth: int) -> None:
        if not _is_result(tensor):
            self._found.tensors.append((path, tensor))
        if id(tensor) not in self._seen:
            self._seen[id(tensor)] = tensor
            for name, value in attributes_of(tensor):
                if not name.startswith("_"):
                    self._wait(f"{path}.{name}", value, depth=depth + 1)

    def _array(self, path: str, array: np.ndarray[Any, Any]) -> None:
        if issubclass(type(array), np.memmap):
            return  # a file: data
        tensor = tensor_of(array)
        if tensor is not None:
            self._found.tensors.append((path, tensor))

    # --- what objects consist of ----------------------------------------------------------------

    def _parts(
        self, path: str, value: object, kind: type, *, is_setting: bool
    ) -> Iterator[tuple[str, object, bool]]:
        """Steps that lead on from an object, each with where it leads and whether numbers there are settings."""
        if issubclass(kind, (dict, list, tuple, deque)):
            for step, child in _elements(value, self._key):
                yield step, child, is_setting
            yield from _plainly(attributes_of(value))
        elif issubclass(kind, (set, frozenset)):
            yield from _plainly(_of_set(value))
        elif issubclass(kind, (types.FunctionType, types.MethodType, functools.partial)):
            yield from _plainly(_of_function(value))
        elif issubclass(kind, type):
            if not _is_installed(value):
                yield from _plainly(class_attributes(value))  # type: ignore[arg-type]
        elif issubclass(kind, Module):
            yield from self._of_module(path, value)
        elif issubclass(kind, Optimizer):
            yield from self._of_optimizer(value)
        elif issubclass(kind, (LRScheduler, torch.amp.GradScaler)) or _is_scheduler(value):
            for name, child in attributes_of(value):
                if name not in _WAYS_TO_COMPUTE:
                    yield f".{name}", child, True
        elif not issubclass(kind, _DATA) and _is_walked(kind):
            yield from _plainly(attributes_of(value))

    def _of_module(self, path: str, module: object) -> Iterator[tuple[str, object, bool]]:
        found = dict(attributes_of(module))
        is_torchs = module_of(type(module)).partition(".")[0] == "torch"
        before = self._known.numbers_before.get(id(module), {})
        for name, value in found.items():
            if name == "training" or (type(value) in _NUMBERS and not name.startswith("_")):
                if name not in _WAYS_TO_COMPUTE:
                    moves = not is_torchs and type(value) is not bool
                    moves = moves and before.get(name) != value
                    self._found.settings.append(HeldSetting(f"{path}.{name}", _plain(value), moves))
            elif (
                name not in _OF_EVERY_MODULE
                and value is not None
                and not (is_torchs and name.startswith("_"))
            ):
                yield f".{name}", value, is_torchs and type(value) is tuple
        for name in ("_parameters", "_buffers", "_modules"):
            for key, value in _items(found.get(name)):
                if value is not None and id(value) not in self._known.told:
                    yield f".{key}", value, False

    def _of_optimizer(self, optimizer: object) -> Iterator[tuple[str, object, bool]]:
        found = dict(attributes_of(optimizer))
        groups = found.get("param_groups")
        for number, group in enumerate(groups if type(groups) is list else ()):
            for key, value in _items(group):
                step = f".param_groups[{number}]{self._key(key, 0)}"
                if key not in _WAYS_TO_COMPUTE and key != "params":
                    yield step, value, True
                elif key == "params" and id(optimizer) not in self._known.told:
                    yield step, value, False
        if id(optimizer) not in self._known.told:
            yield ".state", found.get("state"), False
        for name, value in found.items():
            if not (name.startswith("_") or name in ("defaults", "param_groups", "state", "step")):
                yield f".{name}", value, False

    def _key(self, key: object, place: int) -> str:
        """A key of a dictionary as it is written in Python; by its place where it is an object."""
        if issubclass(type(key), torch.Tensor):
            return f"[{self._known.names.get(id(key), f'parameter {place}')}]"
        if type(key) is int and key >= _ADDRESSES:
            return f"[{self._known.names.get(key, f'key {place}')}]"
        if key is None or type(key) in (bool, int, float, str):
            text = repr(key)
            return f"[{text if len(text) <= _LONGEST_KEY else text[:_LONGEST_KEY] + '...'}]"
        if type(key) is tuple and all(type(part) in (bool, int, str) for part in key):
            return f"[{key!r:.{_LONGEST_KEY}}]"
        return f"[{type(key).__name__} {place}]"


def _plainly(parts: Iterable[tuple[str, object]]) -> Iterator[tuple[str, object, bool]]:
    """Parts of which no number is a setting, with a dot before a name."""
    for name, value in parts:
        yield (name if name.startswith(("[", "{")) else f".{name}"), value, False


def _elements(value: Any, key_words: Any) -> Iterator[tuple[str, object]]:
    if issubclass(type(value), dict):
        for place, (key, child) in enumerate(list(dict.items(value))):
            yield key_words(key, place), child
        return
    kind = next(one for one in (list, tuple, deque) if issubclass(type(value), one))
    names = class_attributes_named(type(value), "_fields") if kind is tuple else None
    for place, child in enumerate(list(kind.__iter__(value))):
        named = type(names) is tuple and place < len(names)
        yield (f".{names[place]}" if named else f"[{place}]"), child  # type: ignore[index]


def class_attributes_named(kind: type, name: str) -> object:
    """An attribute that a class itself has, None where it has none."""
    return dict(class_attributes(kind)).get(name)


def _items(value: object) -> list[tuple[Any, object]]:
    return list(dict.items(value)) if issubclass(type(value), dict) else []  # type: ignore[arg-type]


def _of_set(value: Any) -> Iterator[tuple[str, object]]:
    """Tensors in a set, in the order of their numbers: its own order is another in the next process."""
    found = [one for one in list(value) if issubclass(type(one), torch.Tensor)]
    found.sort(key=_as_key)
    for place, one in enumerate(found):
        yield f"{{{place}}}", one


def _as_key(tensor: Any) -> tuple[str, tuple[int, ...], list[float]]:
    flat = tensor.detach().reshape(-1)[:64].cpu()
    numbers = [] if flat.dtype.is_complex else flat.double().tolist()
    return (
        str(tensor.dtype),
        tuple(tensor.shape),
        [-math.inf if one != one else one for one in numbers],
    )


def _of_function(value: Any) -> Iterator[tuple[str, object]]:
    """What a function brings with it: variables around it, defaults, attributes, and what it is bound to."""
    if issubclass(type(value), types.MethodType):
        yield "__self__", value.__self__
        yield "__func__", value.__func__
    elif issubclass(type(value), functools.partial):
        for name in ("func", "args", "keywords"):
            yield name, vars(functools.partial)[name].__get__(value)
    elif not _is_installed(value):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield name, cell.cell_contents
            except ValueError:  # empty
                continue
        for name in ("__defaults__", "__kwdefaults__"):
            if (given := getattr(value, name)) is not None:
                yield name, given
        yield from value.__dict__.items()


def _is_scheduler(value: object) -> bool:
    """Whether an object of the script's holds an optimizer, and has the methods of a scheduler."""
    kind = type(value)
    if not _is_walked(kind):
        return False
    methods = {name for base in bases_of(kind) for name, _ in class_attributes(base)}
    if "step" not in methods or methods.isdisjoint({"get_lr", "get_last_lr", "state_dict"}):
        return False
    return any(issubclass(type(child), Optimizer) for _, child in attributes_of(value))


def _is_walked(kind: type) -> bool:
    """Whether the attributes of such objects are looked at: not of Python's, torch's, NumPy's, pytest's and ours."""
    top = module_of(kind).partition(".")[0]
    if top in _WALKED_OF_STANDARD_LIBRARY:
        return top != "types" or kind in _PLAIN_OF_TYPES
    return top not in _NOT_WALKED


_OF_LIBRARIES = frozenset({"_pytest", "builtins", "numpy", "torch"}) | OWN_PACKAGES
"""Of pytest's: from `capsys` or `request` one gets to all tests of the process, and to no part of a training but by the
variables of its test, which are looked at anyway."""

_NOT_WALKED = (sys.stdlib_module_names | _OF_LIBRARIES) - {"__main__"}


def _is_installed(value: Any) -> bool:
    """Whether a function or class is Python's, torch's, NumPy's, pytest's or ours."""
    found: object = value.__module__ if type(value) is types.FunctionType else module_of(value)
    return type(found) is not str or found.partition(".")[0] in _NOT_WALKED


_GRAD_FN: Any = vars(torch._C.TensorBase)["grad_fn"]


def _is_result(tensor: torch.Tensor) -> bool:
    """Whether a tensor has an autograd history: what a step computes is told by its loss and gradients."""
    try:
        return _GRAD_FN.__get__(tensor) is not None
    except RuntimeError:  # a view that was written to in a way that autograd forbids
        return True


def _plain(value: Any) -> bool | int | float | str:
    if type(value) is float and not math.isfinite(value):
        return str(value)
    plain: bool | int | float = value
    return str(plain) if type(plain) is int and abs(plain) > 1 << 53 else plain


class _Lent:
    """An array's memory, which may not be written to."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor | None:
    """An array as a tensor that shares its memory where that can be; None for elements that torch does not know."""
    plain = np.ndarray.view(array, np.ndarray)
    if plain.dtype.kind not in "biufc" or plain.dtype.itemsize > 16 or plain.dtype == np.longdouble:
        return None
    plain = np.asarray(plain, plain.dtype.newbyteorder("="), order="C")
    try:
        return torch.from_numpy(np.asarray(_Lent(plain)))
    except TypeError:  # a dtype that this torch lacks
        return None
