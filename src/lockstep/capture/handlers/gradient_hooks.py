"""Record what hooks of a script do to gradients, so that they are a part of the step's program.

A hook on a result is recorded where it is registered, as a custom function that hands the result on: what its backward
calls is what the hook calls. One on a parameter is recorded where it runs, as an operator of the gradient that has
arrived. Hooks of torch's own are not looked into.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.gradients import edge_number, graph_node
from lockstep.capture.calls.open_call import OpenCall, Positions
from lockstep.capture.handlers.call_rows import CallRows, OneCall
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.core.records import HOOK_OF
from lockstep.core.site import Phase

Hook = Callable[[torch.Tensor], torch.Tensor | None]

_ONLY: Positions = ((0, 0),)
"""The one gradient, of the one result or input."""


@dataclass(slots=True)
class _OnResult:
    """The hooks on one result, which are one custom function: how many there are by now."""

    one: OneCall
    count: int = 1


class GradientHooks:
    """Records what hooks of the script make of gradients.

    recording: Of this process's rank.
    rows: Records calls.
    """

    def __init__(self, recording: RankRecording, rows: CallRows) -> None:
        self._recording, self._rows, self._places = recording, rows, rows.places
        self._sees_operators = recording.options.level == "api"
        self._on_results: dict[int | None, _OnResult] = {}
        """By the number of the edge that leads to it; of the step that is recorded."""

    def on_result(self, tensor: torch.Tensor, hook: Hook) -> Hook:
        """The hook as it is to be registered on a tensor: one that is told of what it does, where that is a result."""
        try:
            return self._told_of(tensor, hook)
        except Exception as error:  # whatever a class of the script's does when it is asked
            self._recording.fail(error)
            return hook

    def _told_of(self, tensor: torch.Tensor, hook: Hook) -> Hook:
        if not self._sees_operators or _is_torchs(hook) or graph_node(tensor) is None:
            return hook
        if isinstance(hook, functools.partial) and hook.func == self._run_on_result:
            return hook  # torch comes here again, through the function mode
        edge = edge_number(tensor)
        known = self._on_results.get(edge)
        if known is not None and known.one.call.step == self._step:
            known.count += 1
            return functools.partial(self._run_on_result, known, known.count, hook)
        one = self._rows.begin_one(_name_of(hook), (), (tensor,), {}, with_body=True)
        if one is None:
            return hook
        self._rows.end(one.call, [("result", tensor)], is_top=one.call.parent < 0)
        if one.inside.body is None:
            return hook
        one.call.outputs = ("result",)
        self._on_results = {
            key: told
            for key, told in self._on_results.items()
            if told.one.call.step == one.call.step
        }
        self._on_results[edge] = told = _OnResult(one)
        return functools.partial(self._run_on_result, told, 1, hook)

    @property
    def _step(self) -> int | None:
        session = self._recording.session
        return None if session is None else session.rows.step

    def _run_on_result(
        self, told: _OnResult, place: int, hook: Hook, gradient: torch.Tensor
    ) -> Any:
        """Run one of the hooks on a result, which autograd does in the order in which they were registered."""
        session, call = self._recording.session, told.one.call
        if session is None or self._step != call.step:
            return hook(gradient)
        if place == 1:
            session.gradients_came(call, _ONLY, (gradient,))
        with self._within(told.one.inside):
            given = hook(gradient)
        if place == told.count:
            session.gradients_left(call, _ONLY, (gradient if given is None else given,), None)
        return given

    def on_module(self, around: Any, hooks: str, args: Any, run: Callable[[], Any]) -> Any:
        """Run what sets hooks of a module around what it takes or gives.

        around: What torch keeps for one call of the module, with its hooks.
        hooks: The name that it has them by.
        args: What it takes or gives.
        run: Makes of that what the hooks are told by.
        """
        own = [hook for hook in getattr(around, hooks) if not _is_torchs(hook)]
        if not self._sees_operators or not own:
            return run()
        one = self._rows.begin_one(_name_of(own[0]), (), (args,), {}, with_body=True)
        if one is not None and one.inside.body is not None:
            told = [self._of_module(one, hook) for hook in getattr(around, hooks)]
            setattr(around, hooks, told)
        return self._rows.run_one(one, run)

    def _of_module(self, one: OneCall, hook: Callable[..., Any]) -> Callable[..., Any]:
        def run(*gradients: Any) -> Any:
            session = self._recording.session
            if session is None or session.rows.step != one.call.step:
                return hook(*gradients)
            with self._within(one.inside):
                return hook(*gradients)

        return run

    @contextmanager
    def _within(self, place: Place) -> Iterator[None]:
        self._places.enter(place)
        try:
            yield
        finally:
            if self._places.here is place:
                self._places.leave()

    @contextmanager
    def on_parameters(self, session: Session) -> Iterator[None]:
        """While the engine runs, what hooks on parameters do is recorded."""
        told: list[tuple[dict[int, Hook], int, Hook, Hook]] = []
        with Silence(self._recording.fail):
            told = list(self._told(session))
        for hooks, key, _, ours in told:
            hooks[key] = ours
        try:
            yield
        finally:
            for hooks, key, hook, ours in told:
                if hooks.get(key) is ours:
                    hooks[key] = hook

    def _told(self, session: Session) -> Iterator[tuple[dict[int, Hook], int, Hook, Hook]]:
        if not self._sees_operators or not session.contents.keeps_what_enters:
            return
        for tensor, _, name in list(session.names.owners.values()):
            hooks: dict[int, Hook] | None = tensor._backward_hooks if tensor.is_leaf else None
            for key, hook in list((hooks or {}).items()):
                if hooks is not None and not _is_torchs(hook):
                    yield hooks, key, hook, functools.partial(self._run, session, name, hook)

    def _run(self, session: Session, name: str, hook: Hook, gradient: torch.Tensor) -> Any:
        """Run a hook on a parameter of this name."""
        call = self._begun(session, name, hook, gradient)
        if call is None:
            return hook(gradient)
        inside = Place(call.id, call.path, "", None, call.stack, body=Phase.BACKWARD)
        given = self._rows.run_within(inside, call, functools.partial(hook, gradient))
        self._rows.end(call, [("result", gradient if given is None else given)])
        return given

    def _begun(
        self, session: Session, name: str, hook: Hook, gradient: torch.Tensor
    ) -> OpenCall | None:
        around = self._rows.context()
        if around is None or self._recording.session is not session:
            return None
        with Silence(self._recording.fail):
            return self._rows.begin_operator(
                session, around, _name_of(hook), [("gradient", gradient)], {HOOK_OF: name}
            )
        return None


def _is_torchs(hook: Any) -> bool:
    return str(getattr(_plain(hook), "__module__", "")).partition(".")[0] == "torch"


def _name_of(hook: Any) -> str:
    """A hook by its module and its name there, or by its class where it is an object."""
    plain = _plain(hook)
    name = getattr(plain, "__qualname__", None) or type(plain).__qualname__
    return f"{getattr(plain, '__module__', None) or type(plain).__module__}.{name}"


def _plain(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook
