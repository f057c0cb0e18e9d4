"""Rows of calls: how each begins and ends, at the place of the model where the code is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.capture.call_context import CallContext, context_at
from lockstep.capture.call_places import Place, Places
from lockstep.capture.collectives import Unwaited, is_work, with_groups
from lockstep.capture.kernel_context import conditions_now
from lockstep.capture.leaves import (
    NamedTensor,
    argument_tensors,
    plain_arguments,
    plain_attributes,
    tensors_in,
)
from lockstep.capture.module_paths import class_name, without_wrappers
from lockstep.capture.openings import Openings
from lockstep.capture.optimizers import Optimizers
from lockstep.capture.rank_recording import RankRecording
from lockstep.capture.rows import OpenCall
from lockstep.capture.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.surroundings import buffers_of, has_parameters
from lockstep.core.site import CallKind, Phase

_CHECKPOINT = "torch.utils.checkpoint.CheckpointFunction"


@dataclass(frozen=True, slots=True)
class OneCall:
    """A call that has begun and is one operator whatever it calls: a custom or a compiled function.

    `inside` is the place of what it calls; `tensors` are its arguments, `buffers` what else it may write to.
    """

    session: Session
    opened: OpenCall
    inside: Place
    tensors: list[NamedTensor]
    buffers: list[NamedTensor]


class CallRows:
    """Begins and ends the rows of calls.

    Parameters
    ----------
    recording
        Of this process's rank.
    optimizers
        The optimizers of the process.
    openings
        Tells which calls begin a step.
    compile_eager
        Whether what is compiled runs eagerly, so that what a compiled module calls is seen.

    Attributes
    ----------
    places
        Where in the model the code is.
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
        self._recording = recording
        self._steps = recording.steps
        self._optimizers = optimizers
        self._openings = openings
        self._compile_eager = compile_eager
        self._unwaited: Unwaited[OpenCall] = Unwaited()

    def context(self) -> CallContext | None:
        """Return the context of this code; None if its thread trains something that is not recorded."""
        return None if self._optimizers.trainers.is_another else context_at(self.places.here)

    def is_none_of_ours(self, around: CallContext) -> bool:
        """Whether operators belong to a call that is recorded as one, or to torch's own work."""
        if around.place is not None:
            return around.place.opaque or (around.in_backward and not around.grad)
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
        conditions = conditions_now(around.grad)
        with Silence(self._recording.fail):
            named = without_wrappers(module)
            kind = class_name(named)
            return session.begin(
                CallKind.MODULE,
                around.place,
                kind,
                tensors,
                plain_attributes(named),
                path=session.path_of(module, around.place),
                module_class=kind,
                grad=around.grad,
                conditions=conditions,
                recomputed=around.in_backward,
                buffers=self.buffers_of(module),
            )
        return None

    def buffers_of(self, module: torch.nn.Module) -> Iterator[NamedTensor]:
        """Buffers that a call of the module may change without being seen inside."""
        return buffers_of(module, inside=not self._compile_eager)

    def begin_operator(
        self,
        session: Session,
        around: CallContext,
        name: str,
        tensors: list[NamedTensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        buffers: Iterable[NamedTensor] = (),
    ) -> OpenCall | None:
        self.note_autocast()
        between = not around.grad and around.is_top and self._steps.is_certain
        phase = Phase.BACKWARD if between else Phase.FORWARD
        conditions = conditions_now(around.grad)
        with Silence(self._recording.fail):
            arguments = with_groups(name, plain_arguments(args, kwargs), kwargs)
            return begin_at(
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

    def note_autocast(self) -> None:
        """Note that a call runs under autocast, where it does."""
        if torch._C._is_any_autocast_enabled():
            self._recording.note_autocast()

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
        if self._recording.session is session:
            with Silence(self._recording.fail):
                session.end(opened, result, buffers=buffers, part=part)
                if is_of_the_start:
                    self._recording.results.add(tensor for _, tensor in tensors_in(result, ""))
        elif is_of_the_start:
            self._openings.note_top(result)

    def abandon(self, session: Session, opened: OpenCall) -> None:
        if self._recording.session is session:
            with Silence(self._recording.fail):
                session.abandon(opened)

    def end_collective(self, session: Session, opened: OpenCall, result: Any) -> None:
        """Record a collective's results now if the call waited for them, and later if it did not."""
        if not is_work(result):
            self.end(session, opened, None)
            return
        with Silence(self._recording.fail):
            session.await_results(opened)
            self._unwaited.begun(result, opened)

    def waited(self, work: Any) -> None:
        """Record what a collective brings that was not waited for when it was called."""
        opened, session = self._unwaited.of(work), self._recording.session
        if opened is not None and session is not None:
            with Silence(self._recording.fail):
                session.results_came(opened)

    def run_within(
        self, place: Place, session: Session, opened: OpenCall | None, run: Callable[[], Any]
    ) -> Any:
        """Run what a call does, at its place."""
        before = self.places.around
        self.places.around = [*before, place]
        try:
            return run()
        except BaseException:
            if opened is not None:
                self.abandon(session, opened)
            raise
        finally:
            self.places.around = before

    # --- what is one operator whatever it calls

    def run_one(self, one: OneCall | None, run: Callable[[], Any]) -> Any:
        """Run what `begin_one` began to record."""
        if one is None:
            return run()
        result = self.run_within(one.inside, one.session, one.opened, run)
        self.end_one(one, result)
        return result

    def end_one(self, one: OneCall, result: Any) -> None:
        """Record what came out of it."""
        with Silence(self._recording.fail):
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
            self._recording.fail(error)
            return None

    def _begin_one(
        self,
        name: str,
        modules: Sequence[torch.nn.Module],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> OneCall | None:
        around = self.context()
        if around is None or around.in_transform or self.is_none_of_ours(around):
            return None
        place = around.place
        tensors = argument_tensors(args, kwargs)
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
        opened = self.begin_operator(session, around, name, tensors, args, kwargs, buffers)
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
        with Silence(self._recording.fail):
            for module in modules:
                session.path_of(module, place)
            below = {id(one): one for module in modules for _, one in module.named_buffers()}
            return [("buffer", buffer) for buffer in below.values()]
        return []


def begin_at(
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
