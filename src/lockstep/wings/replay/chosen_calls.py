"""Which recorded calls are run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Origin
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind
from lockstep.locate.explained_origins import made_by
from lockstep.reading import calls_matching, check_choice
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import Recording
from lockstep.store.record_command import command_for_tensors

RUNS_AGAIN = (CallKind.OPERATOR, CallKind.OPTIMIZER)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A call that is to be run again.

    Parameters
    ----------
    run
        Which recording it is of: "reference" or "candidate", or "" where there is but one.
    call
        The call.
    like
        The other run's call, whose plain arguments are used; None for its own.
    """

    run: str
    call: Call
    like: Call | None = None


@dataclass(frozen=True, slots=True)
class AtOrigin:
    """The origin of two recordings.

    Parameters
    ----------
    said
        The verdict in one sentence.
    instead
        What the candidate computes instead, in words, or "".
    calls
        The call of each run.
    """

    said: str
    instead: str
    calls: tuple[Chosen, ...]


def all_calls(
    recording: Recording, run: str, *, step: int | None, rank: str | None
) -> Iterator[Chosen]:
    """Every operator and every update of a recording, rank by rank, in order of time."""
    check_choice(recording, step=step, rank=rank)
    for name, item in recording.ranks.items():
        for number in item.steps:
            if rank in (None, name) and step in (None, number):
                yield from (
                    Chosen(run, call) for call in item.calls(number) if call.kind in RUNS_AGAIN
                )


def calls_at(
    recording: Recording, run: str, site: str, *, step: int | None, rank: str | None
) -> list[Chosen]:
    """The operators and updates that a pattern, or a printed site, names.

    Raises
    ------
    UsageError
        If there are none, or none of them has whole tensors.
    """
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

    Raises
    ------
    UsageError
        If none has; the message is the command that records them.
    """
    if calls and not any(_is_whole(record) for call in calls for record in call.records):
        more = f" and of {len(calls) - 1} more calls" if len(calls) > 1 else ""
        raise UsageError(
            f"{recording.path}: no tensor of {calls[0].site}{more} was saved whole; record it with",
            command=command_for_tensors(recording, calls),
        )


def at_origin(reference: Recording, candidate: Recording, *, memory_bytes: int) -> AtOrigin:
    """The two calls of the origin that comparing names, with the verdict.

    The reference's call runs as it did, the candidate's with the reference's arguments.

    Raises
    ------
    UsageError
        If the two agree, or the origin is no single call.
    """
    comparison = compare_recordings(reference, candidate, memory_bytes=memory_bytes)
    said = headline(comparison)
    origin = _origin(comparison, said)
    instead = "" if origin.explanation is None else origin.explanation.words
    pair = origin.finding.pair
    left, right = (
        None if record is None else made_by(run, record, origin.op)[1]
        for run, record in ((reference, pair.reference), (candidate, pair.candidate))
    )
    calls = [call for call in (left, right) if call is not None and call.kind in RUNS_AGAIN]
    if not calls:
        raise UsageError(
            f"{said}\nits origin is no operator and no update, so there is nothing to run again"
        )
    for recording, call in ((reference, left), (candidate, right)):
        check_whole(recording, [call] if call in calls and call is not None else [])
    chosen = [Chosen("reference", left)] if left in calls and left is not None else []
    if right in calls and right is not None:
        chosen.append(Chosen("candidate", right, like=_like(left, right)))
    return AtOrigin(said, instead, tuple(chosen))


def _origin(comparison: Comparison, said: str) -> Origin:
    if not comparison.origins:
        raise UsageError(
            f"{said}\nno origin is named; give --site SITE, or --all to run every operator again"
        )
    return comparison.origins[0]


def _like(left: Call | None, right: Call) -> Call | None:
    """The reference's call, where it is of the same operator with other arguments."""
    same = left is not None and left.site.op == right.site.op and left.kind is CallKind.OPERATOR
    return left if same and left is not None and left.arguments != right.arguments else None


def _is_whole(record: TensorRecord) -> bool:
    return record.content.loader is not None
