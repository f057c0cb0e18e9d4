"""The calls of one run between the tensors that enter a region and one that leaves it, run again as a whole.

A single call is re-run from what was recorded to go in. Here a call takes what the calls before it in the region gave
*again*, so that in double precision nothing but the function that they compute together is left.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.measure.masks import LEAVES_OUT
from lockstep.replay.budget import BASE_BYTES, TooLarge
from lockstep.replay.decisions import probability_of
from lockstep.replay.doubles import WRITTEN_OUT
from lockstep.replay.rebuild import Rebuilt, rebuild, tensors_in
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import (
    LARGE,
    REFUSALS,
    Alter,
    Precision,
    cast_of,
    double_of,
    load,
    widened,
)

_RESULTS = (Role.OUTPUT, Role.BUFFER)

_NEVER_AGAIN = (Family.RANDOM, Family.UNINITIALISED)

_DOUBLE_BYTES = 8

_ONE_CALL = 3.0
"""How many times the bytes of its tensors, in double precision, one call takes while it runs."""


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


CASTS: dict[str, Callable[..., Any]] = {
    f"torch.Tensor.{name}": _as_double for name in ("float", "half", "bfloat16", "double")
}
"""What rounds to a dtype that no argument names: in double precision it rounds to none."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call, ready to be run; `writes` tells whether it writes to an argument."""

    call: Call
    rebuilt: Rebuilt
    cast: torch.dtype | None
    writes: bool


class RegionRun:
    """One run's calls in a region, as far as one tensor was computed by them.

    Parameters
    ----------
    calls
        The calls without partner, in order of time.
    target
        The tensor that leaves.

    Raises
    ------
    CannotReplay
        If a call cannot be run again, or draws random numbers.
    """

    def __init__(self, calls: Sequence[Call], target: TensorRecord) -> None:
        self.target = target
        self._steps = [step_of(call) for call in _makers(calls, target)]
        self._last_use = _last_uses(self._steps, target.content.id)
        self._loaded: dict[int, torch.Tensor] = {}

    @property
    def entering(self) -> list[TensorRecord]:
        """What no call of the region made, each content once."""
        made: set[int] = set()
        found: dict[int, TensorRecord] = {}
        for step in self._steps:
            for record in step.call.with_role(Role.INPUT):
                if record.content.id not in made:
                    found.setdefault(record.content.id, record)
            made |= {record.content.id for record in step.call.with_role(*_RESULTS)}
        if self.target.content.id not in made:
            found.setdefault(self.target.content.id, self.target)
        return list(found.values())

    @property
    def work(self) -> int:
        """Elements that are written in one run."""
        return sum(
            record.content.numel
            for step in self._steps
            for record in step.call.with_role(*_RESULTS)
        )

    def check_memory(self, memory_bytes: int) -> None:
        """See whether the region may be run again.

        Raises
        ------
        TooLarge
            If that takes more memory than it may.
        """
        alive: dict[int, int] = {}
        most = 0
        for position, step in enumerate(self._steps):
            own = {
                record.content.id: record.content.numel
                for record in step.call.with_role(Role.INPUT, *_RESULTS)
                if unit_roundoff(record.dtype) > 0
            }
            alive.update(own)
            most = max(most, sum(alive.values()) + int(_ONE_CALL * sum(own.values())))
            alive = {key: n for key, n in alive.items() if self._last_use.get(key, -1) > position}
        needed = BASE_BYTES + _DOUBLE_BYTES * most
        if needed > memory_bytes:
            raise TooLarge(needed)

    def run(
        self,
        precision: Precision,
        *,
        given: Mapping[int, TensorRecord] | None = None,
        alter: Alter | None = None,
        alter_masks: Alter | None = None,
    ) -> torch.Tensor:
        """The tensor that leaves.

        Parameters
        ----------
        precision
            In which numbers.
        given
            Other tensors for contents that enter, by number: those of the other run.
        alter
            Applied to every floating-point tensor that enters, but for masks.
        alter_masks
            Applied to what is added to scores to leave them out, whether it enters or is made inside.

        Raises
        ------
        CannotReplay
            If torch refuses, the calls draw random numbers, or the result has another shape.
        """
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                before = torch.get_rng_state()
                found = self._run(precision, given or {}, alter, alter_masks)
                if not torch.equal(before, torch.get_rng_state()):
                    raise CannotReplay("it draws random numbers")
        except CannotReplay:
            raise
        except REFUSALS as error:
            first = str(error).partition("\n")[0] or type(error).__name__
            raise CannotReplay(f"torch refuses: {first}") from error
        if tuple(found.shape) != self.target.shape:
            raise CannotReplay("the re-run gives another shape")
        return widened(found)

    def _run(
        self,
        precision: Precision,
        given: Mapping[int, TensorRecord],
        alter: Alter | None,
        alter_masks: Alter | None,
    ) -> torch.Tensor:
        entered: dict[int, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}

        def entering(record: TensorRecord) -> torch.Tensor:
            number = record.content.id
            if number not in entered:
                tensor = self._load(given.get(number, record))
                if precision is Precision.DOUBLE:
                    tensor = widened(tensor)
                if tensor.dtype.is_floating_point and (alter or alter_masks):
                    change = alter_masks if leaves_out(tensor) else alter
                    tensor = change(tensor) if change is not None else tensor
                entered[number] = tensor
            return entered[number]

        for position, step in enumerate(self._steps):
            passed = {
                index: passed_to(made.get(record.content.id), record, step, precision, entering)
                for index, record in step.rebuilt.inputs.items()
            }
            self._keep(made, step, passed, precision, alter_masks)
            for record in step.call.with_role(Role.INPUT):
                if self._last_use.get(record.content.id, -1) <= position:
                    made.pop(record.content.id, None)
                    entered.pop(record.content.id, None)
        number = self.target.content.id
        return made[number] if number in made else entering(self.target)

    def _keep(
        self,
        made: dict[int, torch.Tensor],
        step: Step,
        passed: dict[int, torch.Tensor],
        precision: Precision,
        alter_masks: Alter | None,
    ) -> None:
        """Run one call and keep what it gives by the number of the content that was recorded."""
        double = precision is Precision.DOUBLE
        function, op = step.rebuilt.function, step.call.site.op
        if double:
            function = CASTS.get(op) or WRITTEN_OUT.get(op, function)
        args, kwargs = step.rebuilt.filled(passed, double_of if double else _same)
        results = tensors_in(function(*args, **kwargs))
        for record in step.call.with_role(*_RESULTS):
            behind = record.index - len(results)
            found = results[record.index] if behind < 0 else passed.get(behind)
            if found is None or tuple(found.shape) != record.shape:
                continue
            mask = alter_masks is not None and leaves_out(found)
            made[record.content.id] = alter_masks(found) if alter_masks and mask else found

    def _load(self, record: TensorRecord) -> torch.Tensor:
        if record.content.numel >= LARGE:
            return load(record)
        if id(record.content) not in self._loaded:
            self._loaded[id(record.content)] = load(record)
        return self._loaded[id(record.content)]


