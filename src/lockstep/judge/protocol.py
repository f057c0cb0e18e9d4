"""The question to a judge and its answer.

A judge looks at one step of the data flow at a time: what went in, what came out. It never sees the
rest of the run, so that another source of knowledge (a calibration, a re-run in double precision)
can take its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import CallPair, Evidence, Kind
from lockstep.core.operators import Family, Operator, Trait, operator_of
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.tolerances import USUAL_GAIN
from lockstep.measure.measured_pair import Measured


@dataclass(slots=True)
class Operation:
    """One aligned call as a judge sees it.

    Parameters
    ----------
    op
        Operator or module class as recorded.
    inputs, outputs
        The forward tensors; `inputs` holds operand parameters too.
    gradients
        Gradients entering the call in the backward pass; empty when the forward pass is judged.
    beside
        Gradients of all parameters inside, where the call stands for a whole network of which nothing is seen.
    arguments
        Non-tensor arguments of the reference's call.
    setting_differs
        Whether a non-tensor argument was set to another value in the candidate.
    numbers_apart
        Relative distance of arguments that Python took from tensors, whose noise they carry.
    calls
        The two calls themselves with all their records; None for anything but a single call.
    """

    op: str
    inputs: tuple[Measured, ...] = ()
    outputs: tuple[Measured, ...] = ()
    gradients: tuple[Measured, ...] = ()
    beside: tuple[Measured, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    setting_differs: bool = False
    numbers_apart: float = 0.0
    calls: CallPair | None = None

    @property
    def known(self) -> Operator:
        """The catalogue's facts about the operator."""
        return operator_of(self.op)

    @property
    def family(self) -> Family:
        """Error model that applies."""
        return self.known.family

    @property
    def name(self) -> str:
        """Canonical operator name."""
        return self.known.name

    @property
    def entering(self) -> tuple[Measured, ...]:
        """Everything that the judged outputs are computed from."""
        return (*self.gradients, *self.inputs)

    @property
    def decides_otherwise(self) -> bool:
        """Whether indices or masks differ that enter the call, or that it chose itself on the way forward.

        The gradient of what was chosen goes to where it stood: a call that returns places of its first tensor keeps
        them for its backward pass. Whole numbers that others return beside their result, as a module's predictions,
        send no gradient anywhere.
        """
        chosen = self.outputs if Trait.CHOOSES in self.known.traits else ()
        return any(not one.floating and not one.equal for one in (*self.entering, *chosen))


@dataclass(frozen=True, slots=True)
class Region:
    """Calls without partner between the tensors that enter them and the one that leaves them.

    Parameters
    ----------
    reference_calls, candidate_calls
        The calls of each side in there, in order of time.
    unseen
        Calls assumed where none was recorded (level module, functional code between modules).
    """

    reference_calls: tuple[Call, ...] = ()
    candidate_calls: tuple[Call, ...] = ()
    unseen: int = 0

    @property
    def operators(self) -> int:
        """How many calls there are; with none the tensor that leaves is one that entered, or a sum of such."""
        return len(self.reference_calls) + len(self.candidate_calls) + self.unseen

    @property
    def keeps_elements(self) -> bool:
        """Whether every call is seen and passes elements on, in a different order or dtype perhaps."""
        calls = (*self.reference_calls, *self.candidate_calls)
        return not self.unseen and all(operator_of(call.site.op).keeps_elements for call in calls)

    @property
    def coarsest_unit(self) -> float:
        """The largest unit roundoff of a tensor that goes into or out of its calls; 0 without one."""
        calls = (*self.reference_calls, *self.candidate_calls)
        dtypes = {record.dtype for call in calls for record in call.records}
        return max((unit_roundoff(one) for one in dtypes if is_floating(one)), default=0.0)


NOTHING_BETWEEN = Region()


@dataclass(frozen=True, slots=True)
class Rounding:
    """The lower precision that an operator computes in: the rounded tensors, and their format.

    Several formats explain it where these cannot be told apart. Where an operator rounds inside, `part` names the
    operator that it is made of whose result it rounds.
    """

    rounded: Literal["inputs", "output", "inside"]
    formats: tuple[str, ...]
    part: str = ""

    def __str__(self) -> str:
        if self.rounded == "inside":
            return f"inside, {self.part} is rounded to {' or '.join(self.formats)}"
        verb = "round" if self.rounded == "inputs" else "rounds"
        return f"{self.rounded} {verb} to {' or '.join(self.formats)}"


