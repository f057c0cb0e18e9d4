"""Record the calls of modules, operators and custom functions inside a step, and backward.

The recorder knows which step it is and whether one is open; this module knows where in the model the
code is, and hands every call to the session.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from types import FrameType
from typing import Any, NamedTuple

import torch

from lockstep.capture.calls.call_context import CallContext
from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.collectives import is_collective, is_functional, wait_for, with_groups
from lockstep.capture.calls.leaves import argument_tensors, flattened, tensors_in
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import (
    SET_ITEM,
    changes_in_place,
    has_tensor,
    in_backward,
    is_compiled,
    may_take_fast_path,
    trains,
    unwrapped,
)
from lockstep.capture.handlers.aten_calls import AtenCalls
from lockstep.capture.handlers.call_rows import CallRows
from lockstep.capture.handlers.compiled_calls import CompiledCalls
from lockstep.capture.handlers.engine_calls import EngineCalls
from lockstep.capture.handlers.gradient_hooks import GradientHooks, Hook
from lockstep.capture.handlers.openings import Openings
from lockstep.capture.handlers.recorded_bodies import RecordedBodies
from lockstep.capture.handlers.step_notes import StepNotes
from lockstep.capture.modules.module_paths import class_name, is_wrapper
from lockstep.capture.patching.callers import Caller
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.taps.interception import Taps
from lockstep.capture.taps.listener import EngineRun
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.capture.windows.inputs_of_reference import GivenInputs
from lockstep.core.manifest import AT_BOUNDARY
from lockstep.devices.emulation.mode import emulated_device, is_emulated_here

_TRANSPARENT_FUNCTIONS = frozenset({"torch.nn.modules._functions.BackwardHookFunction"})
"""Custom functions that only carry torch's own hooks."""

_NOWHERE = Place(-1, "", "", None, -1)


class _Unseen(Enum):
    """Why an operator is not recorded."""

    NOT_OURS = "it belongs to a call that is recorded as one, to torch, or to another training"
    IN_TRANSFORM = "it works on what a transform of `torch.func` has wrapped"
    NO_STEP = "no step is open, and none begins with it"
    FAILED = "recording has failed"


class _ModuleCall(NamedTuple):
    """A call of a module that has begun, and how it runs.

    `call` is None where it is not recorded, and `passes` tells that it is so wherever a step is open;
    `compiled` stands for a module that `torch.compile` made, `fused` for one that torch runs as one kernel where
    nobody watches. `given` are its arguments, if some are a reference's.
    """

    session: Session | None
    call: OpenCall | None
    passes: bool
    compiled: bool
    fused: bool
    given: tuple[tuple[Any, ...], dict[str, Any]] | None = None


