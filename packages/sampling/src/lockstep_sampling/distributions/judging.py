"""Compare the probabilities of two sides, position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import ExitCode, UsageError, code_of
from lockstep.recordings import is_floating, unit_roundoff
from lockstep_sampling.distributions.explanations import Explanation, explanation_of
from lockstep_sampling.distributions.lattice import lattice_of
from lockstep_sampling.distributions.patterns import Pattern, pattern_of
from lockstep_sampling.distributions.positions import (
    OPERATORS_OF_LAYER,
    Position,
    Rounding,
    shared,
)
from lockstep_sampling.distributions.sequences import Told


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

    positions: Those that both have, after the same tokens.
    beyond: Those that are further apart than rounding allows.
    rounding: What that allows.
    other_tokens: Where tokens part; what comes after that in a sequence is not compared.
    explanation: The rule that explains all differences.
    coarser: A dtype of fewer digits, to which one side alone rounded its scores, which explains them.
    alone: Sequences, or positions of one, that only one side has, or that share no score.
    lacking: Options without which it is not known whether those beyond are rounding's.
    """

    positions: tuple[Position, ...]
    beyond: tuple[Position, ...]
    rounding: Rounding
    other_tokens: tuple[OtherToken, ...]
    explanation: Explanation | None
    coarser: str
    alone: tuple[str, ...]
    lacking: tuple[str, ...] = ()

    @property
    def pattern(self) -> Pattern | None:
        """Where those beyond rounding lie, if nothing explains them."""
        is_explained = self.explanation is not None or self.coarser or self.lacking
        return None if is_explained else pattern_of(self.positions, self.beyond)

    @property
    def exit_code(self) -> ExitCode:
        """As `compare`."""
        differs = bool((self.beyond and not self.lacking) or self.other_tokens)
        looked = bool(self.positions) and not self.alone and not self.lacking
        return code_of(differs=differs, looked=looked)


def judge(
    reference: Sequence[Told], candidate: Sequence[Told], dtype: str = "", layers: int | None = None
) -> Judged:
    """Compare two sides; `dtype` is that of the scores, and `layers` the model's, where they do not tell it.

    Raises UsageError if the dtype is none.
    """
    told = _dtype_of(dtype, [*reference, *candidate])
    operators = _operators_of(layers, [*reference, *candidate])
    pairs, alone = _pairs(reference, candidate)
    positions: list[Position] = []
    parted: list[OtherToken] = []
    for one, other in pairs:
        found, part, lost = _positions(one, other)
        positions += found
        parted += part
        alone += lost
    return _judged(positions, parted, alone, told, operators)


def _judged(
    positions: Sequence[Position],
    parted: Sequence[OtherToken],
    alone: Sequence[str],
    told: str,
    operators: int | None,
) -> Judged:
    """The verdict, where `told` is the dtype of the scores, "" and None what nothing tells."""
    lattices = (
        lattice_of([one.reference for one in positions[:_ROWS]]),
        lattice_of([one.candidate for one in positions[:_ROWS]]),
    )
    dtype = told or (lattices[0] if lattices[0] == lattices[1] else "")
    rounding = Rounding(dtype or "float32", operators or 0)
    beyond = tuple(one for one in positions if one.apart > rounding.allowed(one))
    explanation = explanation_of(positions, rounding) if beyond else None
    coarser, lacking = "", tuple[str, ...]()
    if beyond and explanation is None:
        coarser = _rounded_to(positions, rounding, lattices)
    if beyond and explanation is None and not coarser:
        widest = Rounding(dtype or "bfloat16", operators or _MOST_OPERATORS)
        if any(one.apart > widest.allowed(one) for one in beyond):
            explanation = explanation_of(positions, widest) if told else None
        else:
            lacking = _lacking(dtype, operators)
    return Judged(
        tuple(positions),
        beyond,
        rounding,
        tuple(parted),
        explanation,
        coarser,
        tuple(alone),
        lacking,
    )


def _lacking(dtype: str, operators: int | None) -> tuple[str, ...]:
    """The options that would tell what is not known."""
    options = {"--rounding DTYPE": bool(dtype), "--layers N": operators is not None}
    return tuple(name for name, is_known in options.items() if not is_known)


_ROWS = 4
"""Positions whose scores tell the dtype."""
_MOST_OPERATORS = 10_000 * OPERATORS_OF_LAYER
"""Ten times as many layers as the deepest ones trained have: 1000, DeepNet (Wang et al., 2022)."""


def _dtype_of(dtype: str, told: Sequence[Told]) -> str:
    """The dtype of fewest digits in which one side computed its scores; "" where none is told."""
    known = {dtype} if dtype else {one.dtype for one in told if one.dtype}
    for one in known:
        if not is_floating(one):
            raise UsageError(f"{one!r} is no floating-point dtype; give one such as bfloat16")
    return max(known, key=unit_roundoff, default="")


def _operators_of(layers: int | None, told: Sequence[Told]) -> int | None:
    """Of the deeper side; None where nothing tells it."""
    if layers is not None:
        return OPERATORS_OF_LAYER * layers
    return max((one.operators for one in told), default=0) or None


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
    lost += _of_other_mass(one, other, end)
    if not places and len(one.tokens) != len(other.tokens):
        counts = f"{len(other.tokens)} tokens, in the reference {len(one.tokens)}"
        lost.append(f"sequence {one.name} has {counts}")
    return [it for it in found if it is not None], parted, lost


def _of_other_mass(one: Told, other: Told, end: int) -> list[str]:
    """Positions where one side alone gives no log-probabilities: those of the whole vocabulary do not add up to 1."""
    found = []
    for at in range(end):
        sums = [side.scores[at].excess for side in (one, other)]
        if None not in sums and (sums[0] == 0) is not (sums[1] == 0):
            side = "reference" if sums[0] else "candidate"
            where = f"position {at} of sequence {one.name}"
            found.append(f"{where}: in the {side} the probabilities do not add up to 1")
    return found


def _rounded_to(
    positions: Sequence[Position], rounding: Rounding, lattices: tuple[str, str]
) -> str:
    """The dtype to which one side alone rounded its scores, as their digits tell, where that takes them as far."""
    if bool(lattices[0]) is bool(lattices[1]):
        return ""
    dtype = lattices[0] or lattices[1]
    if unit_roundoff(dtype) <= unit_roundoff(rounding.dtype):
        return ""
    wider = Rounding(dtype)
    inside = all(one.apart <= wider.allowed(one) + rounding.allowed(one) for one in positions)
    return dtype if inside else ""


__all__ = ["Judged", "OtherToken", "judge"]
