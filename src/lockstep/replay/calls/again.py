"""Run one recorded call again, alone, on some machine, and compare it with double precision.

For operators, forward and backward, and for optimizer updates. What a result may be off is what the local-error judge
allows one (`lockstep.replay.calls.alone`), with no other run at hand: the noise is that of a re-run on the host in the
same dtypes, and of inputs off by their rounding. In another dtype it is that of a re-run on the host in that dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.calls.alone import Alone
from lockstep.replay.calls.decisions import decided, dropped, drops
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, RECORDED, Held, Result, results_of
from lockstep.replay.calls.machine import HERE, Machine
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.rebuild import CPU, Rebuilt, rebuild
from lockstep.replay.calls.recorded_tensors import LARGE, widened
from lockstep.replay.calls.refusals import CannotReplay, check_call
from lockstep.replay.calls.rerun import Precision, Rerun, Results, outputs_of
from lockstep.replay.calls.rounded_inside import rounded_inside
from lockstep.replay.calls.side import Side
from lockstep.replay.error_bounds.distance import error_of, rounded
from lockstep.replay.error_bounds.margin import Local, within


def again(
    call: Call,
    machine: Machine = HERE,
    *,
    repeat: int = 1,
    like: Call | None = None,
    memory_bytes: int,
) -> list[Result]:
    """Run a call again on its own recorded inputs.

    call: An operator or an update, with whole tensors.
    machine: Where, and in which dtype.
    repeat: How often; 0 to hold only what was recorded.
    like: A call of the other run whose plain arguments are used.
    memory_bytes: What the process may take.

    Raises CannotReplay if the call cannot be run again at all.
    """
    if call.kind is CallKind.OPTIMIZER:
        return _update(call, machine, repeat)
    if "raised" in call.arguments:
        raise CannotReplay("it raised an error")
    backward = bool(call.with_role(Role.GRAD_OUTPUT)) and bool(call.with_role(*BACKWARD))
    check_call(call, memory_bytes, backward=backward)
    return _Operator(call, rebuilt_like(call, like), machine, repeat, backward=backward).results()


def rebuilt_like(call: Call, like: Call | None) -> Rebuilt:
    """A call put together again, with the plain arguments of another where one is given.

    Raises CannotReplay if that cannot be done.
    """
    rebuilt = rebuild(call)
    return rebuilt if like is None else rebuilt.with_settings(rebuild(like))


def held_by(maker: str, local: Local, unit: float) -> Held:
    """The local error of one maker's result in words, in a dtype of this unit roundoff."""
    epsilons = local.relative / (2.0 * unit) if unit > 0 else math.nan
    words = local.words_on_rounding
    return Held(maker, local.relative, local.allowed, local.excess, epsilons, words)


