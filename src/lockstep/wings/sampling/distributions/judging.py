"""Compare the probabilities of two sides, position by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.errors import UsageError
from lockstep.core.exit_codes import ExitCode, code_of
from lockstep.wings.sampling.distributions.explanations import Explanation, explanation_of
from lockstep.wings.sampling.distributions.positions import Position, Rounding, shared
from lockstep.wings.sampling.distributions.sequences import Told


@dataclass(frozen=True, slots=True)
class OtherToken:
    """The first token of a sequence that is not the same on both sides."""

    sequence: str
    place: int
    reference: int
    candidate: int


@dataclass(frozen=True, slots=True)
class Judged:
    """All positions of two sides.

    Parameters
    ----------
    positions
        Those that both have, after the same tokens.
    beyond
        Those that are further apart than rounding allows.
    rounding
        What that allows.
    other_tokens
        Where tokens part; what comes after that in a sequence is not compared.
    explanation
        The rule that explains all differences.
    coarser
        A dtype of fewer digits, whose rounding would explain them.
    alone
        Sequences, or positions of one, that only one side has, or that share no score.
    """

    positions: tuple[Position, ...]
    beyond: tuple[Position, ...]
    rounding: Rounding
    other_tokens: tuple[OtherToken, ...]
    explanation: Explanation | None
    coarser: str
    alone: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """As `compare`."""
        differs = bool(self.beyond or self.other_tokens)
        return code_of(differs=differs, looked=bool(self.positions) and not self.alone)


def judge(
    reference: Sequence[Told], candidate: Sequence[Told], dtype: str = "", layers: int = 0
) -> Judged:
    """Compare two sides; `dtype` is that of the scores, where they do not tell it.

    Raises
    ------
    UsageError
        If the dtype is none.
    """
    rounding = Rounding(_coarsest(dtype, [*reference, *candidate]), layers)
    pairs, alone = _pairs(reference, candidate)
    positions: list[Position] = []
    parted: list[OtherToken] = []
    for one, other in pairs:
        found, part, lost = _positions(one, other)
        positions += found
        parted += part
        alone += lost
    beyond = tuple(one for one in positions if one.apart > rounding.allowed(one))
    explanation = explanation_of(positions, rounding) if beyond else None
    coarser = _coarser(positions, rounding) if beyond and explanation is None else ""
    return Judged(
        tuple(positions), beyond, rounding, tuple(parted), explanation, coarser, tuple(alone)
    )


def _coarsest(dtype: str, told: Sequence[Told]) -> str:
    """The dtype of fewest digits in which one side computed its scores."""
    known = {dtype} if dtype else {one.dtype for one in told if one.dtype}
    for one in known:
        if not is_floating(one):
            raise UsageError(f"{one!r} is no floating-point dtype; give one such as bfloat16")
    return max(known or {"float32"}, key=unit_roundoff)


def _pairs(
    reference: Sequence[Told], candidate: Sequence[Told]
) -> tuple[list[tuple[Told, Told]], list[str]]:
    known = {one.name: one for one in candidate}
    pairs = [(one, known[one.name]) for one in reference if one.name in known]
    ours = {one.name for one in reference}
    missing = "sequence {} is missing in the {}"
    alone = [missing.format(one.name, "candidate") for one in reference if one.name not in known]
    alone += [missing.format(one.name, "reference") for one in candidate if one.name not in ours]
    return pairs, alone


def _positions(one: Told, other: Told) -> tuple[list[Position], list[OtherToken], list[str]]:
    """Positions after the same tokens, the first token that differs, and what could not be compared."""
    length = min(len(one.tokens), len(other.tokens))
    places = [at for at in range(length) if one.tokens[at] != other.tokens[at]]
    end = places[0] + 1 if places else length
    parted = [OtherToken(one.name, at, one.tokens[at], other.tokens[at]) for at in places[:1]]
    found = [shared(one.name, at, one.scores[at], other.scores[at]) for at in range(end)]
    lost = [
        f"position {at} of sequence {one.name} has no score in common"
        for at, it in enumerate(found)
        if it is None
        and at not in places
        and (one.scores[at].values.size or other.scores[at].values.size)
    ]
    if not places and len(one.tokens) != len(other.tokens):
        counts = f"{len(other.tokens)} tokens, in the reference {len(one.tokens)}"
        lost.append(f"sequence {one.name} has {counts}")
    return [it for it in found if it is not None], parted, lost


_COARSER = ("float16", "bfloat16")


def _coarser(positions: Sequence[Position], rounding: Rounding) -> str:
    """The dtype to which one side may have rounded its scores: all are within its rounding, and beyond their own."""
    if not all(one.apart > rounding.allowed(one) for one in positions):
        return ""
    for dtype in _coarser_than(rounding.dtype):
        wider = Rounding(dtype)
        if all(one.apart <= wider.allowed(one) for one in positions):
            return dtype
    return ""


def _coarser_than(dtype: str) -> Iterator[str]:
    yield from (one for one in _COARSER if unit_roundoff(one) > unit_roundoff(dtype))


__all__ = ["Judged", "OtherToken", "judge"]
