"""What a data set and its transforms are: code, constants, settings, files. Equal pipelines have equal descriptions.

Code of the user's counts by its instructions and constants; that of installed packages by their versions.
"""

from __future__ import annotations

import copyreg
import dis
import enum
import functools
import hashlib
import importlib.metadata
import io
import os
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from lockstep.wings.cache.named_files import NamedFiles
from lockstep.wings.cache.random_watch import is_generator

_MOST_LINES = 2000
_DEEPEST = 24
_LONG_TEXT = 120
_PLAIN = (str, bytes, int, float, tuple, type(None))
_OF_NO_MATTER = (
    "__init__",
    "__repr__",
    "__str__",
    "__del__",
    "__getstate__",
    "__setstate__",
    "__slotnames__",
    "__reduce__",
)
_TAKES_FROM_MODULE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

BELOW = "pipeline_below"
"""The class attribute of a data set that only passes samples on: the name of the attribute with what makes them."""


@dataclass
class Pipeline:
    """What was found.

    Parameters
    ----------
    description
        By where it is (`dataset.transform.size`) what is there, in words.
    generators
        Random generators that it keeps.
    attributes
        The dictionaries of its objects, with a copy of each: what it is set to can change while it is read.
    ignored
        Names of attributes that do not count.
    """

    description: dict[str, str] = field(default_factory=dict)
    generators: list[Any] = field(default_factory=list)
    attributes: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    ignored: frozenset[str] = frozenset()

    @property
    def checksum(self) -> str:
        """Of the description."""
        lines = (f"{where}\0{what}" for where, what in sorted(self.description.items()))
        return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()

    def has_changed(self) -> bool:
        """Whether an attribute of one of its objects is another than before; what lies deeper is not seen."""
        try:
            if not self.ignored:
                return any(now != then for now, then in self.attributes)
            return any(_without(now, self.ignored) != then for now, then in self.attributes)
        except (ValueError, RuntimeError):  # two arrays: they are not the same one any more
            return True


def pipeline_of(dataset: object, ignored: Iterable[str] = ()) -> Pipeline:
    """Look at a data set.

    Parameters
    ----------
    dataset
        Any object; its attributes are followed.
    ignored
        Names of attributes that do not matter to samples.
    """
    looking = _Looking(frozenset(ignored))
    looking.look("dataset", dataset, 0)
    found = looking.found.description
    found["python"] = ".".join(map(str, sys.version_info[:2]))
    found["default dtype"] = str(torch.get_default_dtype())
    for package in sorted(looking.packages | {"numpy", "torch"}):
        found[f"package {package}"] = _version(package)
    if words := looking.file_words():
        found["files"] = words
    if len(found) > _MOST_LINES:
        looking.found.description = _shortened(found)
    return looking.found


def differences(
    there: Mapping[str, str], here: Mapping[str, str], *, then: str = "there", now: str = "here"
) -> str:
    """What differs between two pipelines, in words."""
    shown = 3
    names = [one for one in sorted({*there, *here}) if there.get(one) != here.get(one)]
    words = [
        f"{one}: {there.get(one, 'nothing')} {then} and {here.get(one, 'nothing')} {now}"
        for one in names[:shown]
    ]
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return "; ".join(words) + more


def _shortened(found: Mapping[str, str]) -> dict[str, str]:
    """The first lines, and a checksum of the others."""
    names = sorted(found)
    rest = "\n".join(f"{one}\0{found[one]}" for one in names[_MOST_LINES:])
    kept = {one: found[one] for one in names[:_MOST_LINES]}
    return {**kept, "all else": _digest(rest.encode("utf-8", "surrogatepass"))}


def _digest(data: Any) -> str:
    return xxhash.xxh3_128_hexdigest(data)[:16]


@functools.lru_cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


