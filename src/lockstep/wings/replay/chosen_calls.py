"""Which recorded calls are run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from lockstep.commands.record_again import command_for_tensors
from lockstep.commands.what_next import made_at
from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Instead, Origin
from lockstep.core.reason import About, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.reading.chosen_calls import (
    ChosenRanks,
    ChosenSteps,
    calls_matching,
    check_choice,
    every_call,
)
from lockstep.replay.calls.held_results import RUNS_AGAIN, results_of
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import Recording


@dataclass(frozen=True, slots=True)
class Chosen:
    """A call that is to be run again.

    run: Which recording it is of: "reference" or "candidate", or "" where there is but one.
    call: The call.
    like: The other run's call, whose plain arguments are used; None for its own.
    crossed: Whether it is what the reference calls, with what the candidate recorded of it.
    """

    run: str
    call: Call
    like: Call | None = None
    crossed: bool = False


@dataclass(frozen=True, slots=True)
class AtOrigin:
    """The origin of two recordings.

    said: The verdict in one sentence.
    instead: What the candidate computes instead, in words, or "".
    calls: The call of each run on its own, then the candidate's results with the reference's call.
    between_steps: The parameter that is another one at the next step though its update is what is run again, or "".
    of_class: The class of sites that compute in another precision, some of which these are, or "".
    members: How many sites the class has.
    of_another_input: Whether what the candidate computes instead is the sound result of another input, such as a stale
        weight.
    because: The reason that comparing gives for the origin, without its numbers, or "".
    """

    said: str
    instead: str
    calls: tuple[Chosen, ...]
    between_steps: str = ""
    of_class: str = ""
    members: int = 0
    of_another_input: bool = False
    because: str = ""


_MOST_MEMBERS = 8
"""Sites of a class that are run again."""


def all_calls(
    recording: Recording, run: str, *, step: ChosenSteps, rank: ChosenRanks
) -> Iterator[Chosen]:
    """Every operator and every update of a recording, rank by rank, in order of time."""
    recording.check_can_run_again()
    check_choice(recording, step=step, rank=rank)
    for call in every_call(recording, step=step, rank=rank):
        if call.kind in RUNS_AGAIN:
            yield Chosen(run, call)


def calls_at(
    recording: Recording, run: str, site: str, *, step: ChosenSteps, rank: ChosenRanks
) -> list[Chosen]:
    """The operators and updates that a pattern, or a printed site, names.

    Raises UsageError if there are none, or none of them has whole tensors.
    """
    recording.check_can_run_again()
    check_choice(recording, step=step, rank=rank)
    found = calls_matching(recording, site, step=step, rank=rank)
    calls = [call for call in found if call.kind in RUNS_AGAIN]
    if not calls:
        kinds = ", ".join(sorted({call.kind.value for call in found}))
        raise UsageError(
            f"{recording.path}: {site!r} names no operator and no update (but {kinds}); record with"
            " --level api, or name one that lockstep show lists"
        )
    check_whole(recording, calls)
    return [Chosen(run, call) for call in calls]


def check_whole(recording: Recording, calls: list[Call]) -> None:
    """See that some of these calls have whole tensors.

    Raises UsageError if none has; the message is the command that records them.
    """
    if calls and not any(_is_whole(record) for call in calls for record in call.records):
        more = f" and of {len(calls) - 1} more calls" if len(calls) > 1 else ""
        raise UsageError(
            f"{recording.path}: no tensor of {calls[0].site}{more} was saved whole; record it with",
            command=command_for_tensors(recording, calls),
        )


def at_origin(reference: Recording, candidate: Recording, *, memory_bytes: int) -> AtOrigin:
    """The calls of the origin that comparing names, with the verdict; of a class, those of its first members.

    Raises UsageError if the two agree, or the origin is no single call.
    """
    for one in (reference, candidate):
        one.check_can_run_again()
    comparison = compare_recordings(reference, candidate, memory_bytes=memory_bytes)
    said = headline(comparison)
    instead, parameter, of_class, members = "", "", "", list[tuple[Call, Call]]()
    of_another_input, because = False, ""
    if comparison.origins:
        origin = comparison.origins[0]
        because = str(Reason(*origin.reason.without(*_NUMBERS)))
        if origin.explanation is not None:
            instead = origin.explanation.words
            of_another_input = origin.explanation.kind is Instead.INPUT
        left, right = made_at(origin, reference, candidate)
        if left is not None and right is None and origin.finding.pair.candidate is not None:
            right = _partner(comparison, left, candidate)
        if left is None and right is None:
            left, right, parameter = _updates_before(origin, reference, candidate)
    elif comparison.uniform:
        members = list(islice(_members(comparison, reference, candidate), _MOST_MEMBERS))
        left, right = members[0] if members else (None, None)
        of_class = comparison.uniform[0].name
    else:
        raise UsageError(
            f"{said}; no origin is named; give --only SITE, or --whole to run every operator again"
        )
    if left is None and right is None:
        raise UsageError(
            f"{said}; its origin is neither an operator nor an update, so there is nothing to run again"
        )
    for recording, call in ((reference, left), (candidate, right)):
        check_whole(recording, [] if call is None else [call])
    own = [
        Chosen(run, call)
        for run, call in (("reference", left), ("candidate", right))
        if call is not None
    ]
    crossed = list(_crossed(comparison, left, right))
    if of_class and not crossed:
        own, crossed = own[:1], [Chosen("candidate", one, crossed=True) for _, one in members]
    count = len(_members_of(comparison)) if of_class else 0
    calls = (*own, *crossed)
    return AtOrigin(said, instead, calls, parameter, of_class, count, of_another_input, because)


_NUMBERS = (About.ENTERED, About.LEFT)
"""What a reason says of the numbers at an origin, which the re-runs say anew."""


def _partner(comparison: Comparison, left: Call, candidate: Recording) -> Call | None:
    """The candidate's call of the same operator whose results are held against those of the reference's."""
    results = {(record.content.id, record.role, record.sequence) for record in results_of(left)}
    for finding in comparison.findings:
        one, other = finding.pair.reference, finding.pair.candidate
        if one is None or other is None or (one.rank, one.step) != (left.rank, left.step):
            continue
        if (one.content.id, one.role, one.sequence) in results and other.rank in candidate.ranks:
            for call in candidate.ranks[other.rank].calls(other.step):
                if (
                    call.kind is left.kind
                    and call.site.op == left.site.op
                    and other in call.records
                ):
                    return call
    return None


def _updates_before(
    origin: Origin, reference: Recording, candidate: Recording
) -> tuple[Call | None, Call | None, str]:
    """The updates behind which a parameter became another one that only the next step shows."""
    pair = origin.finding.pair
    if origin.phase is not Phase.OPTIMIZER:
        return None, None, ""
    left, right = (
        None if record is None else _update_before(run, record)
        for run, record in ((reference, pair.reference), (candidate, pair.candidate))
    )
    return left, right, pair.present.name


def _update_before(run: Recording, record: TensorRecord) -> Call | None:
    rank = run.ranks.get(record.rank)
    if rank is None or record.step - 1 not in rank.steps:
        return None
    updates = [
        call
        for call in rank.calls(record.step - 1)
        if call.kind is CallKind.OPTIMIZER
        and any(own.name == record.name for own in call.with_role(Role.PARAM_AFTER))
    ]
    return updates[-1] if updates else None


def _members(
    comparison: Comparison, reference: Recording, candidate: Recording
) -> Iterator[tuple[Call, Call]]:
    """The members of a class of sites that both runs have, in order of time."""
    for site in _members_of(comparison):
        left, right = _at_site(reference, site), _at_site(candidate, site)
        if left is not None and right is not None:
            yield left, right


def _members_of(comparison: Comparison) -> list[Site]:
    """The sites of a class, forward and backward of one call once."""
    sites = comparison.uniform[0].members
    return list({(site.module, site.op, site.call): site for site in reversed(sites)}.values())[
        ::-1
    ]


def _at_site(run: Recording, site: Site) -> Call | None:
    place = site.module, site.op, site.call
    return next(
        (
            call
            for call in every_call(run)
            if call.kind in RUNS_AGAIN and (call.site.module, call.site.op, call.site.call) == place
        ),
        None,
    )


def _crossed(comparison: Comparison, left: Call | None, right: Call | None) -> Iterator[Chosen]:
    """What the reference calls, with the candidate's results; nothing where the two call the same."""
    if left is None:
        return
    if right is not None and left.site.op == right.site.op:
        if left.arguments == right.arguments:
            return
        if left.kind is CallKind.OPTIMIZER:
            yield Chosen("candidate", replace(right, arguments=left.arguments), crossed=True)
        else:
            yield Chosen("candidate", right, like=left, crossed=True)
        return
    own = _as_updated(left, right) if left.kind is CallKind.OPTIMIZER else None
    results = _paired_results(comparison, left) if own is None else own
    records = []
    for number, record in enumerate(left.records):
        if record not in results_of(left):
            records.append(record)
        elif (other := results.get((record.content.id, record.role, record.name))) is not None:
            # Contents are numbered within a recording: one of the other run is none of this one's.
            records.append(replace(record, content=replace(other.content, id=-1 - number)))
    if any(record.content.id < 0 for record in records):
        yield Chosen("candidate", replace(left, records=tuple(records)), crossed=True)