def leaves_out(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a mask that is added to scores: 0, or so far below that it leaves out."""
    if not tensor.dtype.is_floating_point or not tensor.numel() or tensor.amin() > LEAVES_OUT:
        return False
    return bool(((tensor == 0) | (tensor <= LEAVES_OUT)).all())


def passed_to(
    made: torch.Tensor | None,
    record: TensorRecord,
    step: Step,
    precision: Precision,
    entering: Callable[[TensorRecord], torch.Tensor],
) -> torch.Tensor:
    """What one argument is: what the region made, or what enters, rounded as autocast does."""
    tensor = entering(record) if made is None else made
    if step.cast is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        if precision is Precision.OWN:
            tensor = tensor.to(step.cast)
        elif made is None:
            tensor = widened(tensor.to(step.cast))
    return tensor.clone() if step.writes else tensor


def _makers(calls: Sequence[Call], target: TensorRecord) -> list[Call]:
    """The calls that a tensor was computed by, in order of time."""
    wanted, found = {target.content.id}, []
    for call in sorted(calls, key=lambda one: one.sequence, reverse=True):
        results = {record.content.id for record in call.with_role(*_RESULTS)}
        if results & wanted:
            found.append(call)
            wanted -= results
            wanted |= {record.content.id for record in call.with_role(Role.INPUT)}
    return found[::-1]


def step_of(call: Call, *, draws: bool = False) -> Step:
    """A call, ready to be run; one that drops elements only if it `draws` from a state that is known.

    Raises
    ------
    CannotReplay
        If it cannot be run again.
    """
    family = family_of(call.site.op)
    if family in _NEVER_AGAIN:
        raise CannotReplay("its result does not follow from its inputs")
    if family is Family.DROPOUT and not draws and probability_of(call) > 0:
        raise CannotReplay("it drops elements at random")
    if "raised" in call.arguments:
        raise CannotReplay("it raised an error")
    name = call.site.op.rpartition(".")[2]
    writes = name.endswith("_") or any(
        not record.name.startswith("result") for record in call.with_role(*_RESULTS)
    )
    return Step(call, rebuild(call), cast_of(call), writes)


def _last_uses(steps: Sequence[Step], target: int) -> dict[int, int]:
    """Position of the last call that takes each content."""
    uses: dict[int, int] = defaultdict(int)
    for position, step in enumerate(steps):
        for record in step.call.with_role(Role.INPUT):
            uses[record.content.id] = position
    uses[target] = len(steps)
    return uses


def _same(dtype: torch.dtype) -> torch.dtype:
    return dtype