class _Looking:
    """Goes through what a data set holds."""

    def __init__(self, ignored: frozenset[str]) -> None:
        self.found = Pipeline(ignored=ignored)
        self.packages: set[str] = set()
        self._files = NamedFiles()
        self._ignored = ignored
        self._seen: dict[int, tuple[str, object]] = {}

    def file_words(self) -> str:
        """Of files that were named."""
        return self._files.words()

    def look(self, where: str, value: Any, depth: int) -> None:
        """Describe a value and what it holds."""
        if is_generator(value):
            if all(value is not one for one in self.found.generators):
                self.found.generators.append(value)
            self._say(where, f"a generator of {type(value).__module__}")
            return
        words = self._plain(value)
        if words is not None:
            self._say(where, words)
            if isinstance(
                value, torch.Tensor
            ):  # what a subclass adds: of boxes, whose corners they are
                for name, one in vars(value).items():
                    self.look(f"{where}.{name}", one, depth + 1)
            return
        if id(value) in self._seen or depth > _DEEPEST:
            self._say(
                where, f"as {self._seen[id(value)][0]}" if id(value) in self._seen else "too deep"
            )
            return
        self._seen[id(value)] = where, value
        if isinstance(value, types.MappingProxyType):
            value = dict(value)
        if isinstance(value, types.ModuleType):
            self._module(where, value, depth)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            self._collection(where, value, depth)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial, type)):
            self._callable(where, value, depth)
        else:
            self._object(where, value, depth)

    def _say(self, where: str, words: str) -> None:
        self.found.description[where] = words

    def _plain(self, value: Any) -> str | None:
        if value is None or isinstance(value, (bool, int, float, complex)):
            return repr(value)[:_LONG_TEXT]
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, (str, bytes)):
            self._files.add(value)
            return _short(repr(value), value)
        if isinstance(value, (bytearray, memoryview)):
            return f"{type(value).__name__} {_short(repr(bytes(value)), bytes(value))}"
        if isinstance(value, (io.BytesIO, io.StringIO)):  # how far it is read is no matter
            return f"{type(value).__name__} {_short(repr(value.getvalue()), value.getvalue())}"
        if isinstance(value, os.PathLike):
            self._files.add(os.fspath(value))
            return str(value)
        if isinstance(value, np.memmap):
            self._files.add(os.fspath(value.filename or ""))
            return f"{list(value.shape)} {value.dtype} at {value.offset} of {value.filename}"
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            return f"{list(value.shape)} {value.dtype} {_tensor_digest(value)}"
        # What a subclass adds, as a mask, comes with what it is made of.
        plain = type(value) is np.ndarray or isinstance(value, np.generic)
        if plain and not value.dtype.hasobject:
            return f"{list(value.shape)} {value.dtype} {_array_digest(value)}"
        if isinstance(
            value,
            (torch.dtype, torch.device, np.dtype, types.BuiltinFunctionType),
        ):
            return str(getattr(value, "__qualname__", getattr(value, "__name__", value)))
        return None

    def _collection(self, where: str, value: Any, depth: int) -> None:
        kind = f"{type(value).__name__} of {len(value)}"
        if isinstance(value, dict):
            # Whoever lists them has them in this order.
            keys = "\n".join(map(_key, value)).encode("utf-8", "surrogatepass")
            kind = f"{kind}, keys {_digest(keys)}" if value else kind
        self._say(where, kind)
        if isinstance(value, dict):
            items = [(str(key), one) for key, one in value.items()]
        elif isinstance(value, (set, frozenset)):
            items = [(str(number), one) for number, one in enumerate(sorted(value, key=repr))]
        else:
            items = [(str(number), one) for number, one in enumerate(value)]
        if len(items) > 64 and all(isinstance(one, _PLAIN) for _, one in items):
            self._many(where, items)
            return
        for key, one in items:
            self.look(f"{where}[{key}]", one, depth + 1)

    def _many(self, where: str, items: list[tuple[str, Any]]) -> None:
        """A long list of plain values, as of files and labels: one line."""
        digest = xxhash.xxh3_128()
        for key, one in items:
            digest.update(f"{key}\0{one!r}\n".encode("utf-8", "surrogatepass"))
            for part in one if isinstance(one, tuple) else (one,):
                if isinstance(part, str):
                    self._files.add(part)
        self._say(where, f"{len(items)} values {digest.hexdigest()[:16]}")

    def _callable(self, where: str, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            self._say(where, "a partial function")
            self.look(f"{where}.func", value.func, depth + 1)
            self.look(f"{where}.args", [value.args, value.keywords], depth + 1)
        elif isinstance(value, types.MethodType):
            self.look(f"{where}.self", value.__self__, depth + 1)
            self.look(f"{where}.{value.__name__}", value.__func__, depth + 1)
        elif isinstance(value, type):
            self._class(where, value, depth)
        elif not self._is_installed(value):
            self._function(where, value, depth)
        else:
            self._say(where, f"{value.__module__}.{value.__qualname__}")

    def _class(self, where: str, value: type, depth: int) -> None:
        names = []
        for one in value.__mro__[:-1]:
            names.append(f"{one.__module__}.{one.__qualname__}")
            if not self._is_installed(one):
                for name, member in vars(one).items():
                    if name not in _OF_NO_MATTER:
                        self._member(f"{where}.{name}", member, depth + 1)
        self._say(where, ", ".join(names))

    def _member(self, where: str, member: Any, depth: int) -> None:
        """A method, however it is wrapped, or a constant of a class."""
        for name in ("fget", "__func__", "__wrapped__", "func"):
            member = getattr(member, name, member)
        kinds = (types.FunctionType, list, tuple, dict, set)
        if isinstance(member, kinds) or (
            not where.endswith("__") and self._plain(member) is not None
        ):
            self.look(where, member, depth)

    def _module(self, where: str, value: types.ModuleType, depth: int) -> None:
        """A package counts by its version, a module of the user's by its file and by the modules that it uses."""
        self._say(where, value.__name__)
        if self._is_installed(value):
            return
        with suppress(OSError):  # one that was made while running has no file
            content = Path(value.__file__ or "").read_bytes()
            self._say(where, f"{value.__name__}, file {_digest(content)}")
        for name, member in sorted(vars(value).items()):
            other = member if isinstance(member, types.ModuleType) else None
            other = other or sys.modules.get(getattr(member, "__module__", None) or "")
            if other is not None and other is not value and not self._is_installed(other):
                self.look(f"{where}.{name}", other, depth + 1)

    def _function(self, where: str, value: types.FunctionType, depth: int) -> None:
        self._say(
            where, f"{value.__module__}.{value.__qualname__}, code {_code_digest(value.__code__)}"
        )
        for number, one in enumerate(value.__defaults__ or ()):
            self.look(f"{where}.default{number}", one, depth + 1)
        for name, one in (value.__kwdefaults__ or {}).items():
            self.look(f"{where}.{name}", one, depth + 1)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                self.look(f"{where}<{name}>", cell.cell_contents, depth + 1)
            except ValueError:  # not set yet
                continue
        for name in sorted(_names_of(value.__code__) & value.__globals__.keys()):
            if name not in self._ignored:
                self.look(f"{where}<{name}>", value.__globals__[name], depth + 1)

    def _object(self, where: str, value: Any, depth: int) -> None:
        """An object of a class; one without attributes, as an open file, says only of which."""
        if below := getattr(type(value), BELOW, ""):
            self.look(where, getattr(value, below), depth + 1)
            return
        attributes = getattr(value, "__dict__", None)
        slots = {
            name: getattr(value, name)
            for one in type(value).__mro__
            for name in _slots_of(one)
            if hasattr(value, name)
        }
        parts = _made_of(value)
        installed = self._is_installed(type(value))
        if parts is None and (installed or not (isinstance(attributes, dict) or slots)):
            self._say(where, "None")  # as before it was opened
            return
        self.look(f"{where}.class", type(value), depth + 1)
        if parts is not None and (installed or not _reduces_by_attributes(type(value))):
            for name, one in parts.items():
                self.look(f"{where}.{name}", one, depth + 1)
        if isinstance(attributes, dict):
            kept = _without(attributes, self._ignored)
            self.found.attributes.append((attributes, kept))
            slots.update(kept)
        for name, one in slots.items():
            self.look(f"{where}.{name}", one, depth + 1)

    def _is_installed(self, value: Any) -> bool:
        """Whether code is that of a package, which counts by its version then."""
        module = value if isinstance(value, types.ModuleType) else None
        module = module or sys.modules.get(getattr(value, "__module__", None) or "")
        if module is None or module.__name__ == "__main__":
            return False
        file, name = getattr(module, "__file__", None), module.__name__.partition(".")[0]
        is_package = file is None or any(one in file for one in _PACKAGES)
        if not is_package and not str(file).startswith(_STANDARD):
            return False
        if name not in sys.stdlib_module_names:
            self.packages.add(name)
        return True


def _reduces_by_attributes(kind: type) -> bool:
    """Whether pickle takes what its objects are made of from their attributes alone."""
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    own = (getattr(kind, name, None) is not getattr(object, name, None) for name in names)
    return not any(own) and kind not in copyreg.dispatch_table


def _made_of(value: Any) -> dict[str, Any] | None:
    """What pickle would make an object from again, beside its class and its attributes.

    A table, a picture, a range or a sparse tensor keeps nothing in attributes. None of what cannot be taken elsewhere:
    an open file, a connection, a lock.
    """
    try:
        reducing = copyreg.dispatch_table.get(type(value))
        made = reducing(value) if reducing is not None else value.__reduce_ex__(4)
    except Exception:  # whatever a class says to that
        return None
    if isinstance(made, str):
        return {"named": made}
    _, arguments, state, items, pairs = (*made, None, None, None)[:5]
    own = getattr(value, "__dict__", None)
    if isinstance(state, dict) and isinstance(own, dict) and state.keys() == own.keys():
        state = None  # looked at as attributes
    found = {
        "made of": [one for one in arguments if not isinstance(one, type)] or None,
        "state": state,
    }
    found["items"] = None if items is None else list(items)
    found["pairs"] = None if pairs is None else dict(pairs)
    return {name: one for name, one in found.items() if one is not None}


def _key(value: object) -> str:
    """A key of a dictionary, with its type; of another object its type alone, as its text may be its address."""
    return (
        f"{type(value).__name__} {value!r}"
        if isinstance(value, (*_PLAIN, enum.Enum))
        else type(value).__name__
    )


def _without(attributes: Mapping[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    return {name: one for name, one in attributes.items() if name not in ignored}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(one for one in names if not one.startswith("__"))


def _short(text: str, value: str | bytes) -> str:
    if len(text) <= _LONG_TEXT:
        return text
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return f"{text[:40]}... {len(value)} long, {_digest(data)}"


def _tensor_digest(value: torch.Tensor) -> str:
    if value.device.type == "meta":
        return ""
    plain = value.detach().cpu().contiguous().reshape(-1)
    return _digest(plain.view(torch.uint8).numpy()) if plain.numel() else ""


def _array_digest(value: Any) -> str:
    found = np.ascontiguousarray(value)
    return _digest(found.reshape(-1).view(np.uint8)) if found.nbytes else ""


def _code_digest(code: types.CodeType) -> str:
    """Of instructions, names and constants; of neither lines nor docstrings' places."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames[: code.co_argcount])).encode())
    for one in code.co_consts:
        text = _code_digest(one) if isinstance(one, types.CodeType) else _constant(one)
        digest.update(f"{text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _constant(value: object) -> str:
    """A constant of some code; the order of a set's texts is another in each process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


@functools.lru_cache(4096)
def _names_of(code: types.CodeType) -> frozenset[str]:
    """Names that some code takes from its module, that of functions inside it too; an attribute's name is none."""
    own = (one.argval for one in dis.get_instructions(code) if one.opname in _TAKES_FROM_MODULE)
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return frozenset(own).union(*map(_names_of, inner))
