"""Sessions of TensorFlow 1: a run that takes gradients or updates variables is asked for its tensors as well.

Whoever runs a session, a `MonitoredTrainingSession` among them, ends in `BaseSession.run`. Values of variables are read
by runs of their own before and after: fetched beside an update they may be either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.client import session as sessions

from lockstep.recorder import Patch, SharedArray
from lockstep.recordings import REWRITTEN
from lockstep_frameworks.recording import FrameworkRecording
from lockstep_frameworks.tensorflow.graph_looks import REWRITES, REWRITTEN_REASON
from lockstep_frameworks.tensorflow.session_gradients import SessionGradients
from lockstep_frameworks.tensorflow.session_plan import Look, Plan, Planner

_INSIDE = "operators inside loops and branches of TensorFlow 1"
_INSIDE_REASON = (
    "a session cannot be asked for them; what enters a loop and what leaves it is recorded"
)
_CALLABLES = "runs by make_callable and partial_run"
_CALLABLES_REASON = "Lockstep asks Session.run for tensors; call that instead"


class Sessions:
    """Listens to runs of sessions.

    recording: Takes what is seen.
    gradients: Listens to graphs that are built.
    """

    def __init__(self, recording: FrameworkRecording, gradients: SessionGradients) -> None:
        self._recording, self._gradients = recording, gradients
        self._plans: dict[tuple[Any, ...], Plan | None] = {}
        base = sessions.BaseSession
        self._patches = [
            Patch(base, "run", self._wrap_run),
            Patch(base, "make_callable", self._wrap_other),
            Patch(base, "partial_run_setup", self._wrap_other),
        ]

    def install(self) -> None:
        """Begin to listen."""
        self._gradients.install()
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Listen no more."""
        self._gradients.remove()
        for patch in self._patches:
            patch.take_back()
        self._plans.clear()

    def _wrap_other(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def prepare(session: Any, *args: Any, **kwargs: Any) -> Any:
            if self._gradients.made:
                self._recording.note_gap(_CALLABLES, _CALLABLES_REASON)
            return original(session, *args, **kwargs)

        return prepare

    def _wrap_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(
            session: Any, fetches: Any, feed_dict: Any = None, options: Any = None,
            run_metadata: Any = None,
        ) -> Any:  # fmt: skip
            plans: list[Plan | None] = []
            self._safely(lambda: plans.append(self._plan(session, fetches, feed_dict)))
            plan = plans[0] if plans else None
            if plan is None:
                return original(session, fetches, feed_dict, options, run_metadata)
            if not self._recording.wants(0):
                result = original(session, fetches, feed_dict, options, run_metadata)
                self._ended(plan)
                return result
            variables = original(session, plan.variables)
            result, seen = original(
                session, [fetches, plan.tensors], feed_dict, options, run_metadata
            )
            after = original(session, [one.source for one in plan.after])
            self._safely(lambda: self._take(session, plan, variables, seen, after))
            self._ended(plan)
            return result

        return run

    def _safely(self, look: Callable[[], None]) -> None:
        """Look at something; an error of ours ends the recording alone."""
        if self._recording.is_done:
            return
        try:
            look()
        except Exception as error:
            self._recording.fail(error)

    # --- plans ----------------------------------------------------------------------------------

    def _plan(self, session: Any, fetches: Any, feed_dict: Any) -> Plan | None:
        graph = session.graph
        handler = sessions._FetchHandler(graph, fetches, {})
        with graph.as_default():
            given = tf.nest.flatten(list(feed_dict or ()), expand_composites=True)
        fed = frozenset(
            id(graph.as_graph_element(one, allow_operation=False)) for one in given if one is not None
        )  # fmt: skip
        asked = (*handler.targets(), *(one.op for one in handler.fetches()))
        key = (graph, graph.version, frozenset(asked), fed)
        if key not in self._plans:
            has_slots = self._recording.options.optimizer_state
            planner = Planner(graph, asked, fed, self._gradients, has_slots=has_slots)
            self._plans[key] = planner.plan()
        return self._plans[key]

    # --- values ---------------------------------------------------------------------------------

    def _take(
        self, session: Any, plan: Plan, variables: Sequence[Any], seen: Sequence[Any],
        after: Sequence[Any],
    ) -> None:  # fmt: skip
        recording = self._recording
        values: Mapping[int, SharedArray] = {
            id(one): SharedArray(value)
            for one, value in (
                *zip(plan.variables, variables, strict=True),
                *zip(plan.tensors, seen, strict=True),
            )
        }
        self._note_gaps(session, plan)
        for look in plan.looks:
            self._add(look, values[id(look.source)])
        for loss in plan.losses:
            recording.loss(0, values[id(loss)])
        for look in plan.before:
            self._add(look, values[id(look.source)])
        for look, value in zip(plan.after, after, strict=True):
            self._add(look, SharedArray(value))
        rules = {one.site.op: one.site.arguments for one in plan.updates}
        for rule, settings in rules.items():
            names = [one.name for one in plan.updates if one.site.op == rule]
            recording.optimizer(0, rule, settings, names)

    def _add(self, look: Look, value: SharedArray) -> None:
        self._recording.add(
            look.site, look.role, look.name, value, index=look.index, phase=look.phase,
            argument=look.argument,
        )  # fmt: skip

    def _note_gaps(self, session: Any, plan: Plan) -> None:
        if plan.has_loops:
            self._recording.note_gap(_INSIDE, _INSIDE_REASON)
        chosen = getattr(session, "_config", None)
        passes = None if chosen is None else chosen.graph_options.rewrite_options
        off = rewriter_config_pb2.RewriterConfig.OFF
        is_off = passes is not None and (
            passes.disable_meta_optimizer or all(getattr(passes, one) == off for one in REWRITES)
        )
        if not is_off:
            self._recording.note_gap(REWRITTEN, REWRITTEN_REASON)

    def _ended(self, plan: Plan) -> None:
        if plan.updates:
            self._recording.end_step(0)
            self._recording.end_process_if_asked()
