"""Steps of a JAX training: which calls belong to one, and when it ends.

A call that takes gradients and returns new parameters is a step. Where it returns gradients alone, what follows belongs
to the step until the next call takes gradients of other parameters: the new ones are what the update gave.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from lockstep.recorder import memory_for_programs, warn
from lockstep.recordings import COMPILED_BY_XLA
from lockstep.terminal import size_text
from lockstep_frameworks.jax.agreement import disagreement
from lockstep_frameworks.jax.eager_calls import Operator
from lockstep_frameworks.jax.environment import numerics
from lockstep_frameworks.jax.evaluation import Evaluation, Value
from lockstep_frameworks.jax.followers import Followers
from lockstep_frameworks.jax.known import Known
from lockstep_frameworks.jax.labels import Labels
from lockstep_frameworks.jax.programs import Program
from lockstep_frameworks.jax.rows import OUTSIDE, UPDATE, Rows, record_update
from lockstep_frameworks.jax.update_outside import Outside
from lockstep_frameworks.recording import FrameworkRecording

TOO_LARGE = "operators of a program that does not fit into memory twice"
HIDDEN = "steps inside of a loop of JAX or of a shard_map"
_HIDDEN_REASON = "their gradients come back from no call; call jax.jit once a step, and shard_map inside of the loss"
UNSEEN = "operators of the update"
BETWEEN = "what changes parameters between two steps"
_UNSEEN_REASON = "it runs outside of a function under jax.jit; put it into one"
_NOT_JAX_REASON = "JAX did not compute the new parameters; compute them with jax.numpy"


@dataclass(frozen=True, eq=False, slots=True)
class Opened:
    """A call that belongs to a step, and has not run yet; without rows where the step is not recorded."""

    known: Known
    leaves: Sequence[Any]
    rows: Rows | None = None
    inputs: Sequence[Value] = ()
    evaluated: Sequence[Value] | None = None


@dataclass(eq=False, slots=True)
class _Pending:
    """A step whose gradients are there, and whose update is to come.

    parameters: What the gradients were taken of, by name, without being kept alive.
    before, gradients: The same and the gradients, to be recorded; nothing where the step is not.
    made: Gradients and what later calls made of them.
    """

    parameters: dict[str, Callable[[], Any]]
    before: dict[str, Value]
    gradients: dict[str, Value]
    made: dict[int, Any] = field(default_factory=dict)
    updated: set[str] = field(default_factory=set)

    def is_of(self, parameters: Mapping[str, Any]) -> bool:
        """Whether gradients of the same arrays are taken once more: they are added up."""
        return parameters.keys() == self.parameters.keys() and all(
            self.parameters[name]() is one for name, one in parameters.items()
        )


class Steps:
    """Records the calls of a training, step by step.

    recording: Takes what is seen.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self._recording = recording
        self._pending: _Pending | None = None
        self.followers = Followers(recording.note_gap)
        self._outside = Outside(recording)
        self._updated: set[frozenset[str]] = set()

    def before(self, known: Known, leaves: Sequence[Any], name: str = "") -> Opened | None:
        """Evaluate the program of a call that belongs to a step, while its arguments are there.

        The call may take their memory.
        """
        if known.hides_gradient:
            self._recording.note_gap(HIDDEN, _HIDDEN_REASON)
            return None
        if known.has_backward:
            self.followers.begin()
            given = _parameters(known, leaves)
            self._check_are_given(given)
            self._close(given)
        elif self._pending is None or not any(map(self._belongs, leaves)):
            self.followers.takes(name, leaves)
            return None
        if not self._recording.wants(0):
            return Opened(known, leaves)
        self._recording.numerics(0, numerics())
        labels = known.labels if known.has_backward else self._labels_of_update(known, leaves)
        rows = Rows(self._recording, labels, known.sites if known.has_backward else {})
        inputs = _inputs(known.program, leaves)
        with jax.disable_jit(False):
            rows.before(inputs)
            return Opened(known, leaves, rows, inputs, self._evaluated(known, rows, inputs))

    def after(self, call: Opened, result: Any) -> None:
        """Record what the training goes on with; ends the step where that is whole."""
        results = jax.tree_util.tree_leaves(result)
        if call.rows is not None:
            self._check(call, results)
            call.rows.results(results)
            call.rows.gradients()
            call.rows.updates()
        if not call.known.has_backward:
            self._go_on(call, results)
        elif call.known.labels.roles.updates:
            names = [one.name for one in call.known.labels.roles.parameters]
            self._updated.add(frozenset(names))
            self.followers.updated(_new_parameters(call, results))
            self._end(names)
        else:
            self._wait(call, results)

    def finish(self) -> None:
        """The training ends: what the last update gave is not known unless a call gave it."""
        self._close({})

    def _check_are_given(self, parameters: Mapping[str, Any]) -> None:
        """Say where the parameters of a step are not what a call gave, though the last step has updated them."""
        if frozenset(parameters) in self._updated and not all(
            self.followers.is_given(one) for one in parameters.values()
        ):
            self._recording.note_gap(BETWEEN, _UNSEEN_REASON)

    # --- evaluation -----------------------------------------------------------------------------

    def _evaluated(self, known: Known, rows: Rows, inputs: Sequence[Value]) -> list[Value] | None:
        free = memory_for_programs(None)
        if known.peak_bytes > free:
            sizes = f"{size_text(known.peak_bytes)} are needed and {size_text(free)} are free"
            reason = f"{sizes}; train with a smaller batch"
            self._recording.note_gap(TOO_LARGE, reason)
            warn(f"{TOO_LARGE} are not recorded: {reason}")
            return None
        evaluation = Evaluation(
            rows.seen, None, self._recording.note_gap, rows.keep, rows.evaluated
        )
        return evaluation.run(known.program, inputs)

    def _check(self, call: Opened, results: Sequence[Any]) -> None:
        if call.evaluated is None:
            return
        with jax.disable_jit(False):
            off = disagreement(call.known.program, call.inputs, call.evaluated, results)
        if off:
            reason = f"the compiled function's results are not what its own jaxpr gives: {off}"
            self._recording.note_gap(COMPILED_BY_XLA, reason)
            warn(reason)

    # --- an update that is another call, or none --------------------------------------------------

    @property
    def is_updating(self) -> bool:
        """Whether the gradients of a recorded step are there, and its update may run."""
        return self._pending is not None and bool(self._pending.before)

    def computed(self, operator: Operator) -> None:
        """Record an operator that ran outside of functions under `jax.jit`."""
        with jax.disable_jit(False):
            self._outside.computed(*operator)

    def _belongs(self, array: Any) -> bool:
        """Whether an array was made in the step that waits for its update."""
        assert self._pending is not None
        return id(array) in self._pending.made or self._outside.has_made(array)

    def _wait(self, call: Opened, results: Sequence[Any]) -> None:
        """The gradients are there."""
        roles, program = call.known.labels.roles, call.known.program
        if self._pending is None:
            given = _parameters(call.known, call.leaves)
            self._pending = _Pending({name: _reference(one) for name, one in given.items()}, {}, {})
        if call.rows is None:
            return
        pending = self._pending
        for one in roles.parameters:
            pending.before.setdefault(one.name, call.rows.kept[one.value])
            if one.gradient is not None:
                result = results[program.outputs.index(one.gradient)]
                pending.gradients[one.name] = call.rows.kept[one.gradient]
                pending.made[id(result)] = result
        own = {name: one() for name, one in pending.parameters.items()}
        self._outside.begin(own, {name: one.array for name, one in pending.gradients.items()})

    def _labels_of_update(self, known: Known, leaves: Sequence[Any]) -> Labels:
        assert self._pending is not None
        own = {
            id(one()): name for name, one in self._pending.parameters.items() if one() is not None
        }
        gradients = {id(one.array): name for name, one in self._pending.gradients.items()}
        numbers = known.program.inputs
        names = {place: own[id(one)] for place, one in enumerate(leaves) if id(one) in own}
        given = {
            gradients[id(one)]: numbers[place]
            for place, one in enumerate(leaves)
            if id(one) in gradients
        }
        return known.labels_of_update(names, given)

    def _go_on(self, call: Opened, results: Sequence[Any]) -> None:
        pending = self._pending
        if pending is not None and call.rows is not None:
            pending.made |= {id(one): one for one in results}
            pending.updated |= call.rows.updated
            leaves = dict(zip(call.known.program.inputs, call.leaves, strict=True))
            for one, sources in zip(results, call.known.inputs_of_results, strict=True):
                self._outside.goes_on(one, [leaves[number] for number in sources])

    def _close(self, new: Mapping[str, Any]) -> None:
        """End the step that waits for its update, whose parameters are `new` now."""
        pending = self._pending
        if pending is None or pending.is_of(new):
            return
        for name, before in pending.before.items():
            if name not in pending.updated:
                after = Value(new[name], is_copied=True) if name in new else None
                gradient = pending.gradients.get(name)
                record_update(self._recording, name, before, gradient, after, {}, (), OUTSIDE)
                if name in new and not self._outside.has_made(new[name]):
                    self._recording.note_gap(UNSEEN, _NOT_JAX_REASON)
        self._pending = None
        self._end(pending.parameters)

    def _end(self, names: Any) -> None:
        self._recording.optimizer(0, UPDATE, {}, list(names))
        self._recording.end_step(0)


