"""The scores of recorded models at the tokens that both runs were given."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.dtypes import is_floating
from lockstep.core.errors import UsageError
from lockstep.core.records import Array, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.reader import Recording
from lockstep.unify.model_calls import top_of
from lockstep.unify.side_by_side import side_by_side
from lockstep.wings.sampling.distributions.positions import Scores
from lockstep.wings.sampling.distributions.sequences import Told


def recorded_sequences(reference: Recording, candidate: Recording) -> tuple[list[Told], list[Told]]:
    """Return each step of both as a sequence: the scores of all tokens that both runs have, in one order.

    Raises
    ------
    UsageError
        If a model gave no scores of shape (..., vocabulary), or they were not saved whole.
    """
    sides = side_by_side(reference, candidate)
    for side in sides:
        if len(side.ranks) > 1:
            raise UsageError(
                f"{side.path}: holds {len(side.ranks)} ranks; give a recording of one rank"
            )
    left, right = (_scores_by_step(side) for side in sides)
    for step in left.keys() & right.keys():
        _check_shapes(step, left[step], right[step], candidate)
    found = []
    for side, scores in zip(sides, (left, right), strict=True):
        found.append([_sequence(step, one, _operators(side, step)) for step, one in scores.items()])
    return found[0], found[1]


def _operators(side: Recording, step: int) -> int:
    """How many the forward ran: none carries errors on through more than all of them."""
    calls = next(iter(side.ranks.values())).calls(step, kind=CallKind.OPERATOR)
    return sum(call.site.phase is Phase.FORWARD for call in calls)


def _scores_by_step(side: Recording) -> dict[int, TensorRecord]:
    rank = next(iter(side.ranks.values()))
    found: dict[int, TensorRecord] = {}
    for step in rank.steps:
        top = top_of(rank.calls(step))
        scores = None if top is None else _scores(top.with_role(Role.OUTPUT))
        if scores is None:
            raise UsageError(
                f"{side.path}: step {step} has no call of a model that gives scores; record it with --save tensors"
            )
        found[step] = scores
    return found


def _scores(outputs: Sequence[TensorRecord]) -> TensorRecord | None:
    """The output with the longest last axis, which is the vocabulary."""
    fitting = [one for one in outputs if is_floating(one.dtype) and len(one.shape) > 1]
    return max(fitting, key=lambda one: one.shape[-1], default=None)


def _check_shapes(step: int, one: TensorRecord, other: TensorRecord, side: Recording) -> None:
    if one.shape != other.shape:
        raise UsageError(
            f"{side.path}: step {step}: scores of shape {list(other.shape)}, in the reference {list(one.shape)};"
            " say which tokens they are with lockstep.tokens"
        )


def _sequence(step: int, record: TensorRecord, operators: int) -> Told:
    if record.content.loader is None:
        raise UsageError(
            f"step {step}: the scores were not saved whole; record with --save tensors"
        )
    rows: Array = record.load().reshape(-1, record.shape[-1]).astype("float64")
    scores = tuple(Scores(row) for row in rows)
    return Told(f"step {step}", (0,) * len(scores), scores, record.dtype, operators)


__all__ = ["recorded_sequences"]
