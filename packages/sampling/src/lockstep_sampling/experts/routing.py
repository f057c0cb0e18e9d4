"""Tokens that two runs send to other experts, layer by layer, and whether rounding may have decided so.

A router takes the largest of its scores. Rounding moves the scores a little, so a token whose scores are as close may
go elsewhere. What follows that token is another computation, so that nothing behind it tells rounding from a fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lockstep.compare import side_by_side
from lockstep.errors import ExitCode, code_of
from lockstep.recordings import (
    Call,
    CallKind,
    Phase,
    RankRecording,
    Recording,
    Role,
    TensorRecord,
    is_floating,
)
from lockstep_sampling.distributions.positions import Doubles, Position, Rounding

_CHOICE = "topk"


@dataclass(frozen=True, slots=True)
class Router:
    """One choice of experts in both runs.

    step, module: Where it is.
    tokens: How many were sent.
    other: How many go to other experts.
    beyond: How many of these rounding cannot have sent there.
    rank: The rank that chose; "" where there is one.
    number: Its number among the routers that this rank calls in the step.
    """

    step: int
    module: str
    tokens: int
    other: int
    beyond: int
    rank: str = ""
    number: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the computation: ranks choose beside each other, and may exchange tokens behind that."""
        return self.step, self.number


@dataclass(frozen=True, slots=True)
class Routing:
    """All routers of both runs, in order.

    routers: Those that were compared.
    alone: What could not be compared.
    """

    routers: tuple[Router, ...]
    alone: tuple[str, ...]

    @property
    def first(self) -> Router | None:
        """The first router that sends a token elsewhere, of several ranks one that does so beyond rounding.

        What differs behind it may follow from that, on any rank.
        """
        different = [one for one in self.routers if one.other]
        return min(different, key=lambda one: (one.place, not one.beyond), default=None)

    @property
    def behind(self) -> list[Router]:
        """Routers behind the first, with tokens beyond rounding, of which nothing can be said."""
        first = self.first
        if first is None or first.beyond:
            return []
        return [one for one in self.routers if one.beyond and one.place > first.place]

    @property
    def exit_code(self) -> ExitCode:
        """1 where the first router that differs does so beyond rounding, 2 where not all could be judged."""
        differs = self.first is not None and self.first.beyond > 0
        return code_of(
            differs=differs, looked=bool(self.routers) and not self.alone and not self.behind
        )


def routing_of(reference: Recording, candidate: Recording) -> Routing:
    """Compare the choices of experts of two recordings. Raises RecordingError if a file is damaged."""
    one, other = side_by_side(reference, candidate)
    routers: list[Router] = []
    alone = [
        f"{rank}, which one recording lacks"
        for rank in sorted(one.ranks.keys() ^ other.ranks.keys())
    ]
    for rank in sorted(one.ranks.keys() & other.ranks.keys()):
        ours, theirs = one.ranks[rank], other.ranks[rank]
        name = rank if len(one.ranks) > 1 else ""
        for step in sorted(set(ours.steps) | set(theirs.steps)):
            both = [dict(_choices(_operators(side, step))) for side in (ours, theirs)]
            found, lost = _of_step(name, step, both[0], both[1])
            routers += found
            alone += lost
    return Routing(tuple(sorted(routers, key=lambda it: (it.place, it.rank))), tuple(alone))


def _operators(side: RankRecording, step: int) -> list[Call]:
    return side.calls(step, kind=CallKind.OPERATOR) if step in side.steps else []


_Choices = dict[tuple[str, int], "_Choice"]


def _of_step(
    rank: str, step: int, ours: _Choices, theirs: _Choices
) -> tuple[list[Router], list[str]]:
    """The routers of both runs in a step of a rank, and what could not be compared."""
    routers, alone = [], []
    for number, key in enumerate(dict.fromkeys([*ours, *theirs])):
        where = f"{key[0]} in step {step}" + (f" of {rank}" if rank else "")
        if key not in ours or key not in theirs:
            lacking = "candidate" if key in ours else "reference"
            alone.append(f"{where} is missing in the {lacking}")
            continue
        router = _router(step, key[0], ours[key], theirs[key])
        if router is None:
            alone.append(f"{where}: scores were not saved whole, or have other shapes")
        else:
            routers.append(replace(router, rank=rank, number=number))
    return routers, alone


@dataclass(frozen=True, slots=True)
class _Choice:
    """A call that takes the largest of scores, and how many operators ran before it."""

    scores: TensorRecord
    chosen: TensorRecord
    before: int


def _choices(calls: Sequence[Call]) -> Iterator[tuple[tuple[str, int], _Choice]]:
    forward = [call for call in calls if call.site.phase is Phase.FORWARD]
    for number, call in enumerate(forward):
        if call.site.op.rpartition(".")[2] != _CHOICE:
            continue
        scores = [one for one in call.with_role(Role.INPUT) if is_floating(one.dtype)]
        chosen = [one for one in call.with_role(Role.OUTPUT) if one.dtype == "int64"]
        if scores and chosen and scores[0].shape[:-1] == chosen[0].shape[:-1]:
            key = call.site.module, call.site.call
            yield key, _Choice(scores[0], chosen[0], number)


def _router(step: int, module: str, one: _Choice, other: _Choice) -> Router | None:
    records = (one.scores, one.chosen, other.scores, other.chosen)
    if one.scores.shape != other.scores.shape or one.chosen.shape != other.chosen.shape:
        return None
    if any(record.content.loader is None for record in records):
        return None
    ours, theirs = (_scores(side.scores) for side in (one, other))
    chosen, instead = (_rows(side.chosen) for side in (one, other))
    rounding = Rounding(one.scores.dtype, max(one.before, other.before))
    different = [row for row in range(len(ours)) if set(chosen[row]) != set(instead[row])]
    beyond = sum(
        not may_round(ours[row], theirs[row], chosen[row], instead[row], rounding)
        for row in different
    )
    return Router(step, module, len(ours), len(different), beyond)


def _rows(record: TensorRecord) -> npt.NDArray[np.int64]:
    return record.load().reshape(-1, record.shape[-1]).astype(np.int64)


def _scores(record: TensorRecord) -> Doubles:
    """The scores of each token; of probabilities their logarithms, which are scores but for a number."""
    rows: Doubles = record.load().reshape(-1, record.shape[-1]).astype(np.float64)
    are_probabilities = (rows >= 0).all() and np.allclose(rows.sum(-1), 1, atol=0.01)
    return np.log(np.maximum(rows, np.finfo(np.float32).tiny)) if are_probabilities else rows


def may_round(
    ours: Doubles,
    theirs: Doubles,
    chosen: npt.NDArray[np.int64],
    instead: npt.NDArray[np.int64],
    rounding: Rounding,
) -> bool:
    """Whether the scores of experts that were exchanged are as close as rounding may move them."""
    left, taken = np.setdiff1d(chosen, instead), np.setdiff1d(instead, chosen)
    if left.size != taken.size:  # one expert twice
        return False
    margin = float(ours[left].max() - ours[taken].min())
    ids = np.arange(ours.size)
    return margin <= rounding.allowed(Position("", 0, ours, theirs, ids, is_whole=True))


__all__ = ["Router", "Routing", "may_round", "routing_of"]