_Key = tuple[int, Role, str]


def _paired_results(comparison: Comparison, left: Call) -> dict[_Key, TensorRecord]:
    """The candidate's whole tensors that were held against results of a call of the reference.

    Such a pair may stand where the tensor is used: it has another role there, and the numbers are the same.
    """
    held, used = dict[tuple[int, Role], TensorRecord](), dict[int, TensorRecord]()
    for finding in comparison.findings:
        one, other = finding.pair.reference, finding.pair.candidate
        if one is None or other is None or (one.rank, one.step) != (left.rank, left.step):
            continue
        if one.shape == other.shape and _is_whole(other):
            held[one.content.id, one.role] = other
            used.setdefault(one.content.id, other)
    found = {
        (record.content.id, record.role, record.name): held.get(
            (record.content.id, record.role), used.get(record.content.id)
        )
        for record in results_of(left)
    }
    return {key: other for key, other in found.items() if other is not None}


def _as_updated(left: Call, right: Call | None) -> dict[_Key, TensorRecord] | None:
    """The results of the candidate's update, by the reference's."""
    if right is None or right.kind is not CallKind.OPTIMIZER:
        return None
    others = {(record.role, record.name): record for record in results_of(right)}
    return {
        (record.content.id, record.role, record.name): others[record.role, record.name]
        for record in results_of(left)
        if (record.role, record.name) in others
    }


def _is_whole(record: TensorRecord) -> bool:
    return record.content.loader is not None
