"""The calls of one run between the tensors that enter a region and one that leaves it, run again as a whole.

A single call is re-run from what was recorded to go in. Here a call takes what the calls before it in the region gave
*again*, so that in double precision nothing but the function that they compute together is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.measure.measured_pair import LEAVES_OUT
from lockstep.replay.calls.one_call import RESULTS, OneCall, one_call
from lockstep.replay.calls.recorded_tensors import LARGE, load, widened
from lockstep.replay.calls.refusals import BASE_BYTES, CannotReplay, TooLarge
from lockstep.replay.calls.rerun import Alter, Precision
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse

_DOUBLE_BYTES = 8

_ONE_CALL = 3.0
"""How many times the bytes of its tensors, in double precision, one call takes while it runs."""


class RegionRun:
    """One run's calls in a region, as far as one tensor was computed by them.

    calls: The calls without partner, in order of time.
    target: The tensor that leaves.

    Raises CannotReplay if a call cannot be run again, or draws random numbers.
    """

    def __init__(self, calls: Sequence[Call], target: TensorRecord) -> None:
        self.target = target
        self._steps = [one_call(call) for call in _makers(calls, target)]
        self._last_use = _last_uses(self._steps, target.content.id)
        self._loaded: dict[int, torch.Tensor] = {}

    @property
    def entering(self) -> list[TensorRecord]:
        """Return the tensors that no call of the region made, each content once."""
        made: set[int] = set()
        found: dict[int, TensorRecord] = {}
        for step in self._steps:
            for record in step.call.with_role(Role.INPUT):
                if record.content.id not in made:
                    found.setdefault(record.content.id, record)
            made |= {record.content.id for record in step.call.with_role(*RESULTS)}
        if self.target.content.id not in made:
            found.setdefault(self.target.content.id, self.target)
        return list(found.values())

    @property
    def work(self) -> int:
        """Elements that are written in one run."""
        return sum(
            record.content.numel for step in self._steps for record in step.call.with_role(*RESULTS)
        )

    def check_memory(self, memory_bytes: int) -> None:
        """See whether the region may be run again. Raises TooLarge if that takes more memory than it may."""
        alive: dict[int, int] = {}
        most = 0
        for position, step in enumerate(self._steps):
            own = {
                record.content.id: record.content.numel
                for record in step.call.with_role(Role.INPUT, *RESULTS)
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
        altered: Mapping[int, Alter] | None = None,
        casts: bool = True,
    ) -> torch.Tensor:
        """The tensor that leaves.

        precision: In which numbers.
        given: Other tensors for contents that enter, by number: those of the other run, of as many elements.
        alter: Applied to every floating-point tensor that enters, but for masks.
        alter_masks: Applied to what is added to scores to leave them out, whether it enters or is made inside.
        altered: Applied to single contents that enter, by number.
        casts: Whether what enters a call is rounded as autocast rounded it.

        Raises CannotReplay if torch refuses, the calls draw random numbers, or the result has another shape.
        """
        with torch_may_refuse(), leaving_no_trace(), torch.no_grad():
            before = torch.get_rng_state()
            steps = self._steps if casts else [replace(one, cast=None) for one in self._steps]
            found = self._run(steps, precision, given or {}, alter, alter_masks, altered or {})
            if not torch.equal(before, torch.get_rng_state()):
                raise CannotReplay("it draws random numbers")
        if tuple(found.shape) != self.target.shape:
            raise CannotReplay("the re-run gives another shape")
        return widened(found)

    def _run(
        self,
        steps: Sequence[OneCall],
        precision: Precision,
        given: Mapping[int, TensorRecord],
        alter: Alter | None,
        alter_masks: Alter | None,
        altered: Mapping[int, Alter],
    ) -> torch.Tensor:
        entered: dict[int, torch.Tensor] = {}
        made: dict[int, torch.Tensor] = {}

        def entering(record: TensorRecord) -> torch.Tensor:
            number = record.content.id
            if number not in entered:
                tensor = self._load(given.get(number, record)).reshape(record.shape)
                if precision is Precision.DOUBLE:
                    tensor = widened(tensor)
                if tensor.dtype.is_floating_point and (alter or alter_masks):
                    change = alter_masks if leaves_out(tensor) else alter
                    tensor = change(tensor) if change is not None else tensor
                entered[number] = altered[number](tensor) if number in altered else tensor
            return entered[number]

        for position, step in enumerate(steps):
            passed = step.passed(lambda record: made.get(record.content.id), entering, precision)
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
        one: OneCall,
        passed: dict[int, torch.Tensor],
        precision: Precision,
        alter_masks: Alter | None,
    ) -> None:
        """Run one call and keep what it gives by the number of the content that was recorded."""
        for record, found in one.results(passed, precision):
            if found is not None:
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


def _makers(calls: Sequence[Call], target: TensorRecord) -> list[Call]:
    """The calls that a tensor was computed by, in order of time."""
    wanted, found = {target.content.id}, []
    for call in sorted(calls, key=lambda one: one.sequence, reverse=True):
        results = {record.content.id for record in call.with_role(*RESULTS)}
        if results & wanted:
            found.append(call)
            wanted -= results
            wanted |= {record.content.id for record in call.with_role(Role.INPUT)}
    return found[::-1]


def _last_uses(steps: Sequence[OneCall], target: int) -> dict[int, int]:
    """Position of the last call that takes each content."""
    uses: dict[int, int] = defaultdict(int)
    for position, step in enumerate(steps):
        for record in step.call.with_role(Role.INPUT):
            uses[record.content.id] = position
    uses[target] = len(steps)
    return uses
