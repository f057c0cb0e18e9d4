"""The calls of a module run again in their order, each on what those before it gave again: what accumulates is seen.

A call that cannot be run again is left out: the chain goes on from what was recorded of it, which is said. So are
decisions (indices, masks): a tie that falls otherwise would say nothing of a kernel. What the module's result may be
off is what the whole chain is off in its own dtypes, and for inputs off by their rounding, as for calls without partner
(`lockstep.replay.error_bounds.margin`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.records import Call, Layout, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.answers import Chained, Link, ModuleCall
from lockstep.replay.calls.again import held_by
from lockstep.replay.calls.held_results import RECORDED, Held, Result
from lockstep.replay.calls.layouts import laid
from lockstep.replay.calls.machine import HERE, Machine
from lockstep.replay.calls.one_call import RESULTS, OneCall, one_call
from lockstep.replay.calls.recorded_tensors import load, random_state_of, widened
from lockstep.replay.calls.refusals import BASE_BYTES, CannotReplay, TooLarge
from lockstep.replay.calls.rerun import Alter, Precision
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse
from lockstep.replay.error_bounds.distance import error_of, perturbed, size_of
from lockstep.replay.error_bounds.margin import Local, within_each, worst

_DOUBLE_BYTES, _COPIES = 8, 3.0

_DRAWS = (
    "it draws random numbers, and from which state was not saved, or it is run on another device"
)


@dataclass(slots=True)
class _Run:
    """One pass through the chain: tensors by the number of the content that was recorded."""

    precision: Precision
    machine: Machine = HERE
    alter: Alter | None = None
    made: dict[int, torch.Tensor] = field(default_factory=dict)
    entered: dict[int, torch.Tensor] = field(default_factory=dict)
    placed: dict[tuple[int, Layout | None], torch.Tensor] = field(default_factory=dict)

    def entering(self, record: TensorRecord) -> torch.Tensor:
        """Return the tensors that no call of the chain gives, as they were recorded and lay in memory."""
        number, layout = record.content.id, record.layout
        if number not in self.entered:
            tensor = load(record)
            if self.precision is Precision.DOUBLE:
                tensor = widened(tensor)
            if tensor.dtype.is_floating_point and self.alter is not None:
                tensor = self.alter(tensor)
            self.entered[number] = tensor
        if (number, layout) not in self.placed:
            self.placed[number, layout] = self.machine.moved(laid(self.entered[number], layout))
        return self.placed[number, layout]


class Chain:
    """A module's calls, ready to be run again in their order.

    module: The module's call.
    machine: Where it is run again.
    memory_bytes: What the process may take.

    refused: Calls that are not run again, with the reason.

    Raises CannotReplay if nothing of it can be run again.
    """

    def __init__(self, module: ModuleCall, machine: Machine, memory_bytes: int) -> None:
        self.module, self.machine = module, machine
        self.refused: dict[int, str] = {}
        self.steps: dict[int, OneCall] = {}
        _check_memory(module, memory_bytes)
        for call in module.inside:
            try:
                self.steps[call.id] = self._step(call)
            except CannotReplay as error:
                self.refused[call.id] = str(error)
        count = -1
        while count != len(self.refused):  # what refuses in one precision is left out in both
            count = len(self.refused)
            self.truth = self.run(Precision.DOUBLE, probe=True)
            self.made = self.run(Precision.OWN, machine=machine, probe=True)
        if len(self.refused) == len(module.inside):
            why = next(iter(self.refused.values()), "no operator was recorded in it")
            raise CannotReplay(f"none of its calls can be run again: {why}")

    def _step(self, call: Call) -> OneCall:
        state = random_state_of(call)
        if call.random_state is not None and (state is None or self.machine.device.type != "cpu"):
            raise CannotReplay(_DRAWS)
        return one_call(call, draws=state is not None)

    def run(
        self,
        precision: Precision,
        *,
        machine: Machine = HERE,
        alter: Alter | None = None,
        probe: bool = False,
    ) -> dict[int, torch.Tensor]:
        """Return the results of the calls, by the number of the recorded content.

        precision, machine: In which numbers, and where.
        alter: Applied to every floating-point tensor that enters.
        probe: Whether a call that torch refuses is left out from now on.

        Raises CannotReplay if torch refuses.
        """
        run = _Run(precision, machine, alter)
        with leaving_no_trace(), torch.no_grad(), machine.at_work():
            for call in self.module.inside:
                self._ran(call, run, probe)
        return {
            number: widened(tensor.cpu())
            for number, tensor in run.made.items()
            if tensor.dtype.is_floating_point
        }

    def _ran(self, call: Call, run: _Run, probe: bool) -> None:
        if call.id not in self.refused:
            try:
                with torch_may_refuse():
                    self._called(self.steps[call.id], run)
                return
            except CannotReplay as error:
                if not probe:
                    raise
                self.refused[call.id] = str(error)
        for record in call.with_role(*RESULTS):
            run.made.pop(record.content.id, None)  # it enters as it was recorded

    def _called(self, step: OneCall, run: _Run) -> None:
        passed = step.passed(partial(self.giver, run.made), run.entering, run.precision)
        state = random_state_of(step.call)
        if state is not None:
            torch.set_rng_state(state)
        for record, found in step.results(passed, run.precision, run.machine):
            if found is None:
                raise CannotReplay("the re-run gives no such result")
            if is_floating(record.dtype):
                run.made[record.content.id] = found
            else:
                run.made.pop(record.content.id, None)

    @staticmethod
    def giver(made: dict[int, torch.Tensor], record: TensorRecord) -> torch.Tensor | None:
        """Return the chain's result for an input; None for parameters, and for tensors that it does not give."""
        return made.get(record.content.id) if is_passed(record) else None

    def links(self) -> Iterator[Link]:
        """Each call of it."""
        seen = set(self.module.known)
        for call in self.module.inside:
            unmade = tuple(
                record.name
                for record in call.with_role(Role.INPUT)
                if is_passed(record) and record.content.id not in seen
            )
            seen |= {record.content.id for record in call.with_role(Role.INPUT, *RESULTS)}
            refused = self.refused.get(call.id, "")
            yield Link(call.id, math.nan if refused else self._error(call), refused, unmade)

    def _error(self, call: Call) -> float:
        """How far what was recorded of a call is from the chain in double precision."""
        found = [
            error_of(widened(load(record)), truth).norm / (size_of(truth).norm or 1.0)
            for record in call.with_role(*RESULTS)
            if record.content.loader is not None
            and (truth := self.truth.get(record.content.id)) is not None
        ]
        return max(found, default=math.nan)

    def targets(self) -> list[TensorRecord]:
        """The module's results."""
        return list(self.module.call.with_role(Role.OUTPUT))

    def refusal(self, record: TensorRecord) -> str:
        """Why one of the module's results is not held, or ""."""
        if not is_floating(record.dtype):
            return "it is a decision, which is taken as it was recorded"
        if record.content.id in self.truth:
            return ""
        makers = [
            call
            for call in self.module.inside
            if record.content.id in {one.content.id for one in call.with_role(*RESULTS)}
        ]
        if not makers:
            return "no recorded call in it gives it"
        return f"{makers[-1].site.op} gives it, which was not run again"

    def noisy(self, *, like_its_own: bool) -> list[dict[int, torch.Tensor]]:
        """The same for inputs off by their rounding, and in its own dtypes where these are known to be sound."""
        records = [record for call in self.module.inside for record in call.records]
        units = [unit_roundoff(record.dtype) for record in records if is_floating(record.dtype)]
        unit = min(max(units, default=SINGLE), SINGLE)
        found = [self.run(Precision.DOUBLE, alter=perturbed(unit, 0))]
        if like_its_own:
            found.append(self.run(Precision.OWN))
        return found

    def held(
        self, record: TensorRecord, made: torch.Tensor, noisy: Sequence[dict[int, torch.Tensor]]
    ) -> list[Local]:
        """One result held against the chain in double precision, in each population."""
        truth = self.truth[record.content.id]
        others = [one[record.content.id] for one in noisy]
        return within_each(made, truth, others, unit_roundoff(record.dtype))


