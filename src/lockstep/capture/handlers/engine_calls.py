"""Record runs of the autograd engine: a backward pass by its loss, `torch.autograd.grad` as a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from lockstep.capture.calls.call_context import CallContext
from lockstep.capture.calls.leaves import tensors_in
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import unwrapped
from lockstep.capture.handlers.call_rows import CallRows
from lockstep.capture.handlers.gradient_hooks import GradientHooks
from lockstep.capture.handlers.openings import Openings
from lockstep.capture.handlers.step_notes import StepNotes
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.taps.listener import EngineRun
from lockstep.core.operators import AUTOGRAD_GRAD


class EngineCalls:
    """Records runs of the engine in the steps that are open.

    recording: Of this process's rank.
    openings, rows: Open steps, and record calls.
    hooks: Records what hooks on parameters do.
    before_backward: Is told that backward is about to begin: the process may be asked to end here.
    """

    def __init__(
        self,
        recording: RankRecording,
        openings: Openings,
        rows: CallRows,
        hooks: GradientHooks,
        before_backward: Callable[[], None],
    ) -> None:
        self._recording, self._openings, self._rows = recording, openings, rows
        self._hooks, self._notes = hooks, StepNotes(recording)
        self._before_backward = before_backward
        self._sees_operators = recording.options.level != "module"

    def run(self, asked: EngineRun, run: Callable[[], Any]) -> Any:
        """Record the loss, run the engine, settle gradients of which parts did not come."""
        around = self._rows.context()
        if around is None:
            return run()
        if around.in_backward:
            return self._within_function(around, asked, run)
        session = self._openings.session(may_begin=asked.accumulates and bool(asked.roots))
        if session is None:
            self._before_backward()
            return run()
        frame, call, trained = sys._getframe(2), None, list[int]()
        with Silence(self._recording.fail):
            self._recording.is_certain()
            trained = _parameters(session, asked)
            if asked.accumulates or trained:
                for tensor in asked.roots:
                    session.loss(tensor, accumulates=asked.accumulates)
            call = self._begun(session, around, asked, frame)
            self._notes.backward(asked, is_seen=call is not None)
        self._before_backward()
        session.gradients_are_batched = asked.is_batched
        try:
            with self._rows.places.at(None), self._hooks.on_parameters(session):
                result = run()
        except BaseException:
            if call is not None:
                self._rows.abandon(call)
            raise
        finally:
            session.gradients_are_batched = False
        with Silence(self._recording.fail):
            session.backward_ended()
            self._ended(session, asked, call, result)
            for index in trained:
                session.updates.gradient_taken(asked.inputs[index], result[index])
        return result

    def _within_function(
        self, around: CallContext, asked: EngineRun, run: Callable[[], Any]
    ) -> Any:
        """Record gradients that the backward of a custom function asks for as one of its calls."""
        session, place = self._recording.session, around.place
        if session is None or place is None or place.body is None:
            return run()
        frame, call = sys._getframe(3), None
        with Silence(self._recording.fail):
            call = self._begun(session, around, asked, frame)
        if call is None:
            return run()
        try:
            result = run()
        except BaseException:
            self._rows.abandon(call)
            raise
        self._rows.end(call, self._rows.outputs_of(result))
        return result

    def _begun(
        self, session: Session, around: CallContext, asked: EngineRun, frame: FrameType
    ) -> OpenCall | None:
        """Begin to record gradients that are asked for; None where they are not recorded as a call."""
        if asked.is_batched:
            what = "gradients that torch.autograd.grad computes for several vectors at once"
            self._recording.note_once(what, "is_grads_batched: they have no numbers of their own")
            return None
        if asked.accumulates or around.in_transform or not (asked.inputs and self._sees_operators):
            return None
        if self._rows.is_none_of_ours(around):
            return None
        given = asked.gradients
        if given and len(given) != len(asked.roots):
            return None
        named = [
            (f"{name}.{index}", tensor)
            for name, tensors in (
                ("args.0", asked.roots),
                ("args.1", asked.inputs),
                ("args.2", given),
            )
            for index, tensor in enumerate(tensors)
        ]
        counts = {
            "outputs": len(asked.roots),
            "inputs": len(asked.inputs),
            "kwargs.create_graph": asked.create_graph,
        }
        return self._rows.begin_operator(session, around, AUTOGRAD_GRAD, named, counts, frame=frame)

    def _ended(
        self, session: Session, asked: EngineRun, call: OpenCall | None, result: Any
    ) -> None:
        """Record what came of it."""
        if call is not None:
            self._rows.end(call, self._rows.outputs_of(result), is_top=call.place is None)
            return
        for _, tensor in () if asked.is_batched else tensors_in(result, ""):
            session.contents.note(unwrapped(tensor))


def _parameters(session: Session, asked: EngineRun) -> list[int]:
    """Which inputs are parameters of which the script asks for the gradient to train them by."""
    if asked.accumulates or asked.create_graph or asked.is_batched:
        return []
    return [
        index
        for index, tensor in enumerate(asked.inputs)
        if tensor.is_leaf and session.names.owner_of(tensor) is not None
    ]
