"""Functions under `jax.jit`, `jax.grad` and `jax.value_and_grad` that tell a listener of each call at top level."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax

from lockstep.recorder import Patch


class Listener(Protocol):
    """Is told of calls at top level."""

    def is_idle(self) -> bool:
        """Return whether nothing more is to be told."""

    def called(self, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Return what `run` gives, which calls `function` with these arguments."""

    def unseen(self, name: str) -> None:
        """Is told the name of a transformation that is called, and whose program is not looked at."""


_MAKE_UNSEEN, _RUN_UNSEEN = ("pmap", "jacfwd", "jacrev", "hessian"), ("vjp", "linearize")
"""Transformations by which a training may take gradients, and of which no step is recorded: those that make a
function, and those that call one."""


class _Depth(threading.local):
    """How many calls are open in this thread."""

    value = 0


class Wrapping:
    """Wraps the transformations of JAX that a script calls.

    listener: Is told of calls.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.depth = _Depth()
        self.jit = jax.jit
        self._patches = [
            Patch(jax, "jit", self._wrap_jit),
            Patch(jax, "grad", self._wrap_gradient),
            Patch(jax, "value_and_grad", self._wrap_gradient),
            *(Patch(jax, name, partial(self._wrap_unseen_maker, name)) for name in _MAKE_UNSEEN),
            *(Patch(jax, name, partial(self._wrap_unseen, name)) for name in _RUN_UNSEEN),
        ]

    def install(self) -> None:
        """Wrap what is made from now on."""
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Wrap no more; what was wrapped passes calls on."""
        for patch in self._patches:
            patch.take_back()

    def call(self, function: Any, traced: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and tell the listener where that is at top level; `traced` can be traced as it."""
        if self.depth.value or self.listener.is_idle() or _is_traced(args, kwargs):
            return function(*args, **kwargs)
        self.depth.value += 1
        try:
            return self.listener.called(traced, args, kwargs, lambda: function(*args, **kwargs))
        finally:
            self.depth.value -= 1

    def _wrap_jit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def jit(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if hasattr(made, "trace"):
                return Jitted(made, self)
            return lambda function: Jitted(made(function), self)  # `jax.jit(static_argnums=0)`

        return jit

    def _wrap_unseen_maker(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            return Jitted(original(*args, **kwargs), self, name)

        return make

    def _wrap_unseen(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(function: Any, *args: Any, **kwargs: Any) -> Any:
            return self.call_unseen(name, partial(original, function), args, kwargs)

        return run

    def call_unseen(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, and tell the listener of a transformation where that is at top level."""
        if self.depth.value or self.listener.is_idle() or _is_traced(args, kwargs):
            return function(*args, **kwargs)
        self.listener.unseen(name)
        self.depth.value += 1
        try:
            return function(*args, **kwargs)
        finally:
            self.depth.value -= 1

    def _wrap_gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def transform(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            traced: list[Any] = []

            @functools.wraps(made)
            def gradient(*given: Any, **named: Any) -> Any:
                if not traced:
                    traced.append(self.jit(made))
                return self.call(made, traced[0], given, named)

            return gradient

        return transform


class Jitted:
    """A function under `jax.jit`, which does all that it does without Lockstep.

    function, wrapping: As JAX has made it, and who is told of its calls.
    unseen: The transformation that made it, where that is not `jit` and calls are not looked at.
    """

    def __init__(self, function: Any, wrapping: Wrapping, unseen: str = "") -> None:
        functools.update_wrapper(self, function)
        self._lockstep = (function, wrapping, unseen)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, wrapping, unseen = self._lockstep
        if unseen:
            return wrapping.call_unseen(unseen, function, args, kwargs)
        return wrapping.call(function, function, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_lockstep":
            raise AttributeError(name)
        return getattr(self._lockstep[0], name)

    def __repr__(self) -> str:
        return repr(self._lockstep[0])

    def __reduce__(self) -> Any:
        return _itself, (self._lockstep[0],)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace as JAX does."""
        return self._lockstep[0].trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lower as JAX does."""
        return self._lockstep[0].lower(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Tell shapes as JAX does."""
        return self._lockstep[0].eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Clear the cache as JAX does."""
        self._lockstep[0].clear_cache()


def _itself(function: Any) -> Any:
    return function


def _is_traced(args: Any, kwargs: Any) -> bool:
    """Whether a call is inside of another one that JAX traces."""
    leaves = jax.tree_util.tree_leaves((args, kwargs))
    return any(isinstance(one, jax.core.Tracer) for one in leaves)
