"""Goes through what a data set holds: code, constants, settings, files; and finds what nobody can read.

Code of the user's counts by its instructions and constants; that of installed packages by their versions.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import importlib.metadata
import multiprocessing.synchronize
import os
import queue
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep_cache.named_files import NamedFiles
from lockstep_cache.plain_words import (
    PLAIN,
    code_digest,
    digest_of,
    globals_of,
    is_plain,
    names_of,
    texts_of,
    words_of,
    words_of_key,
)
from lockstep_cache.random_watch import is_generator
from lockstep_cache.settings_watch import SettingsWatch
from lockstep_cache.shared_memory import SharedMappings, address_of

_DEEPEST = 100
_MANY = 64
_OF_NO_MATTER = frozenset({
    "__init__", "__repr__", "__str__", "__del__", "__getstate__", "__setstate__", "__reduce__",
})  # fmt: skip
_COLLECTIONS = (list, tuple, set, frozenset, dict, collections.deque, types.MappingProxyType)
_DESCRIPTORS = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_LOCKS = (
    type(threading.Lock()), type(threading.RLock()),
    multiprocessing.synchronize.Lock, multiprocessing.synchronize.RLock,
)  # fmt: skip
"""They hold nothing that a sample could be made of."""

_UNREADABLE = (threading.local, weakref.ref, *weakref.ProxyTypes, queue.SimpleQueue)
_UNREADABLE_PACKAGES = ("multiprocessing", "weakref", "queue")
"""Values that others set, or that are another one in each thread."""

_OUR_NAMES = re.compile(r"class|self|(part|default|key)\d+|__\w+__")
"""Of places in a description: nothing that a user could name."""

_VARIABLE = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
"""Texts that may name a variable of the environment."""

_ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "expandvars"})
_PICKLING = ("__getstate__", "__reduce__", "__reduce_ex__")
_HEAP_TYPE = 1 << 9
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

BELOW = "pipeline_below"
"""The class attribute of a data set that only passes samples on: the name of the attribute with what makes them."""


@functools.lru_cache
def version(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


class Parts:
    """Describes values, and what they hold.

    ignored: Names of attributes that do not count.
    is_first: Whether nobody has looked at it before: torch moves tensors to shared memory when it sends them to a
        worker.
    """

    def __init__(self, ignored: frozenset[str], *, is_first: bool) -> None:
        self.words: dict[str, str] = {}
        self.unknown: list[str] = []
        self.packages: set[str] = set()
        self.generators: list[Any] = []
        self.files = NamedFiles()
        self.settings = SettingsWatch(ignored)
        self._ignored, self._is_first = ignored, is_first
        self._seen: dict[int, tuple[str, object]] = {}
        self.environment = ""
        self._reads_environment = False
        self._texts: set[str] = set()
        self._constants: set[str] = set()
        self._installed: dict[str, bool] = {}

    @functools.cached_property
    def _shared(self) -> SharedMappings:
        return SharedMappings()

    def look_at(self, source: object) -> None:
        """Describe a data set."""
        self.look("dataset", source, 0)
        self._environment()
        self.settings.begin()

    def _environment(self) -> None:
        """Variables of the environment count where some code reads it, if it or the data set holds their names."""
        if not self._reads_environment:
            return
        names = sorted(
            one
            for one in (self._texts | self._constants) - self._ignored
            if _VARIABLE.fullmatch(one)
        )
        found = [(name, os.environ[name]) for name in names if name in os.environ]
        self.environment = digest_of(repr(found).encode("utf-8", "surrogatepass")) if found else ""
        self.settings.environment(
            one for one in names if one in self._constants or one in os.environ
        )

    def look(self, where: str, value: Any, depth: int) -> None:
        """Describe a value and what it holds; one that cannot be looked at is unknown."""
        try:
            self._look(where, value, depth)
        except (
            Exception
        ):  # an object of a stranger's may raise anything when it is asked for its attributes
            self._unknown(where, value, "cannot be read")

    def _look(self, where: str, value: Any, depth: int) -> None:
        words: str | None
        if is_generator(value):
            if all(value is not one for one in self.generators):
                self.generators.append(value)
            self._say(where, f"a generator of {type(value).__module__}")
        elif id(value) in self._seen:
            self._say(where, f"as {self._seen[id(value)][0]}")
        elif why := self._why_unknown(value):
            self._unknown(where, value, why)
        elif (words := words_of(value)) is not None:
            self._plain(where, value, words, depth)
        elif depth > _DEEPEST:
            self._unknown(where, value, "lies too deep to be read")
        else:
            self._seen[id(value)] = where, value
            self._composed(where, value, depth + 1)

    def _why_unknown(self, value: Any) -> str:
        """Why a value may be another one whenever it is asked for, or in another thread or process; "" if not."""
        kind = type(value)
        if kind in _LOCKS or isinstance(value, type):
            return ""
        package = str(kind.__module__).partition(".")[0]
        if issubclass(kind, _UNREADABLE) or package in _UNREADABLE_PACKAGES:
            return "can be set from elsewhere"
        is_looked_at = self._is_first or not issubclass(kind, torch.Tensor)
        if is_looked_at and (address := address_of(value)) and self._shared.hold(address):
            return "lies in memory that other processes can write to"
        return ""

    def _composed(self, where: str, value: Any, depth: int) -> None:
        if isinstance(value, types.ModuleType):
            self._module(where, value, depth)
        elif isinstance(value, types.FunctionType):
            self._function(where, value, depth)
        elif isinstance(value, types.MethodType):
            self.look(f"{where}.self", value.__self__, depth)
            self.look(f"{where}.{value.__name__}", value.__func__, depth)
        elif isinstance(value, types.BuiltinFunctionType):
            self._say(where, f"{value.__module__}.{value.__qualname__}")
            if not isinstance(value.__self__, (types.ModuleType, type(None))):
                self.look(f"{where}.self", value.__self__, depth)
        elif isinstance(value, type):
            self._class(where, value, depth)
        elif isinstance(value, _DESCRIPTORS) or self._is_a_package_s_own(value):
            self._say(where, f"{getattr(value, '__module__', '')}.{value.__qualname__}")
        elif type(value) is np.ndarray:
            self.look(where, value.tolist(), depth)
        elif isinstance(value, _COLLECTIONS):
            self._collection(where, value, depth)
        else:
            self._object(where, value, depth)

    def _say(self, where: str, words: str) -> None:
        self.words[where] = words

    def _unknown(self, where: str, value: Any, why: str) -> None:
        """Something of which nobody can tell whether it stays the same."""
        self._say(where, f"a {type(value).__qualname__} that {why}")
        names = [one for one in re.findall(r"[.<](\w+)", where) if not _OUR_NAMES.fullmatch(one)]
        name = names[-1] if names else "..."
        self.unknown.append(
            f"{where} is a {type(value).__qualname__} that {why}; if samples do not change with it, "
            f"give ignore=({name!r},)"
        )

    def _plain(self, where: str, value: Any, words: str, depth: int) -> None:
        if isinstance(value, (str, bytes, os.PathLike)):
            self.files.add_all([os.fspath(value)])
            self._texts.add(os.fsdecode(value))
        elif isinstance(value, np.memmap):
            self.files.add_all([os.fspath(value.filename or "")])
        elif hasattr(type(value), "_version"):
            self.settings.tensor(value)
            for name, one in vars(value).items():  # of boxes, say, whose corners they are
                self.look(f"{where}.{name}", one, depth + 1)
        self._say(where, words)

    # ------------------------------------------------------------------------------- what holds others

    def _collection(self, where: str, value: Any, depth: int) -> None:
        is_dict = isinstance(value, (dict, types.MappingProxyType))
        keys: list[Any] = list(value) if is_dict else []
        held = list(value.values()) if is_dict else list(value)
        if isinstance(value, (set, frozenset)):
            held.sort(key=repr)
        self.settings.collection(value)
        self._say(where, f"{type(value).__name__} of {len(value)}")
        if type(value) not in _COLLECTIONS:
            self._own(where, value, depth)
        texts: list[str | bytes] = []
        if len(value) > _MANY and is_plain([keys, held], texts):  # as of files and labels: one line
            digest = digest_of(repr([keys, held]).encode("utf-8", "surrogatepass"))
            self._say(where, f"{type(value).__name__} of {len(value)}, {digest}")
            self.files.add_all(texts)
            return
        if keys:
            self._say(f"{where} order", ", ".join(map(words_of_key, keys)))
        for number, one in enumerate(held):
            key = keys[number] if keys else number
            if type(key) not in PLAIN:
                self.look(f"{where}.key{number}", key, depth)
            self.look(f"{where}[{key if type(key) in PLAIN else number}]", one, depth)

    def _object(self, where: str, value: Any, depth: int) -> None:
        if below := getattr(type(value), BELOW, ""):
            self.look(where, getattr(value, below), depth)
        elif type(value) in _LOCKS:
            self._say(where, "a lock")
        elif self._is_installed(type(value)) and self._is_handle(value):
            self._unknown(where, value, "holds something open, which cannot be read")
        else:
            self._own(where, value, depth)

    def _own(self, where: str, value: Any, depth: int) -> None:
        """The class of an object and its attributes; what it holds besides as it would be pickled."""
        kind = type(value)
        self.look(f"{where}.class", kind, depth)
        attributes = getattr(value, "__dict__", None)
        held = {name: getattr(value, name) for name in _slots_of(kind) if hasattr(value, name)}
        if isinstance(attributes, dict):
            self.settings.attributes(attributes)
            held.update(attributes)
        is_native = any(not one.__flags__ & _HEAP_TYPE for one in kind.__mro__[:-1])
        says_itself = self._is_installed(kind) and any(
            getattr(kind, one, None) is not getattr(object, one, None) for one in _PICKLING
        )
        if not says_itself:
            for name, one in held.items():
                if name not in self._ignored:
                    self.look(f"{where}.{name}", one, depth)
        is_set = isinstance(value, (set, frozenset))  # whose order is another in each process
        if not is_set and (is_native or not held or says_itself):
            self._reduced(where, value, depth)

    def _reduced(self, where: str, value: Any, depth: int) -> None:
        reduce = copyreg.dispatch_table.get(type(value))
        found = reduce(value) if reduce else value.__reduce_ex__(4)
        parts = (found,) if isinstance(found, str) else tuple(found)
        for number, one in enumerate(parts[: 3 if isinstance(value, _COLLECTIONS) else None]):
            is_iterator = number in (3, 4) and one is not None
            self.look(f"{where}.part{number}", list(one) if is_iterator else one, depth)

    def _is_handle(self, value: Any) -> bool:
        """Whether it is a package's object that cannot be taken elsewhere: an open file, a connection, a lock."""
        if type(value) in copyreg.dispatch_table:
            return False
        try:
            value.__reduce_ex__(4)
        except Exception:  # whatever a package says to that
            return True
        return False

    # --------------------------------------------------------------------------------------------- code

    def _class(self, where: str, value: type, depth: int) -> None:
        names = []
        for one in value.__mro__[:-1]:
            names.append(f"{one.__module__}.{one.__qualname__}")
            if self._is_installed(one):
                continue
            self.settings.attributes(vars(one))
            for name, member in vars(one).items():
                for wrapped in ("fget", "__func__", "__wrapped__", "func"):
                    member = getattr(member, wrapped, member)
                is_code = isinstance(member, types.FunctionType)
                is_private = name.startswith("__") or name == "_abc_impl" or name in self._ignored
                if name not in _OF_NO_MATTER and (is_code or not is_private):
                    self.look(f"{where}.{name}", member, depth)
        self._say(where, ", ".join(names))

    def _function(self, where: str, value: types.FunctionType, depth: int) -> None:
        if self._is_installed(value):
            self._say(where, f"{value.__module__}.{value.__qualname__}")
            return
        self._say(
            where, f"{value.__module__}.{value.__qualname__}, code {code_digest(value.__code__)}"
        )
        for number, one in enumerate(value.__defaults__ or ()):
            self.look(f"{where}.default{number}", one, depth)
        for name, one in {**(value.__kwdefaults__ or {}), **vars(value)}.items():
            self.look(f"{where}.{name}", one, depth)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            if name in self._ignored:
                continue
            with suppress(ValueError):  # not set yet
                self.look(f"{where}<{name}>", cell.cell_contents, depth)
                self.settings.cells([cell])
        code = value.__code__
        self._constants |= texts_of(code)
        self._reads_environment |= not names_of(code).isdisjoint(_ENVIRONMENT)
        self._used(where, value.__globals__, globals_of(code), names_of(code), depth)

    def _used(
        self, where: str, held: dict[str, Any], variables: Set[str], names: Set[str], depth: int
    ) -> None:
        """Variables of a module that some code takes; of the user's modules among them what it names there."""
        used = {
            one
            for one in variables & held.keys()
            if one not in self._ignored and not one.startswith("__")
        }
        if used:
            self.settings.names(held, used)
        for name in sorted(used):
            self.look(f"{where}<{name}>", held[name], depth)
            is_module = isinstance(held[name], types.ModuleType) and held is not vars(held[name])
            if is_module and not self._is_installed(held[name]):
                below = names - {name}
                self._used(f"{where}<{name}>", vars(held[name]), below, below, depth + 1)

    def _module(self, where: str, value: types.ModuleType, depth: int) -> None:
        """A package counts by its version, a module of the user's by its file and by the modules that it uses."""
        self._say(where, value.__name__)
        if self._is_installed(value):
            return
        with suppress(OSError):  # one that was made while running has no file
            content = Path(value.__file__ or "").read_bytes()
            self._say(where, f"{value.__name__}, file {digest_of(content)}")
        for name, member in sorted(vars(value).items()):
            other = member if isinstance(member, types.ModuleType) else None
            other = other or sys.modules.get(getattr(member, "__module__", None) or "")
            if other is not None and other is not value and not self._is_installed(other):
                self.look(f"{where}.{name}", other, depth)

    def _is_a_package_s_own(self, value: Any) -> bool:
        """Whether it is a function, or the like, that a package has under this name, as one that Cython has made."""
        name = getattr(value, "__qualname__", None)
        if not isinstance(name, str) or not self._is_installed(value):
            return False
        return getattr(sys.modules.get(value.__module__), name, None) is value

    def _is_installed(self, value: Any) -> bool:
        """Whether code is that of a package, which counts by its version then."""
        name = (
            value.__name__
            if isinstance(value, types.ModuleType)
            else getattr(value, "__module__", None)
        )
        if not isinstance(name, str):
            return False
        if name not in self._installed:
            self._installed[name] = _is_of_a_package(name)
        package = name.partition(".")[0]
        if self._installed[name] and package not in sys.stdlib_module_names:
            self.packages.add(package)
        return self._installed[name]


def _is_of_a_package(name: str) -> bool:
    package = name.partition(".")[0]
    if name == "__main__" or (name not in sys.modules and package not in sys.modules):
        return False
    files = [getattr(sys.modules.get(one), "__file__", None) for one in (name, package)]
    file = files[0] or files[1]
    if file is None:
        return package in sys.stdlib_module_names
    return any(one in file for one in _PACKAGES) or file.startswith(_STANDARD)


def _slots_of(kind: type) -> list[str]:
    names: list[str] = []
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return [one for one in names if not one.startswith("__")]
