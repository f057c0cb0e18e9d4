"""Law C: within one run nothing changes by itself. Digests tell it at every weight. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lockstep.core.laws import Breach, Law, Quantity
from lockstep.core.operators import BY_HAND, writes_in_place
from lockstep.core.records import Call, TensorRecord, would_differ
from lockstep.core.site import CallKind, Role
from lockstep.laws.rank_prefixes import rank_and_name
from lockstep.laws.step_events import Contents, Source, StepProgram


@dataclass(slots=True)
class Continuity:
    """Follows parameters, buffers and states of one run through its steps.

    Each is what its last recorded update left, or the last recorded call that has written to it. Where several ranks
    are followed at once, it may also be what another rank holds under that name when the step begins: wrappers send
    buffers around.

    broken: By step and name, the record that shows another value than was left.
    """

    broken: dict[tuple[int, str], TensorRecord] = field(default_factory=dict)
    _left: dict[str, TensorRecord] = field(default_factory=dict)
    _held: dict[str, set[str | None]] = field(default_factory=dict)
    """By name without the rank: digests of what the ranks hold when the step begins."""
    _made: set[int] = field(default_factory=set)
    _last_step: int | None = None

    def add(self, step: int, calls: list[Call]) -> None:
        """Follow one step more; a step that was not recorded in between lets go of what is known."""
        if self._last_step is not None and step != self._last_step + 1:
            self._left.clear()
        self._last_step = step
        self._made.clear()
        self._held.clear()
        for name, record in self._left.items():
            rank, plain = rank_and_name(name)
            if rank:
                self._held.setdefault(plain, set()).add(record.digest)
        for call in sorted(calls, key=lambda one: one.sequence):
            if call.kind in (CallKind.OPERATOR, CallKind.OPTIMIZER):
                self._see(step, call)

    def _see(self, step: int, call: Call) -> None:
        if (
            call.site.op == BY_HAND
        ):  # by calls of the script, of which only some are known to be of the update
            for record in call.records:
                self._left.pop(record.name, None)
            return
        taken = [one for one in call.records if one.role in _TAKEN and _is_held(one)]
        for record in taken:
            known = self._left.get(record.name)
            by_call = record.role is Role.PARAM and record.content.id in self._made
            sent = record.digest in self._held.get(rank_and_name(record.name)[1], ())
            if known is not None and _changed(known, record) and not (by_call or sent):
                self.broken[step, record.name] = record
                self._left[record.name] = record
            self._left.setdefault(record.name, record)
        for record in call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER, Role.BUFFER):
            self._left[record.name] = record
        self._made |= {one.content.id for one in call.with_role(Role.OUTPUT)}
        if writes_in_place(call.site.op):  # into what it is given first, or into a list of these
            held = {one.index: one.name for one in taken if one.role is Role.INPUT}
            for result in call.with_role(Role.OUTPUT):
                if result.index in held:
                    self._left[held[result.index]] = result


_TAKEN = (Role.PARAM, Role.STATE, Role.INPUT)


def _is_held(record: TensorRecord) -> bool:
    """Whether a record is of a parameter, buffer or state, called by its own name."""
    return record.role is not Role.INPUT or bool(record.argument)


def _changed(left: TensorRecord, found: TensorRecord) -> bool:
    """Whether two records of one parameter are known to be of different values."""
    if (left.shape, left.dtype) != (found.shape, found.dtype):
        return False
    return left.digest != found.digest and would_differ(left.digest, found.digest)


def broken_alone(
    reference: Continuity, candidate: Continuity, names: Mapping[str, str], step: int
) -> Iterator[tuple[Breach, TensorRecord]]:
    """Parameters that changed by themselves before or in a step, in one run alone."""
    sides = [
        {
            names.get(name, name) if of_candidate else name: record
            for (number, name), record in one.broken.items()
            if number == step
        }
        for one, of_candidate in ((reference, False), (candidate, True))
    ]
    for own, other, run in (
        (sides[0], sides[1], "reference"),
        (sides[1], sides[0], "candidate"),
    ):
        for name in sorted(own.keys() - other.keys()):
            words = f"{name} is not what its last update left, and no recorded call has written to it since"
            yield (
                Breach(Law.CONTINUITY, Quantity.PARAMETER, run, name, 1.0, 0.0, words=words),
                own[name],
            )


# --- what custom functions, hooks and optimizers hold -----------------------------------------------------------------
#
# From one step to the next the batch and the parameters change, and with them all that is computed of them. What has
# the very same numbers in two steps of a run is a constant, and not computed past every recorded call.


@dataclass
class HeldTensors:
    """Follows what the steps of a run hold, as `StepProgram.held` has it."""

    _steps: dict[int, Contents] = field(default_factory=dict)

    def note(self, step: int, program: StepProgram) -> None:
        """Note what a step holds."""
        self._steps[step] = frozenset(_contents(program.sources[one] for one in program.held))

    def constants(self, step: int) -> Contents:
        """What this step holds, and another of those that were noted too."""
        of_others: Contents = frozenset().union(
            *(held for other, held in self._steps.items() if other != step)
        )
        return self._steps.get(step, frozenset()) & of_others


def are_constants(program: StepProgram, held: Iterable[Source], constants: Contents) -> bool:
    """Whether all of these tensors are among the constants of a run."""
    records = [program.sources[one] for one in held]
    return all(one.digest is not None and (one.digest, one.shape) in constants for one in records)


def _contents(records: Iterable[TensorRecord]) -> Iterable[tuple[str, tuple[int, ...]]]:
    return ((one.digest, one.shape) for one in records if one.digest is not None)
