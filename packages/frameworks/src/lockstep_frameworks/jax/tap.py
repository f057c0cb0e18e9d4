"""Listens to the functions that a JAX training calls, and hands those that belong to a step on.

The training gets what the compiled function returns.
"""

from __future__ import annotations

import atexit
import copy
import functools
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from lockstep.recorder import uncaught
from lockstep_frameworks.jax.eager_calls import EagerCalls, Operator
from lockstep_frameworks.jax.followers import OTHER_GRADIENTS
from lockstep_frameworks.jax.known import Known, KnownPrograms, dynamic_leaves
from lockstep_frameworks.jax.steps import Opened, Steps
from lockstep_frameworks.jax.wrapped import Wrapping
from lockstep_frameworks.recording import FrameworkRecording

_CONTAINERS = (deque, dict, list, set)
UNTRACED = "functions that JAX cannot trace"


class Tap:
    """A listener of `Wrapping` that hands what it is told to the steps of a recording.

    recording: Takes what is seen.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self.recording = recording
        self._steps = Steps(recording)
        self._known = KnownPrograms()
        self._wrapping = Wrapping(self)
        self._eager = EagerCalls(self._computed)

    def install(self) -> None:
        """Begin to listen."""
        self._wrapping.install()
        self._eager.install()
        atexit.register(self._at_exit)  # before the recording is closed

    def remove(self) -> None:
        """Listen no more."""
        self._wrapping.remove()
        self._eager.remove()
        self._known.clear()

    def is_idle(self) -> bool:
        """Return whether nothing more is recorded."""
        return self.recording.is_done

    def called(self, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Record the program of a call that belongs to a step, and return what the call gives."""
        opened: list[Opened] = []
        self._silenced(lambda: opened.extend(self._opened(function, args, kwargs)))
        self.recording.end_process_if_asked()
        result = run()
        for one in opened:
            self._silenced(functools.partial(self._steps.after, one, result))
        self._silenced(lambda: self._steps.followers.gave(result))
        self.recording.end_process_if_asked()
        return result

    def unseen(self, name: str) -> None:
        """Say that a transformation is called that no step is recorded of."""
        reason = "its values come back from no call that Lockstep evaluates; use jax.jit with jax.grad inside"
        self.recording.note_gap(OTHER_GRADIENTS.format(f"jax.{name}"), reason)

    def _computed(self, told: Callable[[], Operator], arguments: Any) -> None:
        """Record an operator that the script runs by itself after it has taken gradients."""
        if self._wrapping.depth.value or self.is_idle():
            return
        self._wrapping.depth.value += 1
        try:
            if self._steps.is_updating:
                self._silenced(lambda: self._steps.computed(told()))
            else:
                self._silenced(lambda: self._steps.followers.computes(arguments))
        finally:
            self._wrapping.depth.value -= 1

    def finish(self) -> None:
        """The training has come to its end."""
        if not self.is_idle():
            self._silenced(self._steps.finish)

    def _at_exit(self) -> None:
        if not uncaught():
            self.finish()

    def _silenced(self, act: Callable[[], Any]) -> None:
        """Whatever goes wrong here ends the recording, and not the training."""
        try:
            act()
        except Exception as error:
            self.recording.fail(error)

    def _opened(self, function: Any, args: Any, kwargs: Any) -> Iterator[Opened]:
        known = self._traced(function, args, kwargs)
        opened = None
        if known is not None:
            name = getattr(function, "__name__", str(function))
            opened = self._steps.before(known, dynamic_leaves(function, args, kwargs), name)
        if opened is not None:
            yield opened

    def _traced(self, function: Any, args: Any, kwargs: Any) -> Known | None:
        try:
            with (
                _drawing_nothing(), _kept_containers(function), jax.disable_jit(False),
                self._known.scopes.named(),
            ):  # fmt: skip
                traced = function.trace(*args, **kwargs)
        except Exception as error:  # the script's own code runs there, and may do anything
            reason = f"{type(error).__name__} in {getattr(function, '__name__', function)}"
            self.recording.note_gap(UNTRACED, f"{reason}; put the update under jax.jit")
            return None
        return self._known.of(traced, args)


@contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Random numbers that a script draws while it is traced are drawn again when it runs."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def _kept_containers(function: Any) -> Iterator[None]:
    """What a callable object keeps in its containers is there again when it runs: flax NNX takes from a queue."""
    kept = []
    while function is not None:
        own = vars(function) if hasattr(function, "__dict__") else {}
        kept += [(one, copy.copy(one)) for one in own.values() if type(one) in _CONTAINERS]
        function = own.get("__wrapped__")
    try:
        yield
    finally:
        for container, before in kept:
            container.clear()
            fill = container.extend if isinstance(container, (deque, list)) else container.update
            fill(before)
