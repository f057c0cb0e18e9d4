"""Calls that one run makes and the other does not, or one rank alone, each named once; the results after them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep, is_aligned, is_inside_lone, regions_of
from lockstep.core.dependence import Dependence
from lockstep.core.finding import Evidence, Finding, Origin, OtherClass, Pair, UnalignedCalls
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import listed
from lockstep.locate.lone_effects import Effect, LoneEffect
from lockstep.store.reader import Recording

CalledFrom = tuple[str, str]
"""An operator and the `file:line` that calls it."""

_Key = tuple[object, ...]


@dataclass(slots=True)
class Unaligned:
    """Gathers the calls without partner of one rank over its steps, and modules of other classes.

    One operator called from one line of one module is listed once, with how many such calls there are and the step and
    place of the first.
    """

    _calls: dict[_Key, UnalignedCalls] = field(default_factory=dict)
    _classes: dict[str, OtherClass] = field(default_factory=dict)
    _regions: int = 0

    @property
    def calls(self) -> tuple[UnalignedCalls, ...]:
        """The unaligned calls, in order of time."""
        return tuple(self._calls.values())

    @property
    def classes(self) -> tuple[OtherClass, ...]:
        """Return module paths with a different class in the candidate, in order of time."""
        return tuple(self._classes.values())

    def class_around(self, path: str) -> OtherClass | None:
        """Return the innermost module at or above a path that has a different class in the candidate."""
        while path and path not in self._classes:
            path = path.rpartition(".")[0]
        return self._classes.get(path)

    def gather(self, step: AlignedStep, effects: Sequence[LoneEffect]) -> None:
        """Take in one more step, and the effects of its calls without partner."""
        known = {(one.is_candidate, one.call.id): one for one in effects}
        for region, pair in regions_of(step, self._regions):
            self._regions = max(self._regions, region + 1)
            left, right = pair.reference, pair.candidate
            if left is not None:
                returns_as = right.site.op if right is not None else ""
                effect = known.get((False, left.id))
                self._add(step, region, left, effect, is_candidate=False, returns_as=returns_as)
            if right is not None:
                returns_as = left.site.op if left is not None else ""
                effect = known.get((True, right.id))
                self._add(step, region, right, effect, is_candidate=True, returns_as=returns_as)
        for item in step.of_kind(CallKind.MODULE):
            site, other = item.reference.site, item.candidate.site
            if are_other_classes(site.op, other.op):
                self._classes.setdefault(site.module, OtherClass(site.module, site.op, other.op))

    def _add(
        self,
        step: AlignedStep,
        region: int,
        call: Call,
        effect: LoneEffect | None,
        *,
        is_candidate: bool,
        returns_as: str,
    ) -> None:
        side = "candidate" if is_candidate else "reference"
        path = step.path_of(call, is_candidate=is_candidate)
        phase = call.site.phase
        idiom = effect.idiom.value if effect is not None and effect.idiom is not None else ""
        beside = effect is not None and effect.effect is Effect.BESIDE
        around = effect is not None and effect.effect is Effect.AROUND
        key = (side, call.recomputed, phase, path, call.site.op, call.source, call.library)
        known = self._calls.get(key)
        if known is not None:
            self._calls[key] = replace(
                known,
                count=known.count + 1,
                idiom=known.idiom or idiom,
                beside=known.beside and beside,
                around=known.around and around,
            )
            return
        self._calls[key] = UnalignedCalls(
            side=side,
            rank=call.rank,
            step=call.step,
            phase=phase,
            module=path,
            op=call.site.op,
            source=call.source,
            library=call.library,
            count=1,
            region=region,
            inside=is_inside_lone(step, call, is_candidate=is_candidate),
            recomputed=call.recomputed,
            returns_as=returns_as,
            idiom=idiom,
            beside=beside,
            around=around,
        )


# --- in words ---------------------------------------------------------------------------------------------------------

_SHOWN = 3


def words_for(
    reference: Sequence[CalledFrom],
    candidate: Sequence[CalledFrom],
    *,
    elsewhere: Collection[str] = (),
) -> str:
    """Return words for a call that one run makes and the other does not, or for each in place of the other's.

    `elsewhere` are operators that the other run calls at another place. Of calls that both make from the same line
    those are told that one run alone makes, or how many each makes.

    >>> words_for([("torch.Tensor.div", "train.py:113")], [])
    'the reference calls torch.Tensor.div at train.py:113; the candidate does not'
    """
    left, right = (
        [one for one in own if one not in other]
        for own, other in ((reference, candidate), (candidate, reference))
    )
    if reference and candidate and not (left or right):
        return _counted_words(reference, candidate)
    if reference and candidate:
        reference, candidate = left, right
    if reference and candidate:
        return f"the reference calls {called_words(reference)}, where the candidate calls {called_words(candidate)}"
    side, other, calls = (
        ("reference", "candidate", reference)
        if reference
        else ("candidate", "reference", candidate)
    )
    there = " at this place" if any(op in elsewhere for op, _ in calls) else ""
    return f"the {side} calls {called_words(calls)}; the {other} does not{there}"


def _counted_words(reference: Sequence[CalledFrom], candidate: Sequence[CalledFrom]) -> str:
    """Words for calls that both runs make from the same lines: how many each, where that differs."""
    called = called_words(reference)
    if len(reference) == len(candidate):
        return f"both call {called}, and these calls could not be paired"
    return f"both call {called}, {len(reference)} times in the reference and {len(candidate)} in the candidate"


def called_words(calls: Sequence[CalledFrom]) -> str:
    """Operators and the lines that call them, the first few of each."""
    operators = list(dict.fromkeys(op for op, _ in calls))
    lines = list(dict.fromkeys(line for _, line in calls if line))
    shown = listed(operators, _SHOWN)
    return f"{shown} at {_spanned(lines)}" if lines else shown


def _spanned(lines: Sequence[str]) -> str:
    """Lines of one file as a span; of several the first of each.

    >>> _spanned(["net.py:20", "net.py:24", "net.py:22"])
    'net.py:20 to 24'
    """
    files: dict[str, list[int]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number) if number.isdigit() else 0)
    spans = [
        f"{file}:{min(numbers)}" + (f" to {max(numbers)}" if len(set(numbers)) > 1 else "")
        for file, numbers in files.items()
    ]
    return ", ".join(spans[:_SHOWN])


def are_other_classes(reference: str, candidate: str) -> bool:
    """Return whether two class names mean different classes, not one that moved to a different module.

    >>> are_other_classes("gpt.Block", "model.Block"), are_other_classes("gpt.Gelu", "gpt.NewGelu")
    (False, True)
    """
    if not (reference and candidate):  # another tool does not tell it
        return False
    own = [name.startswith(_TORCH) for name in (reference, candidate)]
    return reference.rpartition(".")[2] != candidate.rpartition(".")[2] or own[0] != own[1]


_TORCH = "torch."


def unjudged_calls(
    calls: Sequence[UnalignedCalls], findings: Iterable[Finding]
) -> Iterator[NotCompared]:
    """Say which calls without partner may change the training, for a rule that judges no calls."""
    alone = [
        one for one in calls if not (one.beside or one.around or one.recomputed or one.returns_as)
    ]
    if not alone or all(one.metrics.evidence is Evidence.DIGEST for one in findings):
        return
    count, first = sum(one.count for one in alone), alone[0]
    at = f"{first.op} at {first.source}" if first.source else first.op
    yield NotCompared(WhyNot.CALLS_NOT_JUDGED, count=count, at=at, side=first.side)


# Name the calls that one rank alone makes before an origin, where ranks were put together.
#
# Such a call has no place in what the ranks make together: one that scales the gradients of its rank is seen where
# they are added up, as a difference of all ranks.


def with_calls_of_one_rank(origins: Sequence[Origin], *recordings: Recording) -> list[Origin]:
    """Return the origins, the first with the calls that one rank alone makes in its step before it."""
    if not origins:
        return []
    first, *rest = origins
    clauses = [
        Clause(About.LONE_CALL, words) for one in recordings for words in _words_of(first, one)
    ]
    return [replace(first, reason=Reason(*first.reason.clauses, *clauses)), *rest]


def _words_of(origin: Origin, recording: Recording) -> Iterator[str]:
    many = recording.put_together_of
    if many is None:
        return
    from lockstep.unify.one_recording import calls_by_key

    ranks = [rank for rank in many.ranks.values() if origin.step in rank.steps]
    by_rank = [calls_by_key(rank.calls(origin.step)) for rank in ranks]
    for number, rank in enumerate(ranks):
        others = [found for place, found in enumerate(by_rank) if place != number]
        alone = [
            call
            for key, call in by_rank[number].items()
            if others
            and not any(key in found for found in others)
            and _may_act(call, origin, by_rank[number].values())
        ]
        dependence = Dependence(rank.steps, rank.calls)
        acting = [
            (one.site.op, one.library or one.source) for one in alone if not dependence.beside(one)
        ]
        if acting:
            yield f"{rank.name} alone calls {called_words(acting)}"


def _may_act(call: Call, origin: Origin, calls: Iterable[Call]) -> bool:
    """Whether a call of the script itself stands before an origin, as far as its rank makes that too."""
    from lockstep.unify.collective_sums import BETWEEN_RANKS

    if call.kind is not CallKind.OPERATOR or call.site.op.startswith(BETWEEN_RANKS):
        return False
    site = origin.module, origin.op, origin.call
    there = [one.sequence for one in calls if (one.site.module, one.site.op, one.site.call) == site]
    return not there or call.sequence < max(there)


_MOST_CALLS = 500

_BACKWARD = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT})


@dataclass(slots=True)
class Region:
    """Calls without partner of either run, in order of time."""

    reference: list[Call] = field(default_factory=list)
    candidate: list[Call] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reference or self.candidate)

    def __str__(self) -> str:
        return words_for(_called(self.reference), _called(self.candidate))


def _called(calls: Iterable[Call]) -> list[CalledFrom]:
    made = (
        call for call in calls if call.kind is not CallKind.DATA
    )  # which arrives, and calls nothing
    return [(call.site.op, call.library or call.source) for call in made]


class Regions:
    """Finds regions in one aligned step."""

    def __init__(self, step: AlignedStep) -> None:
        self.step = step

    def behind(self, pair: Pair) -> Region:
        """Return the calls between a pair of tensors and the aligned calls before it (of a gradient, around it)."""
        step = self.step
        sides = (
            (pair.reference, _Side(step.reference, step.of_reference, self._owners[0])),
            (pair.candidate, _Side(step.candidate, step.of_candidate, self._owners[1])),
        )
        found = []
        for record, side in sides:
            if (
                record is None
            ):  # a gradient that only one run sends: the tensor itself is there in both
                found.append(side.around_partner(self._partner_of(pair.present), pair.present))
            else:
                found.append(side.around(record))
        return Region(*found)

    def _partner_of(self, record: TensorRecord) -> Call | None:
        """The other run's call that belongs to the one a record was seen at."""
        call = self._owners[0].get(id(record))
        if call is not None:
            item = self.step.of_reference(call)
            return item.candidate if item is not None else None
        call = self._owners[1].get(id(record))
        item = self.step.of_candidate(call) if call is not None else None
        return item.reference if item is not None else None

    def call_of(self, record: TensorRecord) -> Call | None:
        """The call that a record was seen at, in either run."""
        return self._owners[0].get(id(record)) or self._owners[1].get(id(record))

    @cached_property
    def _owners(self) -> tuple[dict[int, Call], dict[int, Call]]:
        reference, candidate = (
            {id(record): call for call in flow.calls.values() for record in call.records}
            for flow in (self.step.reference, self.step.candidate)
        )
        return reference, candidate


