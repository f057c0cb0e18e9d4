"""Tells of each operator that runs outside of functions under `jax.jit`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lockstep.recorder import Patch
from lockstep_frameworks.jax.known import dynamic_leaves

Operator = tuple[Any, Sequence[Any], Sequence[Any]]
"""The jaxpr of an operator, what went in and what came out."""
Computed = Callable[[Callable[[], Operator], Any], None]
"""Is told of an operator, by a function that says which it was, and its arguments as they were given."""

_PLACES = (("jax._src.pjit", "_run_python_pjit"), ("jax._src.api", "_post_hook_state"))
"""Where JAX runs a function that it compiles first, and what it calls after one that is compiled already."""


class EagerCalls:
    """Listens to the functions by which JAX runs operators one by one; changes none of them.

    computed: Is told of each, also of the caller's own functions under `jax.jit`.
    """

    def __init__(self, computed: Computed) -> None:
        self._computed = computed
        (runs, run), (hooks, hook) = ((importlib.import_module(one), two) for one, two in _PLACES)
        self.can_listen = hasattr(runs, run) and hasattr(hooks, hook)
        self._patches = [Patch(runs, run, self._wrap_first), Patch(hooks, hook, self._wrap_state)]
        self._state: _State | None = None

    def install(self) -> None:
        """Begin to listen, where this release of JAX has the places for it."""
        if self.can_listen:
            for patch in self._patches:
                patch.put()

    def remove(self) -> None:
        """Listen no more."""
        if self.can_listen:
            if self._state is not None:
                self._state.restore()
            for patch in self._patches:
                patch.take_back()

    def _wrap_first(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(settings: Any, leaves: Any, *others: Any) -> Any:
            found = original(settings, leaves, *others)
            if found[5] is not None:  # compiled: not inside of another trace
                self._computed(lambda: (settings.params["jaxpr"], leaves, found[1]), leaves)
            return found

        return run

    def _wrap_state(self, original: Any) -> _State:
        self._state = _State(original, self._after)
        return self._state

    def _after(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        def told() -> Operator:
            jaxpr = function.trace(*args, **kwargs).jaxpr
            return jaxpr, dynamic_leaves(function, args, kwargs), jax.tree_util.tree_leaves(result)

        self._computed(told, (args, kwargs))


class _State:
    """JAX's own state of the function that it calls after compiled ones: ours is called as well as the one it sets."""

    def __init__(self, original: Any, after: Callable[..., None]) -> None:
        self._original, self._after, self._set = original, after, original.value
        original.set_global(self._with(self._set))
        original.set_local(self._with(self._set))

    def _with(self, other: Callable[..., None] | None) -> Callable[..., None]:
        if other is None:
            return self._after

        def both(*given: Any) -> None:
            other(*given)
            self._after(*given)

        return both

    def set_global(self, other: Callable[..., None] | None) -> None:
        self._set = other
        self._original.set_global(self._with(other))

    def set_local(self, other: Callable[..., None] | None) -> None:
        self._original.set_local(self._with(other))

    def restore(self) -> None:
        """Call what JAX has set alone."""
        self._original.set_global(self._set)
        self._original.set_local(self._set)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
