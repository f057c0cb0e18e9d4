"""The origins of one step of one rank, to be put together by cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Kind, Origin, Outcome
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.locate.causes.scaling import StepGradients
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.origins import Origins
from lockstep.locate.flow.updates import BETWEEN
from lockstep.locate.setups.model_setup import ModelSetup
from lockstep.locate.unaligned_calls import Regions


@dataclass(slots=True)
class RankOrigins:
    """The origins of one rank over all its steps.

    setup: What differs between the set-ups of the two models.
    ledger, origins: What is known and found so far; origins are replaced and withdrawn.

    initial: Parameters that both runs begin with.
    before: Gradients as the optimizer got them in the step before: the reference's and the candidate's.
    not_zeroed: Whether gradients were found to hold an earlier step's.
    """

    setup: ModelSetup
    ledger: Ledger
    origins: Origins
    initial: set[str] = field(default_factory=set)
    before: dict[str, tuple[Content, Content]] = field(default_factory=dict)
    not_zeroed: bool = False


@dataclass(frozen=True, slots=True)
class StepOrigins:
    """The origins of one step; `first` is the number of the first of them."""

    rank: RankOrigins
    step: AlignedStep
    gradients: StepGradients
    regions: Regions
    first: int

    def found(self) -> list[Origin]:
        return self.rank.origins.found[self.first :]

    def each(self, change: Callable[[Origin], Origin]) -> None:
        found = self.rank.origins.found
        found[self.first :] = [change(origin) for origin in found[self.first :]]

    def withdraw(self, wanted: Iterable[Origin]) -> None:
        """Count origins with a cause that is named elsewhere."""
        for origin in wanted:
            self.rank.origins.withdraw(origin)
            self.rank.ledger.repeat(origin.finding)

    def merge(self, origins: list[Origin], **changes: object) -> None:
        """Make one origin of several, at the first one's place but for `changes`."""
        found = self.rank.origins.found
        number = next(n for n, one in enumerate(found) if one is origins[0])
        found[number] = replace(origins[0], **changes)  # type: ignore[arg-type]
        self.withdraw(origins[1:])

    def call_of(self, origin: Origin) -> Call | None:
        return self.regions.call_of(origin.finding.pair.present)

    def item_of(self, origin: Origin) -> Aligned | None:
        """The two aligned calls that an origin lies at."""
        call = self.call_of(origin)
        item = self.step.of_reference(call) if call is not None else None
        if item is None or item.reference is not call:
            item = self.step.of_candidate(call) if call is not None else None
        return item

    def is_of_gradients(self, origin: Origin) -> bool:
        """Whether it lies at the gradients of parameters, after a backward has made them."""
        if origin.op == BETWEEN or (
            origin.phase is Phase.BACKWARD and origin.finding.pair.present.role is Role.PARAM_GRAD
        ):
            return True
        return self.is_after_backward(origin)

    def is_after_backward(self, origin: Origin) -> bool:
        """Whether it lies between the last backward and the update: clipping, unscaling, all-reduce."""
        if origin.op == BETWEEN:
            return True
        call = self.call_of(origin)
        if call is None or call.kind is not CallKind.OPERATOR or call.parent in self.calls:
            return False
        last = max((one.sequence for one in self.of_kind(CallKind.GRADIENT)), default=None)
        if last is None or call.sequence <= last:
            return False
        # What an operator of an optimizer is given, as level aten shows it, was made before.
        given = origin.finding.pair.present.role is Role.INPUT
        return origin.phase is Phase.BACKWARD or (origin.phase is Phase.OPTIMIZER and given)

    def is_called_by_script(self, origin: Origin) -> bool:
        """Whether it lies at an operator that the script itself calls in its backward phase, between passes too."""
        call = self.call_of(origin)
        return (
            call is not None
            and (call.kind, call.site.phase) == (CallKind.OPERATOR, Phase.BACKWARD)
            and call.parent not in self.calls
        )

    @property
    def calls(self) -> dict[int, Call]:
        return self.step.reference.calls

    def of_kind(self, kind: CallKind) -> list[Call]:
        return [item.reference for item in self.step.of_kind(kind)]

    def lone_gradients(self) -> dict[str, tuple[Call, TensorRecord]]:
        """Gradients that one run alone computes, of parameters that both have, with the first call that holds each."""
        kinds = (CallKind.GRADIENT, CallKind.OPTIMIZER)
        self.rank.initial.update(
            pair.present.name
            for item in self.step.of_kind(CallKind.INIT)
            for pair in item.complete(Role.PARAM)
        )
        paired = {
            pair.present.name
            for item in self.step.of_kind(*kinds)
            for pair in item.complete(Role.PARAM_GRAD)
        }
        alone: dict[str, tuple[Call, TensorRecord]] = {}
        for pair in self.step.lone:
            call = pair.present
            if call.kind in kinds:
                for record in call.with_role(Role.PARAM_GRAD):
                    if record.name in self.rank.initial - paired:
                        alone.setdefault(record.name, (call, record))
        return alone

    def is_of_reference(self, call: Call) -> bool:
        """Whether a call without partner is the reference's."""
        return any(pair.reference is call for pair in self.step.lone)


def is_cut(origin: Origin) -> bool:
    """Return whether only one run sends a gradient on: it is cut, or leads to nothing that is trained."""
    missing = origin.finding.outcome is Outcome.MISSING and origin.kind is Kind.FAULT
    return missing and origin.phase is Phase.BACKWARD