@dataclass(frozen=True, slots=True)
class _Side:
    """One run's data flow, which of its calls have a partner, and which call each record belongs to."""

    flow: Flow
    aligned: Callable[[Call], Aligned | None]
    owners: dict[int, Call]

    def around(self, record: TensorRecord) -> list[Call]:
        call = self.owners.get(id(record))
        if call is None:
            return []
        found: dict[int, Call] = {}
        if record.role in _BACKWARD:
            self._around_gradient(call, record, found)
        elif record.role is not Role.OUTPUT or self._passes_on(call):
            # What a call returns was made by that call.
            before = record.sequence + (record.role is Role.OUTPUT)
            self._trace_back(record.content.id, before, found)
        return _in_time(found)

    def around_partner(self, call: Call | None, record: TensorRecord) -> list[Call]:
        """The same around the tensor of a call whose gradient only the other run has."""
        found: dict[int, Call] = {}
        if call is not None and record.role in _BACKWARD:
            self._around_gradient(call, record, found)
        return _in_time(found)

    def _around_gradient(self, call: Call, record: TensorRecord, found: dict[int, Call]) -> None:
        role = Role.OUTPUT if record.role is Role.GRAD_OUTPUT else Role.INPUT
        for tensor in call.with_role(role):
            if tensor.index != record.index:
                continue
            if role is Role.INPUT:
                self._trace_back(tensor.content.id, tensor.sequence, found)
            else:
                self._trace_on(tensor.content.id, found)

    def _passes_on(self, call: Call) -> bool:
        return call.id in self.flow.containers or self._is_lone(call)

    def _is_lone(self, call: Call) -> bool:
        item = self.aligned(call)
        return item is None or not is_aligned(item.calls)

    def _trace_back(self, content: int, before: int, found: dict[int, Call]) -> None:
        waiting = [(content, before)]
        while waiting and len(found) < _MOST_CALLS:
            maker = self.flow.producer(*waiting.pop())
            if maker is None or maker.id in found or not self._is_lone(maker):
                continue
            found[maker.id] = maker
            inputs = maker.with_role(Role.INPUT)
            waiting.extend((one.content.id, one.sequence) for one in inputs)

    def _trace_on(self, content: int, found: dict[int, Call]) -> None:
        waiting = [content]
        while waiting and len(found) < _MOST_CALLS:
            for consumer in self.flow.consumers(waiting.pop()):
                operator = consumer.kind is CallKind.OPERATOR
                if operator and consumer.id not in found and self._is_lone(consumer):
                    found[consumer.id] = consumer
                    waiting.extend(one.content.id for one in consumer.with_role(Role.OUTPUT))


def _in_time(calls: dict[int, Call]) -> list[Call]:
    """The calls in order of time, without what arrives from outside, which calls nothing."""
    made = (call for call in calls.values() if call.kind is not CallKind.DATA)
    return sorted(made, key=lambda call: call.sequence)
