"""Record what custom autograd functions call, forward and backward, so that their steps can be run again.

A function stays one operator for whoever looks at the recording; what it calls lies beside it. Functions of torch's own
are not looked into: many of them work between ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd.function import BackwardCFunction

from lockstep.capture.calls.gradients import graph_node
from lockstep.capture.calls.leaves import tensors_in
from lockstep.capture.handlers.call_rows import CallRows, OneCall
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.silence import Silence


class CustomFunctionCalls:
    """Records custom functions as one operator each, with what they call.

    Parameters
    ----------
    recording
        Of this process's rank.
    rows
        Records calls.
    """

    def __init__(self, recording: RankRecording, rows: CallRows) -> None:
        self._recording, self._rows = recording, rows
        self._sees_operators = recording.options.level == "api"

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a custom function."""
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
        place, step, places = one.inside, one.call.step, self._rows.places

        def enter(*_: object) -> None:
            session = self._recording.session
            if session is not None and session.rows.step == step:
                places.enter(place)

        def leave(*_: object) -> None:
            if places.here is place:
                places.leave()

        node.register_prehook(enter)
        node.register_hook(leave)