def is_passed(record: TensorRecord) -> bool:
    """Whether an input was passed as an argument, rather than being a parameter or a buffer."""
    return record.name.startswith(("args.", "kwargs."))


def chained(
    module: ModuleCall, machine: Machine, *, like_its_own: bool, memory_bytes: int
) -> Chained:
    """Run a module's calls again in their order.

    module: With whole tensors.
    machine: Where.
    like_its_own: Whether each call alone is sound here, so that what the chain is off in its own dtypes is noise.
    memory_bytes: What the process may take.

    Raises CannotReplay if nothing of it can be run again.
    """
    chain = Chain(module, machine, memory_bytes)
    noisy = chain.noisy(like_its_own=like_its_own)
    results = []
    for record in chain.targets():
        refused, held = chain.refusal(record), list[Held]()
        if not refused:
            made = {RECORDED: widened(load(record)), str(machine): chain.made[record.content.id]}
            unit = unit_roundoff(record.dtype)
            held = [
                held_by(maker, worst(chain.held(record, tensor, noisy)), unit)
                for maker, tensor in made.items()
            ]
        results.append(
            Result(record.role, record.name, record.index, record.occurrence, tuple(held), refused)
        )
    return Chained(tuple(results), tuple(chain.links()))


def _check_memory(module: ModuleCall, memory_bytes: int) -> None:
    contents = {
        record.content.id: record.content.numel
        for call in module.inside
        for record in call.with_role(Role.INPUT, *RESULTS)
    }
    needed = BASE_BYTES + int(_COPIES * _DOUBLE_BYTES * sum(contents.values()))
    if needed > memory_bytes:
        raise TooLarge(needed)
