"""Listens to the functions that a JAX training calls, and records the programs of those that take gradients.

Before such a function runs, its program is evaluated on the same arguments, operation by operation. The training gets
what the compiled function returns.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lockstep.capture.user_notes import warn
from lockstep.core.manifest import COMPILED_BY_XLA
from lockstep.wings.frameworks.jax.agreement import disagreement
from lockstep.wings.frameworks.jax.evaluation import Evaluation, Value
from lockstep.wings.frameworks.jax.programs import Program, program_of
from lockstep.wings.frameworks.jax.roles import Roles, has_backward, roles_of
from lockstep.wings.frameworks.jax.rows import Rows
from lockstep.wings.frameworks.jax.trees import argument_paths, leaf_paths
from lockstep.wings.frameworks.jax.wrapped import Wrapping
from lockstep.wings.frameworks.recording import FrameworkRecording

UNTRACED = "functions that JAX cannot trace"


@dataclass(frozen=True, eq=False, slots=True)
class Known:
    """A program that was traced before; None for what is no part of a training."""

    program: Program
    roles: Roles


@dataclass(frozen=True, eq=False, slots=True)
class _OpenCall:
    """A call that takes gradients, whose compiled function has not run yet."""

    known: Known
    rows: Rows | None = None
    inputs: Sequence[Value] = ()
    evaluated: Sequence[Value] = ()


class Tap:
    """A listener of `Wrapping` that writes what it is told into a recording.

    Parameters
    ----------
    recording
        Takes what is seen.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self.recording = recording
        self._wrapping = Wrapping(self)
        self._known: dict[Any, Known | None] = {}

    # --- life -----------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin to listen."""
        self._wrapping.install()

    def remove(self) -> None:
        """Listen no more."""
        self._wrapping.remove()
        self._known.clear()

    def is_idle(self) -> bool:
        """Return whether nothing more is recorded."""
        return self.recording.is_done

    # --- calls ----------------------------------------------------------------------------------

    def called(self, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Record the program of a call that takes gradients, and return what the call gives."""
        open_calls: list[_OpenCall] = []
        self._silenced(lambda: open_calls.extend(self._before(function, args, kwargs)))
        result = run()
        for one in open_calls:
            self._silenced(functools.partial(self._after, one, result))
            self.recording.end_process_if_asked()
        return result

    def _silenced(self, act: Callable[[], Any]) -> None:
        """Whatever goes wrong here ends the recording, and not the training."""
        try:
            act()
        except Exception as error:
            self.recording.fail(error)

    def _before(self, function: Any, args: Any, kwargs: Any) -> Iterator[_OpenCall]:
        """Evaluate the program of a call, while its arguments are there: the call may take their memory."""
        traced = self._traced(function, args, kwargs)
        known = None if traced is None else self._known_of(traced)
        if known is None:
            return
        if not self.recording.wants(0):
            yield _OpenCall(known)
            return
        rows = Rows(self.recording, known.program, known.roles)
        inputs = _inputs(known.program, jax.tree_util.tree_leaves((args, kwargs)))
        with jax.disable_jit(False):
            rows.before(inputs)
            yield _OpenCall(known, rows, inputs, Evaluation(rows.seen).run(known.program, inputs))

    def _after(self, call: _OpenCall, result: Any) -> None:
        """Record what the training goes on with, and end the step."""
        if call.rows is not None:
            results = jax.tree_util.tree_leaves(result)
            self._check(call, results)
            call.rows.after(results)
        self.recording.end_step(0)

    def _check(self, call: _OpenCall, results: Sequence[Any]) -> None:
        with jax.disable_jit(False):
            off = disagreement(call.known.program, call.inputs, call.evaluated, results)
        if off:
            reason = f"the compiled function's results are not what its own jaxpr gives: {off}"
            self.recording.note_gap(COMPILED_BY_XLA, reason)
            warn(reason)

    def _traced(self, function: Any, args: Any, kwargs: Any) -> Any:
        try:
            with _without_traces():
                return function.trace(*args, **kwargs)
        except Exception as error:  # the script's own code runs there, and may do anything
            reason = f"{type(error).__name__} in {getattr(function, '__name__', function)}"
            self.recording.note_gap(UNTRACED, f"{reason}; put the update under jax.jit")
            return None

    def _known_of(self, traced: Any) -> Known | None:
        closed = traced.jaxpr
        if closed not in self._known:
            program = program_of(closed)
            self._known[closed] = _known(program, traced) if has_backward(program) else None
        return self._known[closed]


def _known(program: Program, traced: Any) -> Known:
    inputs = argument_paths(traced.args_info, traced.jaxpr.jaxpr.debug_info.arg_names or ())
    return Known(program, roles_of(program, inputs, leaf_paths(traced.out_info)))


def _inputs(program: Program, leaves: Sequence[Any]) -> list[Value]:
    """The arguments as JAX takes them: a number becomes an array of the dtype that the program has it in."""
    kinds = [program.types[number] for number in program.inputs]
    return [
        Value(leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf, kind.dtype))
        for leaf, kind in zip(leaves, kinds, strict=True)
    ]


@contextmanager
def _without_traces() -> Iterator[None]:
    """Random numbers that a script draws while it is traced are drawn again when it runs."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with jax.disable_jit(False):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
