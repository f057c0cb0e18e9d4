"""One tensor as all ranks of a training and a run of one rank have it, and how calls of ranks belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.core.manifest import NotSeen
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.unify.joined_parts import Array
from lockstep.unify.one_recording import Key, record_key
from lockstep.unify.rank_layouts import Form, Shape
from lockstep.unify.whole_tensor import elements_of

GRADIENTS = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})
_HELD = frozenset({Role.PARAM, Role.PARAM_AFTER, Role.STATE, Role.STATE_AFTER})


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor of a call.

    call: That of the first rank.
    records: Those of the ranks, in their order.
    one: That of the run of one rank; None where it has none.
    equal: Whether all ranks hold the same, to the last bit.
    """

    call: Call
    records: Sequence[TensorRecord]
    one: TensorRecord | None
    equal: bool

    @property
    def first(self) -> TensorRecord:
        """Return the value of the first rank."""
        return self.records[0]

    @property
    def shapes(self) -> list[Shape]:
        """The shapes on the ranks."""
        return [each.shape for each in self.records]

    @property
    def whole_shape(self) -> Shape | None:
        """The shape on one rank; None where it has none."""
        return None if self.one is None else self.one.shape

    @property
    def parts(self) -> list[Array]:
        """The elements on the ranks."""
        return [elements_of(each.content) for each in self.records]

    @property
    def whole(self) -> Array | None:
        """The elements on one rank; None where it has none, or they were not kept."""
        if self.one is None or self.one.content.loader is None:
            return None
        return elements_of(self.one.content)

    @property
    def is_held(self) -> bool:
        """Return whether it is a parameter, or a tensor that an optimizer gets and holds."""
        role = self.first.role
        if role in _HELD or self.call.kind in (CallKind.OPTIMIZER, CallKind.INIT):
            return True
        return bool(self.first.argument) and role is Role.INPUT


class Forms(Protocol):
    """Decides how ranks hold tensors, by what their trainings have in common."""

    @property
    def name(self) -> str:
        """The name of the way in which ranks are put together, for messages."""

    @property
    def sums_losses(self) -> bool:
        """Whether one rank minimises the sum of the ranks' losses."""

    def begin(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> None:
        """Look at the calls of a step, before any of its tensors."""

    def form(self, seen: Seen) -> tuple[Form, int] | None:
        """Return how parts become one, and the divisor of the elements; None if there is no form.

        Raises UnlikeDimsError if they make no whole.
        """

    def divides_a_sum(self, call: Call) -> bool:
        """Return whether a call that one rank lacks is a part of a collective, whose sum it makes a mean."""

    def arguments(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Return the settings of a call, given that of each rank."""

    def of_state(self, name: str) -> Form:
        """Return how ranks hold a parameter or its optimizer state, by the parameter's name."""

    def notes(self) -> Iterator[NotSeen]:
        """Return further notes."""


def partner_of(call: Call | None, record: TensorRecord) -> TensorRecord | None:
    """Return the record of the same tensor in a call of the other run."""
    if call is None:
        return None
    key = record_key(record)
    return next((one for one in call.records if record_key(one) == key), None)


def together_by_record(calls: Sequence[Call]) -> Iterator[tuple[TensorRecord, list[TensorRecord]]]:
    """Yield each record of the first call, with those that the others have too."""
    found = [{record_key(one): one for one in call.records} for call in calls]
    for key, record in found[0].items():
        yield record, [records[key] for records in found if key in records]


def batches_of(by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]) -> Iterator[Seen]:
    """Yield the tensors of the batches of a step that all ranks and one have."""
    return seen_of(CallKind.DATA, by_rank, whole)


def seen_of(
    kind: CallKind, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
) -> Iterator[Seen]:
    """Yield the tensors of the calls of one kind in a step that all ranks and one have."""
    for key, call in by_rank[0].items():
        partner = whole.get(key)
        if call.kind is not kind or partner is None or any(key not in one for one in by_rank):
            continue
        for record, records in together_by_record([found[key] for found in by_rank]):
            one = partner_of(partner, record)
            if one is not None and len(records) == len(by_rank):
                equal = record.digest is not None and len({each.digest for each in records}) == 1
                yield Seen(call, records, one, equal)


def arguments_of(calls: Sequence[Call]) -> dict[str, Any]:
    """Settings of the first rank; where others have a different one, that of each. Whole numbers are mostly extents."""
    told = dict(calls[0].arguments)
    for name, value in told.items():
        values = [call.arguments.get(name) for call in calls]
        if any(one != value for one in values) and not all(_is_extent(one) for one in values):
            told[name] = ", ".join(f"rank{number}: {one}" for number, one in enumerate(values))
    return told


def _is_extent(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_extent, value))
    return isinstance(value, int) and not isinstance(value, bool)


__all__ = [
    "GRADIENTS",
    "Forms",
    "Seen",
    "arguments_of",
    "batches_of",
    "partner_of",
    "seen_of",
    "together_by_record",
]
