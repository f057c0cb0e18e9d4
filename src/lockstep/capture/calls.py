"""Record the calls of modules, operators and custom functions inside a step, and backward.

The recorder knows which step it is and whether one is open; this module knows where in the model the
code is, and hands every call to the session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from lockstep.capture.call_context import CallContext
from lockstep.capture.call_places import Place
from lockstep.capture.call_rows import CallRows, begin_at
from lockstep.capture.callers import Caller
from lockstep.capture.collectives import is_collective, is_functional, wait_for
from lockstep.capture.compiled_calls import CompiledCalls
from lockstep.capture.interception import Taps
from lockstep.capture.kernel_context import conditions_now
from lockstep.capture.leaves import NamedTensor, argument_tensors, plain_arguments, tensors_in
from lockstep.capture.module_paths import class_name, is_wrapper
from lockstep.capture.openings import Openings
from lockstep.capture.optimizers import Optimizers
from lockstep.capture.rank_recording import RankRecording
from lockstep.capture.rows import OpenCall
from lockstep.capture.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.surroundings import (
    SET_ITEM,
    below_functions,
    changes_in_place,
    has_tensor,
    in_backward,
    in_transform,
    is_compiled,
    may_take_fast_path,
    trains,
    unwrapped,
    written,
)
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulated_device, is_emulated_here

_TRANSPARENT_FUNCTIONS = frozenset({"torch.nn.modules._functions.BackwardHookFunction"})
"""Custom functions that only carry torch's own hooks."""

_NOWHERE = Place(-1, "", "", None, -1)


@dataclass(frozen=True, slots=True)
class _ModuleCall:
    """A call of a module that has begun, and how it runs.

    `opened` is None where it is not recorded, and `passes` tells that it is so wherever a step is open;
    `is_top` stands for a call outside of all others, `compiled` for a module that `torch.compile` made,
    `fused` for one that torch runs as one kernel where nobody watches.
    """

    session: Session | None
    opened: OpenCall | None
    is_top: bool
    passes: bool
    compiled: bool
    fused: bool


