"""Record what custom autograd functions and optimizers of a script's own call, so that both can be run again.

A function stays one operator for whoever looks at the recording; what it calls, forward and backward, lies beside it.
Functions of torch's own are not looked into: many of them work between ranks. What an optimizer's step calls lies
beside the first of its updates; optimizers of `torch.optim` are run again by their class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd.function import BackwardCFunction

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.gradients import graph_node
from lockstep.capture.calls.leaves import tensors_in
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.handlers.call_rows import CallRows, OneCall
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.silence import Silence
from lockstep.core.site import Phase


class RecordedBodies:
    """Records what is called within custom functions and within steps of optimizers.

    recording: Of this process's rank.
    rows: Records calls.
    """

    def __init__(self, recording: RankRecording, rows: CallRows) -> None:
        self._recording, self._rows, self._places = recording, rows, rows.places
        self._sees_operators = recording.options.level == "api"

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a custom function, as one operator with what it calls."""
        with_body = self._sees_operators and not name.startswith("torch.")
        one = self._rows.begin_one(name, (), args, kwargs, with_body=with_body)
        result = self._rows.run_one(one, functools.partial(function, *args, **kwargs))
        if one is not None and one.inside.body is not None:
            with Silence(self._recording.fail):
                self._watch(one, result)
        return result

    def _watch(self, one: OneCall, result: Any) -> None:
        """Be at the place of the call while its backward runs."""
        nodes: list[Any] = [graph_node(tensor) for _, tensor in tensors_in(result, "")]
        node = next((found for found in nodes if isinstance(found, BackwardCFunction)), None)
        if node is None:
            return
        place, step, places = one.inside, one.call.step, self._places

        def enter(*_: object) -> None:
            session = self._recording.session
            if session is not None and session.rows.step == step:
                places.enter(place)

        def leave(*_: object) -> None:
            if places.here is place:
                places.leave()

        node.register_prehook(enter)
        node.register_hook(leave)

    def begin(self, first: OpenCall) -> None:
        """A step of an optimizer begins that updates a parameter by this call first."""
        self.end()
        session = self._recording.session
        if self._sees_operators and session is not None and session.contents.keeps_what_enters:
            self._places.enter(Place(first.id, "", "", None, first.stack, body=Phase.OPTIMIZER))

    def end(self) -> None:
        """The step of the optimizer has ended, or another begins within."""
        here = self._places.here
        if here is not None and here.body is Phase.OPTIMIZER:
            self._places.leave()
