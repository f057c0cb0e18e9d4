"""Several ranks as one program: what passes between them is a call that all of them take part in. Knows no torch.

Each rank's records are renamed, so that `rank1/head.weight` is another parameter than `rank0/head.weight`, and equal
contents of two ranks have one number. The ranks' events are then put in one order in which every exchange comes after
what each member gives to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.core.laws import Breach, Quantity, StepAnswer
from lockstep.core.records import HOOK_OF, Call, Content, TensorRecord
from lockstep.core.site import Role

CALLS_OF_A_RANK = 1 << 40
"""Numbers of calls of the second rank begin here, those of the third at twice as much."""

UNRECORDED = 1 << 39
"""Within those of a rank, numbers from here on are of calls that stand for what was not recorded."""

_BETWEEN = "/"
_OF_PARAMETERS = frozenset(
    {
        Role.PARAM,
        Role.PARAM_GRAD,
        Role.PARAM_AFTER,
        Role.STATE,
        Role.STATE_AFTER,
        Role.BUFFER,
    }
)


@dataclass
class SharedContents:
    """One number for equal contents of all ranks of a run, the same in all its steps."""

    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    def of(self, rank: str, content: Content) -> Content:
        """The content under its number in the run."""
        told = content.digest is not None
        key = (content.digest, content.dtype, content.shape) if told else (rank, content.id)
        return replace(content, id=self._numbers.setdefault(key, len(self._numbers)))


def calls_of_ranks(
    ranks: Mapping[str, Sequence[Call]], named: Mapping[str, str], contents: SharedContents
) -> list[Call]:
    """The calls of all ranks, with numbers and names of parameters that tell the ranks apart.

    ranks: All calls of one step, by rank.
    named: How each rank is called in both runs.
    """
    return [
        _renamed(call, place * CALLS_OF_A_RANK, named[rank], contents)
        for place, (rank, calls) in enumerate(ranks.items())
        for call in calls
    ]


def _renamed(call: Call, first: int, rank: str, contents: SharedContents) -> Call:
    known: dict[int, Content] = {}

    def renumbered(record: TensorRecord) -> TensorRecord:
        content = known.get(record.content.id)
        if content is None:
            content = known[record.content.id] = contents.of(record.rank, record.content)
        own = bool(record.argument) or record.role in _OF_PARAMETERS
        name = with_rank(record.name, rank) if own else record.name
        return replace(record, rank=rank, content=content, name=name)

    records = tuple(map(renumbered, call.records))
    body = tuple(_renamed(one, first, rank, contents) for one in call.body)
    arguments = call.arguments
    if HOOK_OF in arguments:
        arguments = {**arguments, HOOK_OF: with_rank(arguments[HOOK_OF], rank)}
    return replace(
        call, id=first + call.id, rank=rank, records=records, body=body, arguments=arguments
    )


def with_rank(name: str, rank: str) -> str:
    """The name of a parameter among those of all ranks."""
    return rank + _BETWEEN + name


def rank_and_name(name: str) -> tuple[str, str]:
    """The rank that a parameter is of, and what it is called there; "" for what is of no rank."""
    rank, between, plain = name.partition(_BETWEEN)
    return (rank, plain) if between else ("", name)


def answer_of_rank(answer: StepAnswer, rank: str, ranks: Sequence[str]) -> StepAnswer:
    """What an answer about all ranks says of one, in its own numbers and names.

    A breach is of the rank in which its place lies; one that no call shows, of that which its name is of. What was not
    judged holds for all.
    """
    first = ranks.index(rank) * CALLS_OF_A_RANK
    found = (_of_rank(one, rank, first) for one in answer.breaches)
    breaches = {(one.law, one.quantity, one.run, one.name): one for one in found if one is not None}
    shared = tuple(
        tuple((call - first, index) for call, index in places if _is_recorded(call, first))
        for places in answer.shared
    )
    return StepAnswer(tuple(breaches.values()), answer.not_judged, (shared[0], shared[1]))


def _is_within(call: int, first: int) -> bool:
    """Whether a call is a rank's own, be it recorded or not."""
    return first <= call < first + CALLS_OF_A_RANK


def _is_recorded(call: int, first: int) -> bool:
    return first <= call < first + UNRECORDED


def _of_rank(breach: Breach, rank: str, first: int) -> Breach | None:
    """A breach in a rank's own numbers; None where it is another's."""
    places = [at[0] for at in (breach.candidate_at, breach.reference_at) if at]
    places += [*breach.candidate_calls, *breach.reference_calls]
    names = [rank_and_name(one) for one in breach.name.split(", ")]
    owner = _is_within(places[0], first) if places else names[0][0] in ("", rank)
    if not owner:
        return None
    plain = breach.quantity in (Quantity.LOSS, Quantity.RESULT, Quantity.DRAWN, Quantity.ARRIVED)
    return replace(
        breach,
        name=breach.name if plain else ", ".join(dict.fromkeys(name for _, name in names)),
        reference_at=_own_place(breach.reference_at, first),
        candidate_at=_own_place(breach.candidate_at, first),
        reference_calls=_own_calls(breach.reference_calls, first),
        candidate_calls=_own_calls(breach.candidate_calls, first),
    )


def _own_place(at: tuple[int, ...], first: int) -> tuple[int, ...]:
    return (at[0] - first, at[1]) if at and _is_recorded(at[0], first) else ()


def _own_calls(calls: Collection[int], first: int) -> tuple[int, ...]:
    return tuple(one - first for one in calls if _is_recorded(one, first))


def ranks_of(calls: Sequence[Call]) -> dict[str, list[Call]]:
    """The calls of each rank, in order of the ranks."""
    found: dict[str, list[Call]] = {}
    for call in sorted(calls, key=lambda one: (one.id // CALLS_OF_A_RANK, one.sequence)):
        found.setdefault(call.rank, []).append(call)
    return found
