"""What the taps report inside a step: calls of modules, operators and custom functions, and backward.

The recorder knows which step it is and whether one is open; this module knows where in the model the
code is, and hands every call to the session.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from lockstep.capture.call_context import CallContext, context_at
from lockstep.capture.callers import Caller
from lockstep.capture.compiled_calls import CompiledCalls
from lockstep.capture.gradients import graph_node
from lockstep.capture.held_rows import TopResults
from lockstep.capture.interception import Taps
from lockstep.capture.kernel_context import conditions_now
from lockstep.capture.leaves import (
    NamedTensor,
    argument_tensors,
    plain_arguments,
    plain_attributes,
    tensors_in,
)
from lockstep.capture.module_paths import class_name, is_wrapper, without_wrappers
from lockstep.capture.plumbing import is_collective
from lockstep.capture.rows import OneCall, OpenCall, Place
from lockstep.capture.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.steps import Steps
from lockstep.capture.surroundings import (
    SET_ITEM,
    below_functions,
    buffers_of,
    changes_in_place,
    has_parameters,
    has_tensor,
    in_backward,
    in_transform,
    is_compiled,
    may_take_fast_path,
    trains,
    unwrapped,
    written,
)
from lockstep.capture.trainers import Trainers
from lockstep.capture.unseen_work import OutOfSight
from lockstep.core.site import CallKind, Phase
from lockstep.devices.emulation.mode import emulated_device, is_emulated_here

_TRANSPARENT_FUNCTIONS = frozenset({"torch.nn.modules._functions.BackwardHookFunction"})
"""Custom functions that only carry torch's own hooks."""

_CHECKPOINT = "torch.utils.checkpoint.CheckpointFunction"


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


