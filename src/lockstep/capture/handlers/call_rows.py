"""Rows of calls: how each begins and ends, at the place of the model where the code is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from lockstep.capture.calls.call_context import CallContext, context_at
from lockstep.capture.calls.call_places import Place, Places
from lockstep.capture.calls.collectives import Unwaited, is_collective, is_work, with_groups
from lockstep.capture.calls.kernel_context import conditions_now
from lockstep.capture.calls.leaves import NamedTensor, flattened, result_tensors
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import buffers_of, has_parameters, is_compiled
from lockstep.capture.handlers.openings import Openings
from lockstep.capture.modules.module_paths import class_name, without_wrappers
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence, silently
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.capture.windows.inputs_of_reference import GivenInputs
from lockstep.core.site import CallKind, Phase

_CHECKPOINT = "torch.utils.checkpoint.CheckpointFunction"


@dataclass(frozen=True, slots=True)
class OneCall:
    """A call that has begun and is one operator whatever it calls: a custom or a compiled function.

    `inside` is the place of what it calls; `buffers` are what it may write to besides its arguments.
    """

    call: OpenCall
    inside: Place
    buffers: list[NamedTensor]


class CallRows:
    """Begins and ends the rows of calls.

    recording: Of this process's rank.
    optimizers: The optimizers of the process.
    openings: Tells which calls begin a step.
    compile_eager: Whether what is compiled runs eagerly, so that what a compiled module calls is seen.

    places: Where in the model the code is.
    given_inputs: Gives modules the inputs of a reference, where that was asked for.
    """

    def __init__(
        self,
        recording: RankRecording,
        optimizers: Optimizers,
        openings: Openings,
        *,
        compile_eager: bool,
    ) -> None:
        self.places = Places()
        self.given_inputs: GivenInputs | None = None
        self._recording, self.fail = recording, recording.fail
        self._steps = recording.steps
        self._optimizers = optimizers
        self._openings = openings
        self._compile_eager = compile_eager
        self._unwaited: Unwaited[OpenCall] = Unwaited()

    def context(self) -> CallContext | None:
        """Return the context of this code; None if its thread trains something that is not recorded."""
        trainers = self._optimizers.trainers
        is_mine = trainers.is_mine
        if not is_mine and trainers.is_another:
            return None
        around = self.places.around
        return context_at(around[-1] if around else None, is_mine=is_mine)

    def is_none_of_ours(self, around: CallContext) -> bool:
        """Whether operators belong to a call that is recorded as one, or to torch's own work."""
        if around.place is not None:
            of_engine = around.in_backward and not around.grad and around.place.body is None
            return around.place.opaque or of_engine
        if self._optimizers.at_work:
            return not (self._optimizers.has_closure and around.grad)
        return around.in_backward

    # --- modules and operators

    def begin_module(
        self,
        session: Session,
        around: CallContext,
        module: torch.nn.Module,
        tensors: list[NamedTensor],
    ) -> OpenCall | None:
        """Begin to record a call of a module."""
        return self._begin_module(session, around, module, tensors, conditions_now(around.grad))

    @silently
    def _begin_module(
        self,
        session: Session,
        around: CallContext,
        module: torch.nn.Module,
        tensors: list[NamedTensor],
        conditions: str,
    ) -> OpenCall | None:
        if self._recording.told_tokens and around.place is None:
            session.arrivals.note_tokens(self._recording.told_tokens)
            self._recording.told_tokens = {}
        named, path = without_wrappers(module), session.parameters.path_of(module, around.place)
        kind = class_name(named)
        call = OpenCall(
            CallKind.MODULE,
            kind,
            around.place,
            path,
            kind,
            tensors,
            session.attributes.of(named),
            Phase.FORWARD,
            around.grad,
            conditions,
            around.in_backward,
            wanted=session.wants_all or session.wants(path, kind),
        )
        return session.begin(call, self.buffers_of(module))

    @silently
    def buffers_of(self, module: torch.nn.Module) -> Sequence[NamedTensor]:
        """Buffers that a call of the module may change without being seen inside."""
        if not module._buffers and not is_compiled(module):
            return ()
        return list(buffers_of(module, inside=not self._compile_eager))

    def begin_operator(
        self,
        session: Session,
        around: CallContext,
        name: str,
        inputs: list[NamedTensor],
        arguments: dict[str, Any],
        buffers: Iterable[NamedTensor] = (),
        frame: FrameType | None = None,
    ) -> OpenCall | None:
        """Begin to record an operator; `frame` is one that no frame of the user's is inside of."""
        place, grad = around.place, around.grad
        body = None if place is None else place.body
        between = not grad and place is None and self._steps.is_certain
        is_backward = between or (body is not None and around.in_backward)
        path, module_class = ("", "") if place is None else (place.path, place.module_class)
        conditions = "grad" if grad else "no_grad"
        if torch._C._is_any_autocast_enabled():
            self._recording.note_autocast()
            conditions = conditions_now(grad)
        call = OpenCall(
            CallKind.OPERATOR if body is None else CallKind.FUNCTION_BODY,
            name,
            place,
            path,
            module_class,
            inputs,
            arguments,
            Phase.BACKWARD if is_backward else body or Phase.FORWARD,
            grad,
            conditions,
            around.in_backward,
            frame=frame,
            wanted=session.wants_all or session.wants(path, name),
        )
        return session.begin(call, buffers)

    def end(
        self,
        call: OpenCall,
        outputs: Sequence[NamedTensor],
        *,
        buffers: Iterable[NamedTensor] = (),
        part: object = ...,
        is_top: bool = False,
    ) -> None:
        """Record what came of a call; `is_top` tells that it stands outside of all others."""
        is_of_the_start = is_top and self._steps.is_uncertain
        if self._recording.session is call.session:
            if self.given_inputs is not None:
                self.given_inputs.made(call, outputs)
            call.session.end(call, outputs, buffers, part)
            if is_of_the_start:
                with Silence(self.fail):
                    self._recording.results.add(tensor for _, tensor in outputs)
        elif is_of_the_start:
            self._openings.note_top(outputs)

    def abandon(self, call: OpenCall) -> None:
        """End a call that has raised."""
        if self._recording.session is call.session:
            call.session.abandon(call)

    def end_collective(self, call: OpenCall, result: Any) -> None:
        """Record a collective's results now if the call waited for them, and later if it did not."""
        if not is_work(result):
            self.end(call, ())
            return
        with Silence(self.fail):
            call.session.await_results(call)
            self._unwaited.begun(result, call)

    def waited(self, work: Any) -> None:
        """Record what a collective brings that was not waited for when it was called."""
        call, session = self._unwaited.of(work), self._recording.session
        if call is not None and session is not None:
            with Silence(self.fail):
                session.results_came(call)

    def run_within(self, place: Place, call: OpenCall | None, run: Callable[[], Any]) -> Any:
        """Run what a call does, at its place."""
        before = self.places.around
        self.places.around = [*before, place]
        try:
            return run()
        except BaseException:
            if call is not None:
                self.abandon(call)
            raise
        finally:
            self.places.around = before

    # --- what is one operator whatever it calls

    def run_one(self, one: OneCall | None, run: Callable[[], Any]) -> Any:
        """Run what `begin_one` began to record."""
        if one is None:
            return run()
        result = self.run_within(one.inside, one.call, run)
        self.end_one(one, result)
        return result

    def end_one(self, one: OneCall, result: Any) -> None:
        """Record what came out of it."""
        call, outputs = one.call, self.outputs_of(result)
        with Silence(self.fail):
            # What is written behind autograd's back inside does not show in a version.
            for _, tensor in (*call.inputs, *one.buffers):
                call.session.contents.changed(tensor)
        self.end(call, outputs, buffers=one.buffers, is_top=call.parent < 0)

    def outputs_of(self, result: Any) -> list[NamedTensor]:
        """The tensors that a call returned."""
        if type(result) is torch.Tensor:
            return [("result", result)]
        with Silence(self.fail):
            return result_tensors(result)
        return []

    def begin_one(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        with_body: bool = False,
    ) -> OneCall | None:
        """Begin what is one operator whatever it calls; None where it is not recorded.

        `modules` are those that it may call unseen: they have names before it runs, and what it
        changes in their buffers is recorded. `with_body` has what it calls recorded too, where steps are run again.
        """
        try:
            return self._begin_one(name, modules, args, kwargs, with_body=with_body)
        except Exception as error:  # whatever a class of the script's does when it is asked
            self.fail(error)
            return None

    def _begin_one(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        with_body: bool,
    ) -> OneCall | None:
        around = self.context()
        if around is None or around.in_transform or self.is_none_of_ours(around):
            return None
        place = around.place
        if place is not None and place.body is not None:
            return None
        tensors, arguments = flattened(args, kwargs)
        if is_collective(name):
            arguments = with_groups(name, arguments, kwargs)
        module = any(map(has_parameters, modules))
        if around.is_top and not self._steps.is_certain:
            self._openings.reconsider(tensors, module=module)
        may_train = module or self._openings.may_begin(name, tensors)
        session = self._openings.session(may_begin=around.builds_graph and may_train)
        if session is None:
            return None
        if module:
            self._steps.module_called()
        buffers = self.named_buffers(session, modules, place)
        call = self.begin_operator(session, around, name, tensors, arguments, buffers)
        if call is None:
            return None
        path, module_class = (place.path, place.module_class) if place else ("", "")
        module_around = place.module if place else None
        body = Phase.FORWARD if with_body and session.contents.keeps_what_enters else None
        opaque = name != _CHECKPOINT and body is None
        inside = Place(call.id, path, module_class, module_around, call.stack, opaque, body)
        return OneCall(call, inside, buffers)

    def named_buffers(
        self, session: Session, modules: Sequence[torch.nn.Module], place: Place | None
    ) -> list[NamedTensor]:
        """Buffers of modules and of all below them; the modules are named where they are met for the first time."""
        with Silence(self.fail):
            for module in modules:
                session.parameters.path_of(module, place)
            below = {id(one): one for module in modules for _, one in module.named_buffers()}
            return [("buffer", buffer) for buffer in below.values()]
        return []
