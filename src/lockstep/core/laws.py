"""What the laws say of a step, as data. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

BY_LAWS = "laws"
"""As it stands under `judged_by` where these decided."""


class Law(str, Enum):
    """A law that two sound runs of one training keep."""

    PROGRAM = "P"
    """On the same numbers, in double precision, both programs give the same."""
    KERNELS = "K"
    """What a run recorded is what its own program gives, up to rounding."""
    CONTINUITY = "C"
    """Within one run nothing changes but by a recorded call or update."""
    SOURCES = "S"
    """What enters the two runs is the same."""


class Quantity(str, Enum):
    """What a breach is seen at."""

    LOSS = "loss"
    RESULT = "result"
    GRADIENT = "gradient"
    UPDATE = "update"
    BUFFER = "buffer"
    PARAMETER = "parameter"
    ARRIVED = "batch or constant"
    DRAWN = "drawn numbers"
    CLIPPED = "gradient before the update"


@dataclass(frozen=True, slots=True)
class Breach:
    """A law that does not hold, where, and by how much.

    run: The run that broke it: "reference" or "candidate"; "" where the two differ and either may be right.
    name: Of the parameter or buffer, or what a result is called.
    distance, allowed: Relative Euclidean distances.
    reference_at, candidate_at: Call and index of the result that it is seen at, or that the first wrong gradient
        arrives at; () for none.
    reference_calls, candidate_calls: Numbers of the calls between the last tensors that are the same in both and the
        first that is not.
    words: The evidence, without the place.
    backward_alone: Whether every loss is the same, and the difference begins on the way back.
    """

    law: Law
    quantity: Quantity
    run: str
    name: str
    distance: float
    allowed: float
    reference_at: tuple[int, ...] = ()
    candidate_at: tuple[int, ...] = ()
    reference_calls: tuple[int, ...] = ()
    candidate_calls: tuple[int, ...] = ()
    words: str = ""
    backward_alone: bool = False


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """What the laws say of one step.

    breaches: In the order in which they are to be named; none where every law that was applied holds.
    not_judged: What no law could be applied to, and why; with any of it the step is not agreed upon.
    shared: Where the programs differ: results of the reference and of the candidate that the other has too, each as the
        number of its call and its index.
    made_again: Parameters, by the reference's names, of which both runs' updates are exactly what their own gradients
        and states make.
    as_rounded: Gradients of few numbers that calls sent, by the contents of the reference and the candidate: rounding
        takes both programs as far apart as they are.
    rounded_products: Results of single calls, by the contents of the reference and the candidate: each is what its
        inputs give, which are the same in both runs, rounded.
    """

    breaches: tuple[Breach, ...] = ()
    not_judged: tuple[str, ...] = ()
    shared: tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] = ((), ())
    made_again: tuple[str, ...] = ()
    as_rounded: tuple[tuple[int, int], ...] = ()
    rounded_products: tuple[tuple[int, int], ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every law was applied to all of the step, and holds."""
        return not (self.breaches or self.not_judged)


@dataclass(frozen=True, slots=True)
class StepBreach:
    """A breach, and the rank and step that it is of."""

    rank: str
    step: int
    breach: Breach


@dataclass(frozen=True, slots=True)
class LawsVerdict:
    """What the laws say of two recordings.

    breaches: In order of steps.
    not_judged: Why a law was not applied to a part, each reason once.
    steps: How many steps of ranks were looked at.
    without: The verdict by pairs of calls, which these laws may have overruled.
    """

    breaches: tuple[StepBreach, ...]
    not_judged: tuple[str, ...]
    steps: int
    without: str

    @property
    def verdict(self) -> str:
        """As that of a comparison."""
        if self.breaches:
            return "diverged"
        return "incomparable" if self.not_judged else "agree"


def step_answer_of(said: Any) -> StepAnswer:
    """The answer out of JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    return StepAnswer(
        tuple(_breach_of(one) for one in said["breaches"]),
        tuple(_text(one) for one in said["not_judged"]),
        (_places_of(said["shared"][0]), _places_of(said["shared"][1])),
        tuple(_text(one) for one in said["made_again"]),
        _places_of(said["as_rounded"]),
        _places_of(said["rounded_products"]),
    )


def _places_of(said: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(call), int(index)) for call, index in said)


def _breach_of(said: Any) -> Breach:
    numbers = {key: tuple(int(one) for one in said[key]) for key in _NUMBERS}
    return Breach(
        Law(said["law"]),
        Quantity(said["quantity"]),
        _text(said["run"]),
        _text(said["name"]),
        float(said["distance"]),
        float(said["allowed"]),
        words=_text(said["words"]),
        backward_alone=bool(said["backward_alone"]),
        **numbers,
    )


_NUMBERS = ("reference_at", "candidate_at", "reference_calls", "candidate_calls")


def _text(said: Any) -> str:
    if not isinstance(said, str):
        raise TypeError(f"{said!r} is no text")
    return said