class StepRecorder(Protocol):
    """Who opens and closes steps; `Recorder` is the real one."""

    @property
    def steps(self) -> Steps:
        """What is known of the step that is open."""

    @property
    def in_optimizer(self) -> bool:
        """Whether an optimizer is at work."""

    @property
    def optimizer_has_closure(self) -> bool:
        """Whether that optimizer calls the model itself."""

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""

    @property
    def trainers(self) -> Trainers:
        """Tells the recorded training from those of other threads."""

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""

    def set_aside(self) -> None:
        """What was recorded of this step may not be of it: it begins with what comes now, or later."""

    def may_train(self, module: torch.nn.Module) -> bool:
        """Whether a call of this module may be of a training."""

    def forward_begins(self) -> None:
        """A forward begins behind a backward: where the script updated its parameters, the step has ended."""

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""

    def stop_before_backward(self) -> None:
        """Backward, or an update without one, is about to begin: the process may be asked to end here."""

    def path_of(self, session: Session, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""

    def note_once(self, what: str, reason: str) -> None:
        """Something is not seen."""

    def note_autocast(self) -> None:
        """A call runs under autocast."""

    def compiler_loaded(self) -> None:
        """Something was compiled: hooks must not be traced."""

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""


class Calls:
    """Records the calls of the steps that are open; the listener of the taps.

    Parameters
    ----------
    recorder
        Opens and closes steps.
    level
        "module", "api" or "aten".

    Attributes
    ----------
    taps
        What is patched in torch.
    compiled
        Records calls of compiled functions, and what is captured of them.
    results
        What is left of what the open step has computed before its first backward.
    out_of_sight
        What the model has computed where no step was open.
    """

    def __init__(self, recorder: StepRecorder, level: str, *, compile_eager: bool = False) -> None:
        self.taps = Taps(self, level)
        self.results = TopResults()
        self.out_of_sight = OutOfSight()
        self.compiled = CompiledCalls(self, recorder, eager=compile_eager)
        self._recorder = recorder
        self._steps = recorder.steps
        self._level = level
        self._local = threading.local()

    def leave_all_places(self) -> None:
        """The step has ended, perhaps in the middle of a call."""
        self._places().clear()

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
        result = self.run_within(inside, session, opened, run)
        buffers = self._buffers_of(module)
        self.end(session, opened, result, buffers=buffers, is_top=begun.is_top)
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
            self._recorder.fail(error)
            return None

    def _begun(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        compiled: bool,
    ) -> _ModuleCall | None:
        around = self.context()
        if around is None:
            return None
        may_train = around.builds_graph and not around.in_transform
        if around.is_top and not around.in_backward:
            if not self._recorder.trainers.calls(module, trains=may_train):
                return None
            if may_train and self._steps.is_certain:
                self._recorder.forward_begins()
            elif may_train:
                self.reconsider(argument_tensors(args, kwargs), module=True)
        passes = around.is_of_torch
        session = None if passes else self._module_session(module, may_train)
        self._steps.module_called()
        opened = None
        if session is not None:
            self._note_autocast(session)
            self._note_unemulated()
            opened = self.begin_module(session, around, module, argument_tensors(args, kwargs))
        fused = not compiled and may_take_fast_path(module, around.grad)
        return _ModuleCall(session, opened, around.is_top, passes, compiled, fused)

    def _buffers_of(self, module: torch.nn.Module) -> Iterator[NamedTensor]:
        return buffers_of(module, inside=not self.compiled.eager)

    def begin_module(
        self,
        session: Session,
        around: CallContext,
        module: torch.nn.Module,
        tensors: list[NamedTensor],
    ) -> OpenCall | None:
        """Begin to record a call of a module."""
        conditions = conditions_now(around.grad)
        with Silence(self._recorder.fail):
            named = without_wrappers(module)
            kind = class_name(named)
            return session.begin(
                CallKind.MODULE,
                around.place,
                kind,
                tensors,
                plain_attributes(named),
                path=self._recorder.path_of(session, module, around.place),
                module_class=kind,
                grad=around.grad,
                conditions=conditions,
                recomputed=around.in_backward,
                buffers=self._buffers_of(module),
            )
        return None

    def _note_unemulated(self) -> None:
        if not is_emulated_here():
            self._recorder.note_once(
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
        places = self._places()
        name = (places[-1].path if places else "") or class_name(module)
        self._recorder.note_once(f"{what} of {name}", reason)

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
            result = self.run_within(inside, session, opened, run)
        else:
            try:
                result = caller(function, args, kwargs)
            except BaseException:
                self.abandon(session, opened)
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
            around = self.context()
            if around is None:
                return None
            if around.in_transform:
                return None, None, [], False
            if self._is_none_of_ours(around):
                return None
            tensors = argument_tensors(args, kwargs)
            if around.is_top and not self._steps.is_certain:
                self.reconsider(tensors, module=False)
            elif around.is_top and around.builds_graph and trains(name, tensors):
                self._recorder.forward_begins()
            may_begin = around.builds_graph and self._may_begin(name, tensors)
            if may_begin and not self._recorder.trainers.uses(tensor for _, tensor in tensors):
                return None
            session = self.find_session(may_begin=may_begin)
            opened = None
            if session is not None:
                opened = self._begin(session, around, name, tensors, args, kwargs)
            return session, opened, tensors, around.is_top
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recorder.fail(error)
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
            if has_tensor(result) or (tensors and changes_in_place(name)):
                self.end(session, opened, result, part=part, is_top=is_top)
            elif tensors and is_collective(name):
                self._end_collective(session, opened, tensors, result)
                if is_top:
                    self._note_top(result)
            else:
                session.retract(opened)
                return False
        except Exception as error:
            self._recorder.fail(error)
        return True

    def read_by_python(self, tensor: Any) -> None:
        """What comes later may follow from these numbers, though no operator shows it."""
        around = self.context() if isinstance(tensor, torch.Tensor) else None
        if around is None or around.in_backward or around.in_transform:
            return
        session = self._recorder.session
        if session is None:
            self.out_of_sight.was_read |= self._is_out_of_sight([tensor])
        elif not (self._recorder.in_optimizer or (around.place and around.place.opaque)):
            with Silence(self._recorder.fail):
                session.read_by_python(tensor)

    def gradient_given(self, parameter: Any) -> None:
        """A backward written by hand gives its gradients so; what an optimizer takes is seen when that steps."""
        around = self.context()
        if around is None or around.in_backward or around.in_transform:
            return
        session = self._recorder.session
        if session is not None and not self._recorder.in_optimizer:
            with Silence(self._recorder.fail):
                if session.may_be_updated_by_hand(parameter):
                    self._recorder.is_certain()
                    session.accumulated(parameter)

    def _is_out_of_sight(self, tensors: Iterable[torch.Tensor]) -> bool:
        with Silence(self._recorder.fail):
            return self.out_of_sight.has_made(tensors)
        return False

    def _made_out_of_sight(self, result: Any, module: torch.nn.Module | None = None) -> None:
        """Note what came of a call where no step is open; of a module, where it has parameters."""
        with Silence(self._recorder.fail):
            if module is None or next(module.parameters(), None) is not None:
                self.out_of_sight.made(tensor for _, tensor in tensors_in(result, ""))

    def _end_collective(
        self, session: Session, opened: OpenCall, tensors: list[NamedTensor], result: Any
    ) -> None:
        """What other ranks send has come where the call has waited for it, and comes later where it has not."""
        if result is None:
            self.end(session, opened, result)
            return
        self._recorder.note_once("collectives that are not waited for", "their results come later")
        session.retract(opened)
        with Silence(self._recorder.fail):
            for _, tensor in tensors:
                session.contents.changed(tensor)

    def plumbing_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let torch work between ranks; what it makes comes from inside the step."""
        places = self._places()
        with self._at(replace(places[-1] if places else _NOWHERE, opaque=True)):
            result = function(*args, **kwargs)
        session = self._recorder.session
        if session is not None:
            with Silence(self._recorder.fail):
                for _, tensor in tensors_in(result, ""):
                    session.contents.note(unwrapped(tensor))
        return result

    def _is_none_of_ours(self, around: CallContext) -> bool:
        """Whether operators belong to a call that is recorded as one, or to torch's own work."""
        if around.place is not None:
            return around.place.opaque or (around.in_backward and not around.grad)
        if self._recorder.in_optimizer:
            return not (self._recorder.optimizer_has_closure and around.grad)
        return around.in_backward

    def _in_transform(self, result: Any) -> Any:
        """What leaves a `torch.func` transform comes from inside the step."""
        session = self._recorder.session
        if session is not None:
            self._recorder.note_once(
                "operators inside of torch.func transforms", "they work on tensors without numbers"
            )
            with Silence(self._recorder.fail):
                for _, tensor in tensors_in(result, ""):
                    session.contents.note(unwrapped(tensor))
        return result

    # --- custom functions, compiled functions, recomputation -------------------------------------

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
            one = self.begin_one(name, (), args, kwargs)
        return self.run_one(one, functools.partial(function, *args, **kwargs))

    def run_one(self, one: OneCall | None, run: Callable[[], Any]) -> Any:
        """Run what `begin_one` began to record."""
        if one is None:
            return run()
        result = self.run_within(one.inside, one.session, one.opened, run)
        self.end_one(one, result)
        return result

    def end_one(self, one: OneCall, result: Any) -> None:
        """Record what came out of it."""
        with Silence(self._recorder.fail):
            # What is written behind autograd's back inside does not show in a version.
            for _, tensor in (*one.tensors, *one.buffers):
                one.session.contents.changed(tensor)
        is_top = one.opened.parent < 0
        self.end(one.session, one.opened, result, buffers=one.buffers, is_top=is_top)

    def begin_one(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> OneCall | None:
        """Begin what is one operator whatever it calls; None where it is not recorded.

        `modules` are those that it may call unseen: they have names before it runs, and what it
        changes in their buffers is recorded.
        """
        try:
            return self._begin_one(name, modules, args, kwargs)
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recorder.fail(error)
            return None

    def _begin_one(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> OneCall | None:
        around = self.context()
        if around is None or around.in_transform or self._is_none_of_ours(around):
            return None
        place = around.place
        tensors = argument_tensors(args, kwargs)
        module = any(map(has_parameters, modules))
        if around.is_top and not self._steps.is_certain:
            self.reconsider(tensors, module=module)
        may_train = module or self._may_begin(name, tensors)
        session = self.find_session(may_begin=around.builds_graph and may_train)
        if session is None:
            return None
        if module:
            self._steps.module_called()
        buffers = self.named_buffers(session, modules, place)
        opened = self._begin(session, around, name, tensors, args, kwargs, buffers)
        if opened is None:
            return None
        path, module_class = (place.path, place.module_class) if place else ("", "")
        module_around = place.module if place else None
        opaque = name != _CHECKPOINT
        inside = Place(opened.id, path, module_class, module_around, opened.stack, opaque)
        return OneCall(session, opened, inside, tensors, buffers)

    def named_buffers(
        self, session: Session, modules: Sequence[torch.nn.Module], place: Place | None
    ) -> list[NamedTensor]:
        """Buffers of modules and of all below them; the modules are named where they are met for the first time."""
        with Silence(self._recorder.fail):
            for module in modules:
                self._recorder.path_of(session, module, place)
            below = {id(one): one for module in modules for _, one in module.named_buffers()}
            return [("buffer", buffer) for buffer in below.values()]
        return []

    def recomputed_here(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpointed function whose calls are at this place of the model in backward too."""
        places = self._places()
        if self._recorder.session is None or not places:
            return function
        place = places[-1]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not in_backward():
                return function(*args, **kwargs)
            with self._at(place):
                return function(*args, **kwargs)

        return run

    def compiler_loaded(self) -> None:
        """Something was compiled."""
        self._recorder.compiler_loaded()

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
        session = self._recorder.session
        around = None if session is None else self.context()
        if session is None or around is None:
            return caller(inner, args, kwargs)
        tensors: list[NamedTensor] = []
        opened, conditions = None, conditions_now(around.grad)
        with Silence(self._recorder.fail):
            tensors = argument_tensors(args, kwargs)
            arguments = plain_arguments(args, kwargs)
            opened = _begun_at(
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
                self.abandon(session, opened)
            raise
        if opened is not None:
            with Silence(self._recorder.fail):
                # Down here a write counts as a version only after the operator has returned.
                for tensor in written(function, args, kwargs):
                    session.contents.changed(tensor)
            self.end(session, opened, result)
        return result

    def _aten_phase(self, around: CallContext) -> Phase:
        if around.in_backward:
            return Phase.BACKWARD
        return Phase.OPTIMIZER if self._recorder.in_optimizer and not around.grad else Phase.FORWARD

    # --- backward -------------------------------------------------------------------------------

    def backward_call(self, losses: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        """Record the loss, run the autograd engine, settle gradients of which parts did not come."""
        around = self.context()
        if around is None or around.in_backward:
            return run()
        session = self.find_session(may_begin=bool(losses))
        if session is None:
            self._recorder.stop_before_backward()
            return run()
        with Silence(self._recorder.fail):
            self._recorder.is_certain()
            for tensor in losses:
                session.loss(tensor)
        self._recorder.stop_before_backward()
        with self._at(None):
            result = run()
        with Silence(self._recorder.fail):
            session.backward_ended()
            for _, tensor in tensors_in(result, ""):
                session.contents.note(unwrapped(tensor))
        return result

    # --- shared -------------------------------------------------------------------------------

    def find_session(self, *, may_begin: bool) -> Session | None:
        """The session, with a step opened where one may begin here."""
        session = self._recorder.session
        if session is None and may_begin and torch._C._get_tracing_state() is None:
            session = self._recorder.begin()
        return None if torch._C._get_tracing_state() is not None else session

    def reconsider(self, inputs: list[NamedTensor], *, module: bool) -> None:
        """A call begins outside of all others: what came before in this step may not have been of it.

        That goes for what nothing is left of, and for what was computed before the first module is
        called, unless this call takes what came of it.
        """
        if not self._steps.is_uncertain:
            return
        if self.results.are_gone() or (module and self._steps.is_idle):
            with Silence(self._recorder.fail):
                if not _any_in_graph(inputs):
                    self._recorder.set_aside()

    def _may_begin(self, name: str, tensors: list[NamedTensor]) -> bool:
        """Whether an operator outside of any module is of a training step, where none is open."""
        return trains(name, tensors) or (self._steps.is_aside and _any_in_graph(tensors))

    def _note_top(self, result: Any) -> None:
        if not self._steps.is_uncertain:
            return
        with Silence(self._recorder.fail):
            self.results.add(tensor for _, tensor in tensors_in(result, ""))

    def _module_session(self, module: torch.nn.Module, may_begin: bool) -> Session | None:
        session = self.find_session(may_begin=False)
        if session is None and may_begin and self._recorder.may_train(module):
            session = self.find_session(may_begin=True)
        return session

    def _begin(
        self,
        session: Session,
        around: CallContext,
        name: str,
        tensors: list[NamedTensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        buffers: Iterable[NamedTensor] = (),
    ) -> OpenCall | None:
        self._note_autocast(session)
        between = self._steps.is_certain and around.is_top and not around.grad
        phase = Phase.BACKWARD if between else Phase.FORWARD
        conditions = conditions_now(around.grad)
        with Silence(self._recorder.fail):
            arguments = plain_arguments(args, kwargs)
            return _begun_at(
                session,
                around,
                name,
                tensors,
                arguments,
                conditions,
                phase=phase,
                grad=around.grad,
                recomputed=around.in_backward,
                buffers=buffers,
            )
        return None

    def _note_autocast(self, session: Session | None) -> None:
        if session is not None and torch._C._is_any_autocast_enabled():
            self._recorder.note_autocast()

    def run_within(
        self, place: Place, session: Session, opened: OpenCall | None, run: Callable[[], Any]
    ) -> Any:
        """Run what a call does, at its place."""
        before = self._places()
        self._local.places = [*before, place]
        try:
            return run()
        except BaseException:
            if opened is not None:
                self.abandon(session, opened)
            raise
        finally:
            self._local.places = before

    def end(
        self,
        session: Session,
        opened: OpenCall,
        result: Any,
        *,
        buffers: Iterable[NamedTensor] = (),
        part: object = ...,
        is_top: bool = False,
    ) -> None:
        """Record what came of a call; `is_top` tells that it stands outside of all others."""
        is_of_the_start = is_top and self._steps.is_uncertain
        if self._recorder.session is session:
            with Silence(self._recorder.fail):
                session.end(opened, result, buffers=buffers, part=part)
                if is_of_the_start:
                    self.results.add(tensor for _, tensor in tensors_in(result, ""))
        elif is_of_the_start:
            self._note_top(result)

    def abandon(self, session: Session, opened: OpenCall) -> None:
        if self._recorder.session is session:
            with Silence(self._recorder.fail):
                session.abandon(opened)

    @contextmanager
    def _at(self, place: Place | None) -> Iterator[None]:
        """Be at a place, or, in backward, at none until something is recomputed."""
        before = self._places()
        self._local.places = [*before, place] if place is not None else []
        try:
            yield
        finally:
            self._local.places = before

    def context(self) -> CallContext | None:
        """What surrounds this code; None where its thread trains something else than what is recorded."""
        return None if self._recorder.trainers.is_another else context_at(self.place)

    @property
    def place(self) -> Place | None:
        """Where the code of this thread is."""
        places = self._places()
        return places[-1] if places else None

    def enter(self, place: Place) -> None:
        """Be at a place until `leave`."""
        self._local.places = [*self._places(), place]

    def leave(self) -> None:
        """Be where the code was before."""
        self._local.places = self._places()[:-1]

    def _places(self) -> list[Place]:
        places: list[Place] | None = getattr(self._local, "places", None)
        if places is None:
            places = self._local.places = []
        return places


def _any_in_graph(tensors: list[NamedTensor]) -> bool:
    return any(graph_node(tensor) is not None for _, tensor in tensors)


def _begun_at(
    session: Session,
    around: CallContext,
    name: str,
    tensors: list[NamedTensor],
    arguments: dict[str, Any],
    conditions: str,
    *,
    phase: Phase,
    grad: bool,
    recomputed: bool = False,
    buffers: Iterable[NamedTensor] = (),
) -> OpenCall:
    """Begin the row of an operator at its place."""
    place = around.place
    path, module_class = ("", "") if place is None else (place.path, place.module_class)
    return session.begin(
        CallKind.OPERATOR,
        place,
        name,
        tensors,
        arguments,
        path=path,
        module_class=module_class,
        grad=grad,
        conditions=conditions,
        phase=phase,
        recomputed=recomputed,
        buffers=buffers,
    )