class Calls:
    """Records the calls of the steps that are open; the listener of the taps.

    Parameters
    ----------
    recording
        Of this process's rank.
    optimizers
        The optimizers of the process.
    needs_optimizer
        See `Openings`.
    forward_begins
        Is told that a forward begins behind a backward: where the script updated its parameters, the step has ended.
    before_backward
        Is told that backward is about to begin: the process may be asked to end here.
    compiler_loaded
        Is told that something was compiled.

    Attributes
    ----------
    taps
        What is patched in torch.
    compiled
        Records calls of compiled functions, and what is captured of them.
    places
        Where in the model the code is.
    """

    def __init__(
        self,
        recording: RankRecording,
        optimizers: Optimizers,
        *,
        needs_optimizer: bool,
        forward_begins: Callable[[], None],
        before_backward: Callable[[], None],
        compiler_loaded: Callable[[], None],
    ) -> None:
        eager, self._level = recording.options.compile_eager, recording.options.level
        self.taps = Taps(self, self._level)
        self._openings = Openings(recording, optimizers, needs_optimizer=needs_optimizer)
        self._rows = CallRows(recording, optimizers, self._openings, compile_eager=eager)
        self.places = self._rows.places
        self.compiled = CompiledCalls(recording, self._openings, self._rows, eager=eager)
        self._recording = recording
        self._steps = recording.steps
        self._optimizers = optimizers
        self._forward_begins, self._before_backward = forward_begins, before_backward
        self._compiler_loaded = compiler_loaded

    # --- modules ------------------------------------------------------------------------------

    def module_call(
        self,
        call: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a module call and what is inside of it."""
        begun = self._begin_module_call(module, args, kwargs)
        if begun is None:
            return call(module, *args, **kwargs)
        run = functools.partial(self._run_module, begun, call, module, args, kwargs)
        session, opened = begun.session, begun.opened
        if session is None or opened is None:
            result = run()
            if session is None and not begun.passes:
                self._made_out_of_sight(result, module)
            return result
        inside = Place(opened.id, opened.path, opened.module_class, module, opened.stack)
        result = self._rows.run_within(inside, session, opened, run)
        buffers = self._rows.buffers_of(module)
        self._rows.end(session, opened, result, buffers=buffers, is_top=begun.is_top)
        return result

    def _begin_module_call(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _ModuleCall | None:
        """Begin to record a module where that is to be; None where nothing of it concerns the recording."""
        try:
            compiled = is_compiled(module)
            if is_wrapper(module) and not compiled:
                return None  # leaves no trace: what it wraps is called inside
            return self._begun(module, args, kwargs, compiled=compiled)
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recording.fail(error)
            return None

    def _begun(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        compiled: bool,
    ) -> _ModuleCall | None:
        around = self._rows.context()
        if around is None:
            return None
        may_train = around.builds_graph and not around.in_transform
        if around.is_top and not around.in_backward:
            if not self._optimizers.trainers.calls(module, trains=may_train):
                return None
            if may_train and self._steps.is_certain:
                self._forward_begins()
            elif may_train:
                self._openings.reconsider(argument_tensors(args, kwargs), module=True)
        passes = around.is_of_torch
        session = None if passes else self._openings.session_of(module, may_begin=may_train)
        self._steps.module_called()
        opened = None
        if session is not None:
            self._rows.note_autocast()
            self._note_unemulated()
            opened = self._rows.begin_module(
                session, around, module, argument_tensors(args, kwargs)
            )
        fused = not compiled and may_take_fast_path(module, around.grad)
        return _ModuleCall(session, opened, around.is_top, passes, compiled, fused)

    def _note_unemulated(self) -> None:
        if not is_emulated_here():
            self._recording.note_once(
                "the emulated device in other threads", "the modules that they call run as they are"
            )

    def _run_module(
        self,
        begun: _ModuleCall,
        call: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if begun.compiled:
            before = self.compiled.graphs_run
            result = self.taps.call_untapped(functools.partial(call, module, *args, **kwargs))
            if self.compiled.graphs_run == before:
                eagerly = ", and run eagerly on an emulated device" if emulated_device() else ""
                self._note_inside(
                    "inside", module, f"compiled: recorded at its boundary only{eagerly}"
                )
            return result
        if begun.fused:
            reason = "evaluation: torch fuses them, which it would not do while they are watched"
            self._note_inside("operators inside", module, reason)
            with self.taps.without_function_mode():
                return call(module, *args, **kwargs)
        return call(module, *args, **kwargs)

    def _note_inside(self, what: str, module: torch.nn.Module, reason: str) -> None:
        place = self.places.here
        name = (place.path if place else "") or class_name(module)
        self._recording.note_once(f"{what} of {name}", reason)

    # --- operators ----------------------------------------------------------------------------

    def operator_call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: Caller,
    ) -> tuple[Any, bool]:
        """Record a call of the torch API."""
        begun = self._begin_operator(name, args, kwargs)
        if begun is None:
            return caller(function, args, kwargs), True
        session, opened, tensors, is_top = begun
        if in_transform():
            return self._in_transform(caller(function, args, kwargs)), True
        if session is None or opened is None:
            result = caller(function, args, kwargs)
            if session is None and self._is_out_of_sight(one for _, one in tensors):
                self._made_out_of_sight((result, args[:1] if changes_in_place(name) else ()))
            return result, True
        if self._level == "aten":
            inside = Place(opened.id, opened.path, opened.module_class, None, opened.stack)
            run = functools.partial(caller, function, args, kwargs)
            result = self._rows.run_within(inside, session, opened, run)
        else:
            try:
                result = caller(function, args, kwargs)
            except BaseException:
                self._rows.abandon(session, opened)
                raise
        part = args[1] if name == SET_ITEM else ...
        return result, self._end_operator(name, session, opened, tensors, result, part, is_top)

    def _begin_operator(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Session | None, OpenCall | None, list[NamedTensor], bool] | None:
        """Begin to record an operator where that is to be, with its tensors and whether it stands outside of all calls.

        None where nothing of it concerns the recording.
        """
        try:
            around = self._rows.context()
            if around is None:
                return None
            if around.in_transform:
                return None, None, [], False
            if self._rows.is_none_of_ours(around):
                return None
            tensors, is_top = argument_tensors(args, kwargs), around.is_top
            if is_top and not self._steps.is_certain:
                self._openings.reconsider(tensors, module=False)
            elif is_top and around.builds_graph and trains(name, tensors):
                self._forward_begins()
            may_begin = around.builds_graph and self._openings.may_begin(name, tensors)
            if may_begin and not self._optimizers.trainers.uses(tensor for _, tensor in tensors):
                return None
            session = self._openings.session(may_begin=may_begin)
            opened = None
            if session is not None:
                opened = self._rows.begin_operator(session, around, name, tensors, args, kwargs)
            return session, opened, tensors, is_top
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recording.fail(error)
            return None

    def _end_operator(
        self,
        name: str,
        session: Session,
        opened: OpenCall,
        tensors: list[NamedTensor],
        result: Any,
        part: object,
        is_top: bool,
    ) -> bool:
        """Record what came of an operator; tells whether it deals in tensors at all."""
        try:
            if is_functional(name):
                wait_for(result)
            if has_tensor(result) or (tensors and changes_in_place(name)):
                self._rows.end(session, opened, result, part=part, is_top=is_top)
            elif tensors and is_collective(name):
                self._rows.end_collective(session, opened, result)
                if is_top:
                    self._openings.note_top(result)
            else:
                session.retract(opened)
                return False
        except Exception as error:
            self._recording.fail(error)
        return True

    def read_by_python(self, tensor: Any) -> None:
        """Note that later tensors may follow from these numbers, though no operator shows it."""
        around = self._rows.context() if isinstance(tensor, torch.Tensor) else None
        if around is None or around.in_backward or around.in_transform:
            return
        session = self._recording.session
        if session is None:
            self._recording.out_of_sight.was_read |= self._is_out_of_sight([tensor])
        elif not (self._optimizers.at_work or (around.place and around.place.opaque)):
            with Silence(self._recording.fail):
                session.read_by_python(tensor)

    def gradient_given(self, parameter: Any) -> None:
        """A backward written by hand gives its gradients so; what an optimizer takes is seen when that steps."""
        around = self._rows.context()
        if around is None or around.in_backward or around.in_transform:
            return
        session = self._recording.session
        if session is not None and not self._optimizers.at_work:
            with Silence(self._recording.fail):
                if session.may_be_updated_by_hand(parameter):
                    self._recording.is_certain()
                    session.accumulated(parameter)

    def _is_out_of_sight(self, tensors: Iterable[torch.Tensor]) -> bool:
        with Silence(self._recording.fail):
            return self._recording.out_of_sight.has_made(tensors)
        return False

    def _made_out_of_sight(self, result: Any, module: torch.nn.Module | None = None) -> None:
        """Note what came of a call where no step is open; of a module, where it has parameters."""
        with Silence(self._recording.fail):
            if module is None or next(module.parameters(), None) is not None:
                self._recording.out_of_sight.made(tensor for _, tensor in tensors_in(result, ""))

    def waited(self, work: Any) -> None:
        """The results of a collective have come that the script did not wait for when it called it."""
        self._rows.waited(work)

    def plumbing_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let torch work between ranks; what it makes comes from inside the step."""
        with self.places.at(replace(self.places.here or _NOWHERE, opaque=True)):
            result = function(*args, **kwargs)
        session = self._recording.session
        if session is not None:
            with Silence(self._recording.fail):
                for _, tensor in tensors_in(result, ""):
                    session.contents.note(unwrapped(tensor))
        return result

    def _in_transform(self, result: Any) -> Any:
        """What leaves a `torch.func` transform comes from inside the step."""
        session = self._recording.session
        if session is not None:
            self._recording.note_once(
                "operators inside of torch.func transforms", "they work on tensors without numbers"
            )
            with Silence(self._recording.fail):
                for _, tensor in tensors_in(result, ""):
                    session.contents.note(unwrapped(tensor))
        return result

    # --- custom functions, recomputation -------------------------------------

    def custom_function_call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a custom function as one operator; modules called inside are still recorded."""
        one = None
        if name not in _TRANSPARENT_FUNCTIONS:
            one = self._rows.begin_one(name, (), args, kwargs)
        return self._rows.run_one(one, functools.partial(function, *args, **kwargs))

    def recomputed_here(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpointed function whose calls are at this place of the model in backward too."""
        place = self.places.here
        if self._recording.session is None or place is None:
            return function

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not in_backward():
                return function(*args, **kwargs)
            with self.places.at(place):
                return function(*args, **kwargs)

        return run

    def compiler_loaded(self) -> None:
        """Something was compiled."""
        self._compiler_loaded()

    # --- aten operators -------------------------------------------------------------------------

    def aten_call(
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
        tensors: list[NamedTensor] = []
        opened, conditions = None, conditions_now(around.grad)
        with Silence(self._recording.fail):
            tensors = argument_tensors(args, kwargs)
            arguments = plain_arguments(args, kwargs)
            opened = begin_at(
                session,
                around,
                name,
                tensors,
                arguments,
                conditions,
                phase=self._aten_phase(around),
                grad=False,
            )
        try:
            with below_functions(tensors):
                result = caller(inner, args, kwargs)
        except BaseException:
            if opened is not None:
                self._rows.abandon(session, opened)
            raise
        if opened is not None:
            with Silence(self._recording.fail):
                # Down here a write counts as a version only after the operator has returned.
                for tensor in written(function, args, kwargs):
                    session.contents.changed(tensor)
            self._rows.end(session, opened, result)
        return result

    def _aten_phase(self, around: CallContext) -> Phase:
        if around.in_backward:
            return Phase.BACKWARD
        return Phase.OPTIMIZER if self._optimizers.at_work and not around.grad else Phase.FORWARD

    # --- backward -------------------------------------------------------------------------------

    def backward_call(self, losses: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        """Record the loss, run the autograd engine, settle gradients of which parts did not come."""
        around = self._rows.context()
        if around is None or around.in_backward:
            return run()
        session = self._openings.session(may_begin=bool(losses))
        if session is None:
            self._before_backward()
            return run()
        with Silence(self._recording.fail):
            self._recording.is_certain()
            for tensor in losses:
                session.loss(tensor)
        self._before_backward()
        with self.places.at(None):
            result = run()
        with Silence(self._recording.fail):
            session.backward_ended()
            for _, tensor in tensors_in(result, ""):
                session.contents.note(unwrapped(tensor))
        return result
