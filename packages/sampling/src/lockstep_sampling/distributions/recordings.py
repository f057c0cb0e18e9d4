"""The scores of recorded models at the tokens that both runs were given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.compare import side_by_side
from lockstep.errors import UsageError
from lockstep.recordings import (
    Array,
    CallKind,
    Phase,
    RankRecording,
    Recording,
    Role,
    TensorRecord,
    is_floating,
    top_of,
)
from lockstep_sampling.distributions.positions import Scores
from lockstep_sampling.distributions.sequences import Told


def recorded_sequences(reference: Recording, candidate: Recording) -> tuple[list[Told], list[Told]]:
    """Return each step of each rank of both as a sequence: the scores of all tokens that both runs have, in one order.

    Ranks that hold rows of one batch become one where the other run has one rank; ranks beside as many ranks have rows
    of their own, and are compared one by one.

    Raises UsageError if a model gave no scores of shape (..., vocabulary), or they were not saved whole.
    """
    sides = side_by_side(reference, candidate)
    left, right = (_scores_by_place(side) for side in sides)
    for place in left.keys() & right.keys():
        _check_shapes(place, left[place], right[place], candidate)
    return _sequences(sides[0], left), _sequences(sides[1], right)


_Place = tuple[str, int]
"""A rank, "" where there is one, and a step."""


def _named_ranks(side: Recording) -> dict[str, RankRecording]:
    """The ranks by name; one alone has none, however the other run calls its own."""
    if len(side.ranks) == 1:
        return {"": next(iter(side.ranks.values()))}
    return dict(side.ranks)


def _sequences(side: Recording, scores: Mapping[_Place, TensorRecord]) -> list[Told]:
    ranks = _named_ranks(side)
    return [
        _sequence((rank, step), one, _operators(ranks[rank], step))
        for (rank, step), one in scores.items()
    ]


def _operators(rank: RankRecording, step: int) -> int:
    """How many the forward ran: none carries errors on through more than all of them."""
    calls = rank.calls(step, kind=CallKind.OPERATOR)
    return sum(call.site.phase is Phase.FORWARD for call in calls)


def _said(place: _Place) -> str:
    return f"{place[0]} step {place[1]}".lstrip()


def _scores_by_place(side: Recording) -> dict[_Place, TensorRecord]:
    found: dict[_Place, TensorRecord] = {}
    for name, rank in _named_ranks(side).items():
        for step in rank.steps:
            top = top_of(rank.calls(step))
            scores = None if top is None else _scores(top.with_role(Role.OUTPUT))
            if scores is None:
                raise UsageError(
                    f"{side.path}: {_said((name, step))} has no call of a model that gives scores; record it with"
                    " --save tensors"
                )
            found[name, step] = scores
    return found


def _scores(outputs: Sequence[TensorRecord]) -> TensorRecord | None:
    """The output with the longest last axis, which is the vocabulary."""
    fitting = [one for one in outputs if is_floating(one.dtype) and len(one.shape) > 1]
    return max(fitting, key=lambda one: one.shape[-1], default=None)


def _check_shapes(place: _Place, one: TensorRecord, other: TensorRecord, side: Recording) -> None:
    if one.shape != other.shape:
        raise UsageError(
            f"{side.path}: {_said(place)}: scores of shape {list(other.shape)}, in the reference {list(one.shape)};"
            " say which tokens they are with lockstep.tokens"
        )


def _sequence(place: _Place, record: TensorRecord, operators: int) -> Told:
    if record.content.loader is None:
        raise UsageError(
            f"{_said(place)}: the scores were not saved whole; record with --save tensors"
        )
    rows: Array = record.load().reshape(-1, record.shape[-1]).astype("float64")
    scores = tuple(Scores(row) for row in rows)
    return Told(_said(place), (0,) * len(scores), scores, record.dtype, operators)


__all__ = ["recorded_sequences"]
