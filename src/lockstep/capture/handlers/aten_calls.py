"""Record the calls of the dispatcher's operators (level aten)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lockstep.capture.calls.call_context import CallContext
from lockstep.capture.calls.kernel_context import conditions_now
from lockstep.capture.calls.leaves import argument_tensors, flattened
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import below_functions, written
from lockstep.capture.handlers.call_rows import CallRows
from lockstep.capture.patching.callers import Caller
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.core.site import CallKind, Phase


class AtenCalls:
    """Records them where they run, below autograd.

    recording: Of this process's rank.
    optimizers: Tell whether one of them is at work.
    rows: Records calls.
    """

    def __init__(self, recording: RankRecording, optimizers: Optimizers, rows: CallRows) -> None:
        self._recording, self._optimizers, self._rows = recording, optimizers, rows

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: Caller,
    ) -> Any:
        """Record one aten operator."""
        # By what an overload calls itself, which has a frame that is not there without the tap.
        inner = function._op if isinstance(function, torch._ops.OpOverload) else function
        session = self._recording.session
        around = None if session is None else self._rows.context()
        if session is None or around is None:
            return caller(inner, args, kwargs)
        call, conditions = None, conditions_now(around.grad)
        with Silence(self._recording.fail):
            call = self._begin_aten(session, around, name, conditions, args, kwargs)
        try:
            with below_functions(argument_tensors(args, kwargs)):
                result = caller(inner, args, kwargs)
        except BaseException:
            if call is not None:
                self._rows.abandon(call)
            raise
        if call is not None:
            with Silence(self._recording.fail):
                # Down here a write counts as a version only after the operator has returned.
                for tensor in written(function, args, kwargs):
                    session.contents.changed(tensor)
            self._rows.end(call, self._rows.outputs_of(result))
        return result

    def _begin_aten(
        self,
        session: Session,
        around: CallContext,
        name: str,
        conditions: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> OpenCall | None:
        place = around.place
        path, module_class = ("", "") if place is None else (place.path, place.module_class)
        call = OpenCall(
            CallKind.OPERATOR,
            name,
            place,
            path,
            module_class,
            *flattened(args, kwargs),
            self._aten_phase(around),
            conditions=conditions,
            wanted=session.wants_all or session.wants(path, name),
        )
        return session.begin(call)

    def _aten_phase(self, around: CallContext) -> Phase:
        if around.in_backward:
            return Phase.BACKWARD
        return Phase.OPTIMIZER if self._optimizers.at_work and not around.grad else Phase.FORWARD
