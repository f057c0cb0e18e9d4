"""Record calls of compiled functions, and runs of the graphs captured from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep.capture.calls.call_context import context_at
from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.leaves import NamedTensor, argument_tensors
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import buffers_of, has_parameters
from lockstep.capture.handlers.call_rows import CallRows, OneCall
from lockstep.capture.handlers.openings import Openings
from lockstep.capture.handlers.reach import compiled_name, modules_reached
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.core.manifest import AT_BOUNDARY, INSIDE

Entered = tuple[OpenCall, torch.nn.Module]


class CompiledCalls:
    """Records compiled functions at their boundary or, where they run eagerly, what they call.

    recording: Of this process's rank.
    openings: Tells which calls begin a step.
    rows: Begins and ends the rows of calls.
    eager: Whether what is compiled runs eagerly, graph by graph, see `lockstep.capture.compiled.graphs`.

    graphs_run: How many graphs were run.
    """

    def __init__(
        self, recording: RankRecording, openings: Openings, rows: CallRows, *, eager: bool
    ) -> None:
        self.eager = eager
        self.graphs_run = 0
        self._openings, self._rows = openings, rows
        self._recording = recording
        self._steps = recording.steps
        self._around = -1

    # --- compiled functions ---------------------------------------------------------------------

    def call(
        self,
        compiled: Callable[..., Any],
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a compiled function; calls `run` once and returns its result."""
        if self.eager:
            self._meet(modules_reached(compiled, args, kwargs), argument_tensors(args, kwargs))
            return run(*args, **kwargs)
        one = self.begun(compiled, args, kwargs)
        return self._rows.run_one(one, functools.partial(run, *args, **kwargs))

    def begun(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OneCall | None:
        """As `call`, where it runs by itself."""
        name, modules = compiled_name(compiled), modules_reached(compiled, args, kwargs)
        if not modules and not argument_tensors(args, kwargs):
            return None  # an optimizer's step, say
        one = self._rows.begin_one(name, modules, args, kwargs)
        if one is not None:
            self._recording.note_once(f"{INSIDE}{name}", AT_BOUNDARY)
        return one

    def ended(self, one: OneCall, result: Any, *, raised: bool) -> None:
        """It has returned, or raised."""
        if raised:
            self._rows.abandon(one.call)
        else:
            self._rows.end_one(one, result)

    def _meet(self, modules: Sequence[torch.nn.Module], tensors: list[NamedTensor]) -> None:
        """Name modules before what is captured of them runs."""
        around = context_at(self._rows.places.here)
        trained = any(map(has_parameters, modules))
        if around.is_top and not self._steps.is_certain:
            self._openings.reconsider(tensors, module=trained)
        session = self._openings.session(may_begin=around.builds_graph and trained)
        if session is not None:
            if trained:
                self._steps.module_called()
            self._rows.named_buffers(session, modules, around.place)

    # --- graphs ---------------------------------------------------------------------------------

    def graph_run(
        self,
        run: Callable[[], Any],
        around: torch.nn.Module | None,
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Run what was captured of `around` on some tensors, at the place where it is called.

        `around` is the module whose code the graph was captured from, where that is not called from a graph.
        """
        called_at = context_at(self._rows.places.here)
        session = self._openings.session(may_begin=called_at.builds_graph)
        if session is None:
            return run()
        self.graphs_run += 1
        self._recording.note_once(
            "the compiler's own kernels", "--compile-eager: what it captured runs eagerly"
        )
        place = called_at.place or Place(-1, "", "", None, session.rows.stack_here())
        self._around = place.stack
        path = None if around is None else session.names.path_of(around)
        if around is None or path is None or path == place.path:
            return self._rows.run_within(place, None, run)

        def within() -> Any:
            entered = self._enter(session, around, tensors)
            result = run()
            self.module_left(entered, _tensors_in(result))
            return result

        return self._rows.run_within(place, None, within)

    def owners(self, tensors: Sequence[Any]) -> tuple[str, ...]:
        """Names of those that are parameters or buffers, "" for others."""
        session = self._recording.session
        if session is None:
            return ()
        owners = [
            session.names.owner_of(one) if isinstance(one, torch.Tensor) else None
            for one in tensors
        ]
        return tuple("" if owner is None else owner[1] for owner in owners)

    def module_entered(
        self, module_id: int, tensors: Sequence[torch.Tensor], moved: tuple[str, str]
    ) -> Entered | None:
        """A stretch of a graph begins that was captured in a module.

        `moved` tells what took the place of which path since the graph was captured.
        """
        session = self._recording.session
        module = None if session is None else session.names.module_with(module_id, moved)
        if session is None or module is None:
            return None
        return self._enter(session, module, tensors)

    def _enter(
        self, session: Session, module: torch.nn.Module, tensors: Sequence[torch.Tensor]
    ) -> Entered | None:
        plain = [
            one
            for one in tensors
            if session.names.owner_of(one) is None and not _is_wrapped_number(one)
        ]
        inputs = [("args.0", plain[0])] if len(plain) == 1 else []  # else their order is not known
        here = context_at(self._rows.places.here)
        opened = self._rows.begin_module(session, here, module, inputs)
        if opened is None:
            return None
        self._rows.places.enter(
            Place(opened.id, opened.path, opened.module_class, module, opened.stack)
        )
        return opened, module

    def module_left(self, entered: Entered | None, tensors: Sequence[torch.Tensor]) -> None:
        """It ends."""
        if entered is not None:
            opened, module = entered
            self._rows.places.leave()
            outputs = [("result", tensors[0])] if len(tensors) == 1 else []
            self._rows.end(opened, outputs, buffers=list(buffers_of(module, inside=False)))

    def at_frames(self, frames: tuple[tuple[str, int, str], ...]) -> None:
        """What a graph calls next was captured here: file, line and function, innermost first."""
        session, place = self._recording.session, self._rows.places.here
        if session is not None and place is not None:
            self._rows.places.leave()
            self._rows.places.enter(
                replace(place, stack=session.rows.stack_told(frames, self._around))
            )


def _tensors_in(result: Any) -> list[torch.Tensor]:
    items = result if isinstance(result, (tuple, list)) else (result,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _is_wrapped_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is how a number of Python enters a graph of dynamic shapes."""
    return tensor.dim() == 0 and tensor.dtype is torch.float64