@dataclass(slots=True)
class Judgement:
    """A judge's answer about one output.

    Parameters
    ----------
    tolerance
        How far the output may be off here, relative to its norm like `Measured.difference`.
    floor
        The part of it that needs no difference of the inputs, relative too: the noise floor.
    beyond_floor
        The output is off by more than the noise floor.
    unexplained
        The output is off by more than the inputs and the floor explain.
    open
        The inputs are too far off for any bound, and the output is further off than they usually take it: neither
        explained nor shown to be wrong.
    local
        The operator alone was held against double precision on each side's own inputs: the verdict
        does not depend on how far the inputs are off, and stands behind an origin too.
    kind
        The kind of the difference, where the judge knows; None leaves it to the walk.
    rounding
        The lower precision that the candidate's (or the reference's) operator computes in, where the judge has
        recognised it.
    words
        The evidence in words, added to the reason; else "".
    judged_by
        The source of knowledge that decided, where it is not the judge's own name.
    wrong_run
        "reference" or "candidate" where one operator alone was shown to be wrong; else "".
    overrules
        It acquits an output that another judgement, of less evidence, finds beyond an explanation.
    """

    tolerance: float
    floor: float
    beyond_floor: bool
    unexplained: bool
    open: bool = False
    local: bool = False
    kind: Kind | None = None
    rounding: Rounding | None = None
    words: str = ""
    judged_by: str = ""
    wrong_run: str = ""
    overrules: bool = False

    @classmethod
    def handed_on(
        cls,
        output: Measured,
        *,
        floor: float,
        inherited: float,
        kind: Kind | None = None,
        words: str = "",
    ) -> Judgement:
        """Return the judgement that both operators are sound and the difference comes from their inputs.

        `floor` and `inherited` are distances in the tensor's own unit.
        """
        scale = output.norm if output.norm > 0 else 1.0
        return cls(
            (floor + inherited) / scale,
            floor / scale,
            beyond_floor=output.distance > floor,
            unexplained=False,
            local=True,
            kind=kind,
            words=words,
        )

    @classmethod
    def follows(
        cls, *, differs: bool = True, kind: Kind | None = None, words: str = ""
    ) -> Judgement:
        """Return the judgement that both results are exact for their inputs, without rounding."""
        return cls(
            math.inf,
            0.0,
            beyond_floor=differs,
            unexplained=False,
            local=True,
            kind=kind,
            words=words,
        )

    @classmethod
    def wrong(cls, kind: Kind, words: str) -> Judgement:
        """Return the judgement that one operator's result is wrong for its own inputs, at any distance."""
        return cls(
            0.0, 0.0, beyond_floor=True, unexplained=True, local=True, kind=kind, words=words
        )


MEANINGLESS = Judgement(math.inf, math.inf, beyond_floor=False, unexplained=False)
"""What was found there is nobody's result."""

AGREES = Judgement(0.0, 0.0, beyond_floor=False, unexplained=False)
"""Bitwise equal."""

OPEN = Judgement(math.inf, 0.0, beyond_floor=True, unexplained=False, open=True)
"""Nothing is known that could explain or blame a difference."""


def as_open(judgement: Judgement) -> Judgement:
    """Return the judgement with results beyond this loose bound as not judged, rather than wrong."""
    if not judgement.unexplained:
        return judgement
    return replace(judgement, unexplained=False, open=True)


class Judge(Protocol):
    """Decides whether the inputs of a site explain its output."""

    @property
    def name(self) -> str:
        """As it stands under `judged_by`."""

    @property
    def looks_at_set_up(self) -> bool:
        """Return whether a difference in the set-up of modules is an origin too, or the tensors decide alone."""

    def notes(self) -> Sequence[str]:
        """Return notes about calls that could not be judged as they should have been, in sentences."""

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that it was computed from by the calls of a region.

        With none the target is a source itself or a sum of sources.
        """

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, given its inputs.

        `calls` are the two updates themselves with their settings.
        """


def relative_judgement(output: Measured, *, floor: float, inherited: float) -> Judgement:
    """Judge a distance by the allowed one, both in the tensor's unit."""
    if output.equal:
        return AGREES
    tolerance = floor + inherited
    scale = output.norm if output.norm > 0 else 1.0
    known = output.known and output.distance == output.distance
    return Judgement(
        tolerance=tolerance / scale,
        floor=floor / scale,
        beyond_floor=known and output.distance > floor,
        unexplained=known and output.distance > tolerance,
    )


def bounded_judgement(
    output: Measured, *, floor: float, inherited: float, entering: Sequence[Measured]
) -> Judgement:
    """Judge as `relative_judgement`; if nothing bounds the inherited part, the usual amplification does."""
    if inherited < math.inf:
        return relative_judgement(output, floor=floor, inherited=inherited)
    far = sum(item.relative for item in entering if item.floating)
    usual = USUAL_GAIN * far * output.norm if far > 0.0 else 0.0
    judgement = relative_judgement(output, floor=floor, inherited=usual)
    return replace(
        judgement, unexplained=False, open=judgement.unexplained or not math.isfinite(usual)
    )


def whole_numbers(entering: Sequence[Measured], output: Measured) -> Judgement:
    """Judge integers and booleans: from equal inputs they are equal; else a decision may have flipped."""
    same_inputs = all(item.equal for item in entering)
    tolerance = 0.0 if same_inputs else math.inf
    return Judgement(
        tolerance, 0.0, beyond_floor=output.known, unexplained=output.known and same_inputs
    )


def largest(items: Sequence[Measured], *, floating: bool = True) -> float:
    """Largest relative difference among tensors that round, or 0."""
    return max((item.relative for item in items if item.floating is floating), default=0.0)


def is_gradient(output: Measured) -> bool:
    """Whether a record belongs to the backward pass."""
    return output.pair.present.role in (Role.GRAD_INPUT, Role.GRAD_OUTPUT, Role.PARAM_GRAD)


def word_for_evidence(output: Measured) -> str:
    """How sure the numbers are: "", "estimated " or "at least "."""
    return {Evidence.SKETCH: "estimated ", Evidence.STATISTICS: "at least "}.get(
        output.metrics.evidence, ""
    )