class Calls:
    """Records the calls of the steps that are open; the listener of the taps.

    recording: Of this process's rank.
    optimizers: The optimizers of the process.
    needs_optimizer: See `Openings`.
    forward_begins: Is told that a forward begins behind a backward: where the script updated its parameters, the step
        has ended.
    before_backward: Is told that backward is about to begin: the process may be asked to end here.
    compiler_loaded: Is told that something was compiled.

    taps: What is patched in torch.
    compiled: Records calls of compiled functions, and what is captured of them.
    places: Where in the model the code is.
    compiler_loaded: As given: from now on the compiler may trace what the script calls.
    waited: Is told that the script has waited for what a collective brings.
    aten_call: Records one operator of the dispatcher.
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
        self._bodies = optimizers.bodies = RecordedBodies(recording, self._rows)
        self.compiled = CompiledCalls(recording, self._openings, self._rows, eager=eager)
        self._recording, self._notes = recording, StepNotes(recording)
        self._steps = recording.steps
        self._optimizers = optimizers
        self._forward_begins = forward_begins
        self._hooks = GradientHooks(recording, self._rows)
        self._engine = EngineCalls(
            recording, self._openings, self._rows, self._hooks, before_backward
        )
        self.compiler_loaded, self.waited = compiler_loaded, self._rows.waited
        self.aten_call = AtenCalls(recording, optimizers, self._rows).call

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
        if begun.given is not None:
            args, kwargs = begun.given
        run = functools.partial(call, module, *args, **kwargs)
        if begun.compiled or begun.fused:
            run = functools.partial(self._run_apart, begun, run, module)
        opened = begun.call
        if opened is None:
            result = run()
            if begun.session is None and not begun.passes:
                self._made_out_of_sight(result, module)
            return result
        inside = Place(opened.id, opened.path, opened.module_class, module, opened.stack)
        result = self._rows.run_within(inside, opened, run)
        outputs, buffers = self._rows.outputs_of(result), self._rows.buffers_of(module)
        self._rows.end(opened, outputs, buffers=buffers, is_top=opened.place is None)
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
        opened = given = None
        if session is not None:
            if torch._C._is_any_autocast_enabled():
                self._recording.note_autocast()
            if not is_emulated_here():
                reason = "the modules that they call run as they are"
                self._recording.note_once("the emulated device in other threads", reason)
            given = self._given(session, module, around, args, kwargs)
            inputs = argument_tensors(*(given or (args, kwargs)))
            opened = self._rows.begin_module(session, around, module, inputs)
        fused = not (compiled or module.training) and may_take_fast_path(module, around.grad)
        return _ModuleCall(session, opened, passes, compiled, fused, given)

    def give_inputs(self, given: GivenInputs) -> None:
        """Give modules the inputs of a reference."""
        self._rows.given_inputs = given

    def _given(
        self,
        session: Session,
        module: torch.nn.Module,
        around: CallContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of a module with a reference's inputs, None where that was not asked for."""
        if self._rows.given_inputs is None or around.in_transform:
            return None
        with Silence():
            path = session.parameters.path_of(module, around.place)
        return self._rows.given_inputs.replace(path, args, kwargs, recomputed=around.in_backward)

    def _run_apart(
        self, begun: _ModuleCall, run: Callable[[], Any], module: torch.nn.Module
    ) -> Any:
        """Run a module that is not to be watched from the inside."""
        if begun.compiled:
            before = self.compiled.graphs_run
            result = self.taps.call_untapped(run)
            if self.compiled.graphs_run == before:
                eagerly = ", and run eagerly on an emulated device" if emulated_device() else ""
                self._note_inside("inside", module, f"{AT_BOUNDARY}{eagerly}")
            return result
        reason = "evaluation: torch fuses them, which it would not do while they are watched"
        self._note_inside("operators inside", module, reason)
        with self.taps.without_function_mode():
            return run()

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
        frame: FrameType,
    ) -> tuple[Any, bool]:
        """Record a call of the torch API; returns its result and whether it deals in tensors at all.

        `caller` calls it, in the name of who did; `frame` is the innermost without Lockstep's.
        """
        call: OpenCall | _Unseen = _Unseen.FAILED
        try:
            call = self._begin_operator(name, args, kwargs, frame)
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recording.fail(error)
        if isinstance(call, _Unseen):
            return self._unseen(call, name, caller(function, args, kwargs), args, kwargs), True
        if self._level == "aten":
            inside = Place(call.id, call.path, call.module_class, None, call.stack)
            run = functools.partial(caller, function, args, kwargs)
            result = self._rows.run_within(inside, call, run)
        else:
            try:
                result = caller(function, args, kwargs)
            except BaseException:
                self._rows.abandon(call)
                raise
        return result, self._end_operator(call, result, args)

    def _begin_operator(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> OpenCall | _Unseen:
        """Begin to record an operator where that is to be."""
        around = self._rows.context()
        if around is None:
            return _Unseen.NOT_OURS
        if around.in_transform:
            return _Unseen.IN_TRANSFORM
        if self._rows.is_none_of_ours(around):
            return _Unseen.NOT_OURS
        inputs, arguments = flattened(args, kwargs)
        if around.place is None:
            if not self._steps.is_certain:
                self._openings.reconsider(inputs, module=False)
            elif around.builds_graph and trains(name, inputs):
                self._forward_begins()
        session = self._recording.session
        if session is None or not around.is_mine:
            may_begin = around.builds_graph and self._openings.may_begin(name, inputs)
            used = (tensor for _, tensor in inputs)
            if may_begin and not self._optimizers.trainers.uses(used):
                return _Unseen.NOT_OURS
            session = self._openings.session(may_begin=may_begin)
        elif torch._C._get_tracing_state() is not None:
            session = None
        if session is None:
            return _Unseen.NO_STEP
        if is_collective(name):
            arguments = with_groups(name, arguments, kwargs)
        call = self._rows.begin_operator(session, around, name, inputs, arguments, frame=frame)
        return _Unseen.FAILED if call is None else call

    def _unseen(
        self,
        why: _Unseen,
        name: str,
        result: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What came of an operator that is not recorded."""
        if why is _Unseen.IN_TRANSFORM:
            return self._in_transform(result)
        if why is _Unseen.NO_STEP:
            inputs = argument_tensors(args, kwargs)
            if self._is_out_of_sight(tensor for _, tensor in inputs):
                self._made_out_of_sight((result, args[:1] if changes_in_place(name) else ()))
        return result

    def _end_operator(self, call: OpenCall, result: Any, args: tuple[Any, ...]) -> bool:
        """Record what came of an operator; tells whether it deals in tensors at all."""
        name, is_top = call.op, call.place is None
        try:
            if is_functional(name):
                wait_for(result)
            outputs = self._rows.outputs_of(result)
            is_plain = len(outputs) == 1 and outputs[0][1] is result
            if (
                is_plain
                or (outputs and has_tensor(result))
                or (call.inputs and changes_in_place(name))
            ):
                part = args[1] if name == SET_ITEM else ...
                self._rows.end(call, outputs, part=part, is_top=is_top)
            elif call.inputs and is_collective(name):
                self._rows.end_collective(call, result)
                if is_top:
                    self._openings.note_top(result)
            else:
                call.session.retract(call)
                return False
        except Exception as error:
            self._recording.fail(error)
        return True

    def read_by_python(self, tensor: Any) -> None:
        """Note that later tensors may follow from these numbers, though no operator shows it."""
        around = self._rows.context() if isinstance(tensor, torch.Tensor) else None
        if around is None or around.in_transform or self._is_within_body(around, (tensor,)):
            return
        if around.in_backward:
            return
        session = self._recording.session
        if session is None:
            self._recording.out_of_sight.was_read |= self._is_out_of_sight([tensor])
        elif not (self._optimizers.at_work or (around.place and around.place.opaque)):
            with Silence(self._recording.fail):
                self._notes.taken((tensor,))
                session.arrivals.read_by_python(tensor)

    def taken_by_python(self, values: tuple[Any, ...]) -> None:
        """Count that Python takes numbers out of tensors to decide something."""
        around = self._rows.context()
        if around is None or around.in_transform or self._is_within_body(around, values):
            return
        is_scripts = not (self._optimizers.at_work or (around.place and around.place.opaque))
        if is_scripts and not around.in_backward and self._recording.session is not None:
            with Silence(self._recording.fail):
                self._notes.taken(values)

    def number_read(self, number: float, tensor: Any) -> None:
        """Note a number that the script was given, which it may make into an argument of a later call."""
        around, session = self._rows.context(), self._recording.session
        if session is None or around is None or around.in_transform or around.in_backward:
            return
        if self._optimizers.at_work or (around.place and around.place.opaque):
            return
        with Silence(self._recording.fail):
            self._notes.number_read(number, session.contents.of(tensor))

    def _is_within_body(self, around: CallContext, values: tuple[Any, ...]) -> bool:
        """Whether Python takes numbers within what is recorded as the body of a call; counts it."""
        if around.place is None or around.place.body is None:
            return False
        if self._recording.session is not None:
            with Silence(self._recording.fail):
                self._notes.taken(values, within=True)
        return True

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
                    session.updates.accumulated(parameter, given=True)

    def _is_out_of_sight(self, tensors: Iterable[torch.Tensor]) -> bool:
        with Silence(self._recording.fail):
            return self._recording.out_of_sight.has_made(tensors)
        return False

    def _made_out_of_sight(self, result: Any, module: torch.nn.Module | None = None) -> None:
        """Note what came of a call where no step is open; of a module, where it has parameters."""
        with Silence(self._recording.fail):
            if module is None or next(module.parameters(), None) is not None:
                self._recording.out_of_sight.made(tensor for _, tensor in tensors_in(result, ""))

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
        if name in _TRANSPARENT_FUNCTIONS:
            return function(*args, **kwargs)
        return self._bodies.call(name, function, args, kwargs)

    def hook_told(self, tensor: torch.Tensor, hook: Hook) -> Hook:
        """The hook that is registered in place of a script's own."""
        return self._hooks.on_result(tensor, hook)

    def module_hooks_set(self, around: Any, hooks: str, args: Any, run: Callable[[], Any]) -> Any:
        """Record hooks of a module as a custom function of what it takes or gives."""
        return self._hooks.on_module(around, hooks, args, run)

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

    # --- backward -------------------------------------------------------------------------------

    def backward_call(self, asked: EngineRun, run: Callable[[], Any]) -> Any:
        """Record a backward pass, or gradients that are asked for."""
        return self._engine.run(asked, run)