class _Operator:
    """One operator call and its re-runs."""

    def __init__(
        self, call: Call, rebuilt: Rebuilt, machine: Machine, repeat: int, *, backward: bool
    ) -> None:
        self._call, self._machine = call, machine
        self._rerun = Rerun(call, rebuilt)
        self._side = Side(self._rerun, backward=backward)
        self._backward = backward
        self._family = family_of(call.site.op)
        chooses = self._family is Family.DROPOUT and drops(call)
        self._draws = call.random_state is not None or self._family is Family.RANDOM or chooses
        if self._family is Family.UNINITIALISED:
            raise CannotReplay("it returns memory as it was found")
        if self._draws and not self._draws_the_same:
            repeat = 0
        self._reruns = [self._run(machine) for _ in range(repeat)]

    @property
    def _draws_the_same(self) -> bool:
        """Whether a re-run draws the numbers that the call drew."""
        return self._rerun.can_draw_again and self._machine.device == CPU

    def results(self) -> list[Result]:
        """Every result, in the order of the records."""
        return [self._result(record) for record in results_of(self._call)]

    def _run(self, machine: Machine, *, backward: bool = True) -> Results:
        return self._rerun.run(Precision.OWN, backward=backward and self._backward, machine=machine)

    def _results(self, record: TensorRecord) -> Iterator[Results]:
        """Each re-run, made anew where those that are there have no such result."""
        for results in self._reruns:
            alone = self._forward_alone(record)
            yield self._run(self._machine, backward=False) if alone else results

    def _forward_alone(self, record: TensorRecord) -> bool:
        """Whether a result is run again without backward: of a large one a run with backward keeps gradients alone."""
        return self._backward and record.role in FORWARD and record.content.numel >= LARGE

    def _result(self, record: TensorRecord) -> Result:
        refused = ""
        held: list[Held] = []
        alone = self._forward_alone(record)
        side = Side(self._rerun, backward=False) if alone else self._side
        try:
            for one in self._held(record, side):
                held.append(one)
            if self._draws and not self._draws_the_same:
                refused = "it draws random numbers, and from which state was not saved"
        except CannotReplay as error:
            refused = str(error)
        return Result(
            record.role, record.name, record.index, record.occurrence, tuple(held), refused
        )

    def _held(self, record: TensorRecord, side: Side) -> Iterator[Held]:
        if self._draws and not self._rerun.can_draw_again:
            yield self._dropout(record)
        elif not is_floating(record.dtype):
            yield from self._decisions(record)
        else:
            held, recorded = self._read(record, side)
            own_draw = self._family is Family.RANDOM and recorded.excess > 1.0
            if own_draw and self._is_own(record, side):
                # In double precision some draws take other bits of the same stream: bernoulli.
                yield from self._decisions(record)
                return
            yield _worded(held_by(RECORDED, recorded, held.unit), held)
            for results in self._results(record):
                yield self._made(held, held.reading.of(results, record))

    def _is_own(self, record: TensorRecord, side: Side) -> bool:
        """Whether a draw is, bit for bit, what its own dtype draws here from the same state."""
        own = side.own(record, side.readings(record)[0])
        return own is not None and _share_apart(widened(self._rerun.load(record)), own) == 0.0

    def _read(self, record: TensorRecord, side: Side) -> tuple[Alone, Local]:
        """A result as it is best read, and its local error then."""
        ways = [Alone(side, record, reading) for reading in side.readings(record)]
        held = ways[0] if len(ways) == 1 else min(ways, key=lambda one: one.distance)
        return held, held.local()

    def _made(self, held: Alone, made: torch.Tensor) -> Held:
        machine, truth = self._machine, held.truth
        if machine.dtype is None:
            local = replace(held, made=widened(made)).local()
            return held_by(str(machine), local, held.unit)
        backward = held.side is self._side
        alike = self._run(Machine(dtype=machine.dtype), backward=backward)
        host = held.reading.of(alike, held.record)
        unit = unit_roundoff(str(made.dtype).removeprefix("torch."))
        # As of what was recorded in 16 bits: the sums are wider, and the result is rounded once.
        once = error_of(rounded(truth, made.dtype), truth).norm if unit > SINGLE else 0.0
        local = within(widened(made), truth, [widened(host)], unit, None, known=once)
        return held_by(str(machine), local, unit)

    def _decisions(self, record: TensorRecord) -> Iterator[Held]:
        """Indices, masks and counts: each is what the operator gives here, or a tie away from it."""
        expected = self._rerun.run(Precision.OWN, backward=False, cast=False)
        (host, *_) = outputs_of(expected, record)
        actual = self._rerun.load(record)
        sound = decided(self._rerun, record).valid or _share_apart(actual, host) == 0.0
        yield _whole(RECORDED, 0.0 if sound else _share_apart(actual, host))
        for results in self._results(record):
            (made, *_) = outputs_of(results, record)
            yield _whole(str(self._machine), _share_apart(made, host))

    def _dropout(self, record: TensorRecord) -> Held:
        """What dropout keeps is scaled, and it drops as many as it should; which ones, nobody can tell."""
        if self._family is not Family.DROPOUT or record.role not in FORWARD:
            raise CannotReplay("it draws random numbers, and from which state was not saved")
        done = dropped(self._rerun, self._side.unit(record))
        return Held(
            RECORDED,
            0.0 if done.sound else math.inf,
            0.0,
            0.0 if done.sound else math.inf,
            math.nan,
        )


def _update(call: Call, machine: Machine, repeat: int) -> list[Result]:
    update = UpdateRerun(call)
    if machine.dtype is not None:
        raise CannotReplay("updates are made in the dtypes of their parameters alone")
    made = [update.again(machine) for _ in range(repeat)]
    results = []
    for record in results_of(call):
        unit, held, refused = unit_roundoff(record.dtype), [], ""
        try:
            held.append(held_by(RECORDED, update.local(record), unit))
            for one in made:
                held.append(
                    held_by(str(machine), update.local(record, update.named(one, record)), unit)
                )
        except CannotReplay as error:
            refused = str(error)
        results.append(
            Result(record.role, record.name, record.index, record.occurrence, tuple(held), refused)
        )
    return results


def _worded(recorded: Held, held: Alone) -> Held:
    """What was recorded, with the rounding inside of its operator where that explains why it is not sound."""
    rounding = None if recorded.sound else rounded_inside(held)
    return recorded if rounding is None else replace(recorded, words=str(rounding))


def _whole(maker: str, share: float) -> Held:
    return Held(maker, share, 0.0, math.inf if share else 0.0, math.nan)


def _share_apart(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape:
        return 1.0
    return float((one.to(other.dtype) != other).double().mean()) if one.numel() else 0.0
