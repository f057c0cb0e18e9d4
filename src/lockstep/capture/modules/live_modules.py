"""Which modules live in this process: the root of a module may be one that is never called itself."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import compress, repeat
from operator import is_not
from typing import Any

from torch.nn import Module

from lockstep.capture.modules.made_buffers import MadeBuffers
from lockstep.capture.patching.patches import Patch


def living(*kinds: type) -> list[Any]:
    """Every object of some classes that the garbage collector knows; looks at the whole heap.

    Not at tuples: one that another thread is making must have no second owner, or Python ends with a SystemError there.
    They are let go of at once, by a loop in which no other thread runs.
    """
    every = gc.get_objects()
    items = list(compress(every, map(is_not, map(type, every), repeat(tuple))))
    every.clear()
    wanted = {kind for kind in set(map(type, items)) if issubclass(kind, kinds)}
    return [item for item in items if type(item) in wanted] if wanted else []


class LivingModules:
    """The modules of this process: those found once, and those made since.

    Looking at the whole heap takes a tenth of a second and more, which no training step should pay.

    buffers: At which line each buffer was registered that was made since.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()
        self._made: Counter[str] = Counter()
        self._places: dict[int, int] = {}
        self._before: set[int] = set()
        self.buffers = MadeBuffers()
        self._patches = [
            Patch(Module, "__init__", self._noting),
            Patch(Module, "__setstate__", self._noting),  # copies and unpickled ones
        ]

    def listen(self) -> None:
        """Note every module that is made from now on."""
        for patch in self._patches:
            patch.put()
        self.buffers.listen()

    def stop(self) -> None:
        """Note no more, and forget."""
        for patch in self._patches:
            patch.take_back()
        self.buffers.stop()
        self._all.clear()
        self._places.clear()
        self._before.clear()

    def found(self, modules: Iterable[Module]) -> None:
        """Those made before."""
        for module in modules:
            self._note(module)
            self._before.add(id(module))

    def _note(self, module: Module) -> None:
        kind = type(module)
        name = f"{kind.__module__}.{kind.__qualname__}"
        self._all[id(module)] = module
        self._places[id(module)] = self._made[name]
        self._made[name] += 1
        self._before.discard(id(module))
        self.buffers.forget(id(module))

    def was_before(self, module: Module) -> bool:
        """Whether it was made before anybody listened."""
        return id(module) in self._before

    def place_of(self, module: Module) -> int:
        """How many of its class were made before it, whether they live or not."""
        return self._places.get(id(module), 0)

    def all(self) -> list[Module]:
        """Those that are made so far that they can have parts, in the order in which they were made."""
        return [module for module in self._all.values() if "_modules" in vars(module)]

    def tops(self) -> list[Module]:
        """Modules that are no part of another one."""
        modules = self.all()
        children = {id(child) for module in modules for child in module._modules.values()}
        return [module for module in modules if id(module) not in children]

    def _noting(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def noting(module: Module, *args: Any, **kwargs: Any) -> None:
            self._note(module)
            original(module, *args, **kwargs)

        return noting
