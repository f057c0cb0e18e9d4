"""Names for the modules that a function calls while it is traced: each equation tells then which module it is of.

Modules of flax linen name themselves. Those of NNX and equinox are named by where they lie in the outermost module.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from lockstep.recorder import Patch
from lockstep_frameworks.jax.objects import (
    class_name,
    inside_of,
    module_classes,
    settings_of_module,
)


@dataclass(frozen=True, slots=True)
class Module:
    """Class and plain settings of a module."""

    kind: str
    settings: dict[str, Any]


@dataclass(slots=True)
class Scopes:
    """What was learnt of modules, by path."""

    modules: dict[str, Module] = field(default_factory=dict)
    _paths: dict[int, tuple[str, Any]] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Name modules that are called in here."""
        patches = [
            Patch(kind, "__call__", self._wrap_call)
            for kind in module_classes()
            if "__call__" in vars(kind)
        ]
        with ExitStack() as stack:
            linen = sys.modules.get("flax.linen")
            if linen is not None and hasattr(linen, "intercept_methods"):
                stack.enter_context(linen.intercept_methods(self._on_linen))
            for patch in patches:
                patch.put()
                stack.callback(patch.take_back)
            stack.callback(self._paths.clear)
            yield

    def _on_linen(self, method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.method_name == "__call__":
            path = ".".join(context.module.path)
            self.modules.setdefault(path, described(context.module))
        return method(*args, **kwargs)

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._path_of(module)
            if path is None or path in self._open[-1:]:  # `super().__call__`
                return original(module, *args, **kwargs)
            above = self._open[-1] if self._open else ""
            own = path.removeprefix(f"{above}.") if above else path
            self.modules.setdefault(path, described(module))
            self._open.append(path)
            try:
                with jax.named_scope(own) if own else ExitStack():
                    return original(module, *args, **kwargs)
            finally:
                self._open.pop()

        return call

    def _path_of(self, module: Any) -> str | None:
        """Where a module lies in the outermost one that is called; None for one that lies in none."""
        if not self._open and id(module) not in self._paths:
            for path, inside in inside_of(module):
                self._paths.setdefault(id(inside), (".".join(path), inside))
        known = self._paths.get(id(module))
        return None if known is None else known[0]


def described(module: Any) -> Module:
    """Return the class and the settings of a module."""
    return Module(class_name(module), settings_of_module(module))