def _parameters(known: Known, leaves: Sequence[Any]) -> dict[str, Any]:
    """The arguments that a call takes gradients of, by name."""
    places = {number: place for place, number in enumerate(known.program.inputs)}
    return {one.name: leaves[places[one.value]] for one in known.labels.roles.parameters}


def _new_parameters(call: Opened, results: Sequence[Any]) -> list[Any]:
    """What a call gave in place of the parameters that it took."""
    places = {number: place for place, number in enumerate(call.known.program.outputs)}
    roles = call.known.labels.roles
    new = (results[places[one.updated]] for one in roles.parameters if one.updated is not None)
    return [one for one in new if isinstance(one, jax.Array)]


def _reference(array: Any) -> Callable[[], Any]:
    return weakref.ref(array) if isinstance(array, jax.Array) else partial(_itself, array)


def _itself(array: Any) -> Any:
    return array


def _inputs(program: Program, leaves: Sequence[Any]) -> list[Value]:
    """The arguments as JAX takes them: a number becomes an array of the dtype that the program has it in."""
    kinds = [program.types[number] for number in program.inputs]
    return [
        Value(
            one if isinstance(one, jax.Array) else jax.numpy.asarray(one, kind.dtype),
            is_copied=True,
        )
        for one, kind in zip(leaves, kinds, strict=True)
    ]
