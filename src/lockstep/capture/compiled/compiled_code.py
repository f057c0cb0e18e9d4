"""Compiled code: it runs untapped, and plain compiled functions are recorded at their boundary."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from lockstep.capture.handlers.call_rows import OneCall
from lockstep.capture.handlers.calls import Calls
from lockstep.capture.patching.patches import Patch
from lockstep.capture.patching.untraced import never_compiled


def wrap_compile(
    compile_: Callable[..., Any],
    calls_now: Callable[[], Calls | None],
    *,
    eager: bool = False,
) -> Callable[..., Any]:
    """`torch.compile` whose plain functions run untapped; modules are caught when they are called.

    With `eager` what it captures is not compiled: it runs operator by operator, under the taps.
    """

    @functools.wraps(compile_)
    def compile_with_taps(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        calls = calls_now()
        if calls is None:
            return compile_(model, *args, **kwargs)
        if eager:
            kwargs = {key: value for key, value in kwargs.items() if key not in ("mode", "options")}
            kwargs["backend"] = _eager_backend(calls_now)
        compiled = calls.taps.call_untapped(lambda: compile_(model, *args, **kwargs))
        calls.compiler_loaded()
        if model is None or isinstance(compiled, torch.nn.Module) or not callable(compiled):
            return compiled
        return _with_boundary(compiled, model, calls_now)

    return compile_with_taps


def _eager_backend(calls_now: Callable[[], Calls | None]) -> Callable[..., Any]:
    """See `lockstep.capture.compiled.graphs`; what it needs of torch takes a second to load."""
    from lockstep.capture.compiled.graphs import eager_backend

    return eager_backend(calls_now)


def _with_boundary(
    compiled: Callable[..., Any],
    function: Callable[..., Any],
    calls_now: Callable[[], Calls | None],
) -> Callable[..., Any]:
    """A compiled function whose calls are recorded as one operator."""

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return compiled(*args, **kwargs)
        calls = calls_now()
        if calls is None or not calls.taps.installed:
            return compiled(*args, **kwargs)

        def untapped(*args: Any, **kwargs: Any) -> Any:
            return calls.taps.call_untapped(lambda: compiled(*args, **kwargs))

        return calls.compiled.call(function, untapped, args, kwargs)

    return call


class CompiledCodeGate(threading.local):
    """The way into compiled code, for functions that were compiled before recording began.

    The wrapper that Dynamo puts around a compiled function first asks for no callback, then passes
    its own, and on the way out what was there before. In between, others go in and out too, so the
    wrapper is known by its frame.

    calls_now: Gives what records the calls of the process, if anything does.
    """

    def __init__(self, calls_now: Callable[[], Calls | None]) -> None:
        self._calls_now = calls_now
        self._left: Calls | None = None
        self._wrapper = 0
        self._call: OneCall | None = None

    def patches(self) -> list[Patch]:
        """The patches that watch it; none where nothing was compiled yet."""
        compiler = sys.modules.get("torch._dynamo.eval_frame")
        if not hasattr(compiler, "_maybe_set_eval_frame"):
            return []
        return [
            Patch(compiler, "set_eval_frame", self._before_callback),
            Patch(compiler, "_maybe_set_eval_frame", self._set_callback),
        ]

    def _before_callback(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def set_eval_frame(callback: Any) -> Any:
            wrapper = sys._getframe(1)
            before = original(callback)
            if self._left is None and wrapper.f_code.co_name == "compile_wrapper":
                self._enter(wrapper)
            return before

        return never_compiled(set_eval_frame)

    def _set_callback(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def maybe_set_eval_frame(callback: Any) -> Any:
            wrapper = sys._getframe(1)
            if self._left is None:
                if callable(callback) and wrapper.f_code.co_name != "__enter__":
                    self._enter(wrapper)
            elif self._wrapper == id(wrapper) and not callable(callback):
                self._leave(wrapper, self._left)
            return original(callback)

        return never_compiled(maybe_set_eval_frame)

    def _enter(self, wrapper: FrameType) -> None:
        calls = self._calls_now()
        if calls is None or not calls.taps.installed:
            return
        self._left, self._wrapper = calls, id(wrapper)
        given = wrapper.f_locals
        if callable(given.get("fn")) and "args" in given and "kwargs" in given:
            self._call = calls.compiled.begun(given["fn"], given["args"], given["kwargs"])
        calls.taps.enter_untapped()

    def _leave(self, wrapper: FrameType, calls: Calls) -> None:
        calls.taps.leave_untapped()
        one, self._call, self._left = self._call, None, None
        if one is not None:
            given = wrapper.f_locals
            raised = not given.get("call_succeeded", "result" in given)
            calls.compiled.ended(one, given.get("result"), raised=raised)
