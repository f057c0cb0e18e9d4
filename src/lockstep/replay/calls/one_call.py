"""One recorded call, ready to be run on tensors that others gave: what regions and modules are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.autocast import cast_of
from lockstep.replay.calls.decisions import probability_of
from lockstep.replay.calls.doubles import WRITTEN_OUT
from lockstep.replay.calls.machine import HERE, Machine
from lockstep.replay.calls.rebuild import Rebuilt, rebuild, tensors_in
from lockstep.replay.calls.recorded_tensors import double_of, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision

RESULTS = (Role.OUTPUT, Role.BUFFER)
"""What a call gives forward."""

_NEVER_AGAIN = (Family.RANDOM, Family.UNINITIALISED)

Find = Callable[[TensorRecord], torch.Tensor | None]
"""What a call before gave for an input; None where none did."""


def _as_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


_CASTS: dict[str, Callable[..., Any]] = {
    f"torch.Tensor.{name}": _as_double for name in ("float", "half", "bfloat16", "double")
}
"""What rounds to a dtype that no argument names: in double precision it rounds to none."""


@dataclass(frozen=True, slots=True)
class OneCall:
    """One call, ready to be run; `writes` tells whether it may write to an argument, so that it is given a copy."""

    call: Call
    rebuilt: Rebuilt
    cast: torch.dtype | None
    writes: bool

    def passed(
        self, made: Find, entering: Callable[[TensorRecord], torch.Tensor], precision: Precision
    ) -> dict[int, torch.Tensor]:
        """Its arguments: what calls before it gave, or what enters, rounded as autocast does."""
        return {
            index: self._argument(made(record), record, entering, precision)
            for index, record in self.rebuilt.inputs.items()
        }

    def _argument(
        self,
        made: torch.Tensor | None,
        record: TensorRecord,
        entering: Callable[[TensorRecord], torch.Tensor],
        precision: Precision,
    ) -> torch.Tensor:
        tensor = entering(record) if made is None else made
        if self.cast is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            if precision is Precision.OWN:
                tensor = tensor.to(self.cast)
            elif made is None:
                tensor = widened(tensor.to(self.cast))
        return tensor.clone() if self.writes else tensor

    def results(
        self,
        passed: Mapping[int, torch.Tensor],
        precision: Precision,
        machine: Machine = HERE,
        *,
        of_any_extent: bool = False,
    ) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
        """Run it: what it gives for each recorded result, None where it gives none of that shape.

        of_any_extent: Whether axes may have other extents than in the recording, as where the numbers tell how much is
            chosen.
        """
        double = precision is Precision.DOUBLE
        function, op = self.rebuilt.function, self.call.site.op
        if double:
            function = _CASTS.get(op) or WRITTEN_OUT.get(op, function)
        dtype_of = double_of if double else machine.dtype_of
        args, kwargs = self.rebuilt.filled(passed, dtype_of, machine.device)
        results = tensors_in(function(*args, **kwargs))
        for record in self.call.with_role(*RESULTS):
            behind = record.index - len(results)
            found = results[record.index] if behind < 0 else passed.get(behind)
            fits = found is not None and (
                found.dim() == len(record.shape)
                if of_any_extent
                else tuple(found.shape) == record.shape
            )
            yield record, found if fits else None


def one_call(call: Call, *, draws: bool = False) -> OneCall:
    """A call, ready to be run; one that drops elements only if it `draws` from a state that is known.

    Raises CannotReplay if it cannot be run again.
    """
    family = family_of(call.site.op)
    if family in _NEVER_AGAIN:
        raise CannotReplay("its result does not follow from its inputs")
    if family is Family.DROPOUT and not draws and probability_of(call) > 0:
        raise CannotReplay("it drops elements at random")
    if "raised" in call.arguments:
        raise CannotReplay("it raised an error")
    name = call.site.op.rpartition(".")[2]
    told_to = any(value is True for value in call.arguments.values())  # as by `inplace`
    writes = (
        name.endswith("_")
        or told_to
        or any(not record.name.startswith("result") for record in call.with_role(*RESULTS))
    )
    return OneCall(call, rebuild(call), cast_of(call), writes)
