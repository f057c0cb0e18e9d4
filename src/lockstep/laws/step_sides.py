"""One run's side of a step: its program, ready to be run again, and the numbers that it can be run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, TensorRecord, would_differ
from lockstep.laws.double_run import DoubleRun, Given, Rounding
from lockstep.laws.double_updates import Classes, classes_of
from lockstep.laws.program import Enters, Source, StepProgram, step_program
from lockstep.replay.calls.recorded_tensors import load, widened

SINGLE = unit_roundoff("float32")


@dataclass(frozen=True)
class Side:
    """One run's side of a step.

    Parameters
    ----------
    run
        "reference" or "candidate".
    double
        Its program.
    starts
        Parameters and buffers by name, as the first recorded step took them.
    names
        What the reference calls a parameter of this run, where that is another name.
    """

    run: str
    double: DoubleRun
    starts: Mapping[str, TensorRecord]
    names: Mapping[str, str]

    @property
    def program(self) -> StepProgram:
        """What is run."""
        return self.double.program

    @cached_property
    def classes(self) -> Classes:
        """As which classes its optimizers are run again."""
        return classes_of(self.program)

    @cached_property
    def decides(self) -> bool:
        """Whether the program makes whole numbers: indices and masks, which law K takes as they were recorded."""
        return any(unit_roundoff(one.dtype) == 0 for one in self.program.results.values())

    @property
    def is_first(self) -> bool:
        """Whether this is the first recorded step."""
        steps = {one.step for one in self.program.sources.values()}
        return bool(self.starts) and {one.step for one in self.starts.values()} == steps

    def renamed(self, name: str) -> str:
        """The reference's name of a parameter."""
        return self.names.get(name, name)

    def own(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """What entered this step itself."""
        return widened(load(record))

    def recorded(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The same, in its recorded dtype."""
        return load(record)

    def started(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The same, with parameters and buffers as the first recorded step took them."""
        if source.kind is Enters.NAMED and source.version == 0:
            start = self.starts.get(source.name, record)
            return widened(load(start if start.shape == record.shape else record))
        return widened(load(record))


def side_of(
    run: str,
    calls: Sequence[Call],
    starts: Mapping[str, TensorRecord],
    names: Mapping[str, str] | None = None,
) -> Side:
    """One run's side of a step.

    Raises
    ------
    NotApplicable
        If its calls cannot be run as one program.
    """
    return Side(run, DoubleRun(step_program(calls)), starts, names or {})


@dataclass(frozen=True)
class CommonNumbers:
    """What enters the candidate's program so that both run on the same numbers.

    Attributes
    ----------
    partner
        By source of the candidate, that of the reference.
    lone
        Floating-point numbers that each run alone has, by run.
    """

    reference: Side
    candidate: Side
    partner: Mapping[Source, Source]
    lone: Mapping[str, frozenset[Source]]

    @cached_property
    def paired(self) -> frozenset[Source]:
        """Sources of the reference that have a partner."""
        return frozenset(self.partner.values())

    @property
    def are_references_own(self) -> bool:
        """Whether the reference's program runs on what entered its own step, and decides nothing by it."""
        named = (one for one in self.reference.program.sources if one.kind is Enters.NAMED)
        return not self.reference.decides and all(one in self.paired for one in named)

    @property
    def are_candidates_own(self) -> bool:
        """Whether the candidate's program does."""
        left, right = self.reference.program.sources, self.candidate.program.sources
        named = (one for one in right if one.kind is Enters.NAMED)
        alike = (
            right[one].digest is not None and right[one].digest == left[other].digest
            for one, other in self.partner.items()
        )
        return (
            not self.candidate.decides and all(one in self.partner for one in named) and all(alike)
        )

    def given_to_reference(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The reference's number in this step; at the start, where the candidate holds it in other pieces.

        Numbers of the first step may be special: a teacher is its student, and a weight is zero.
        """
        if source in self.paired:
            return self.reference.own(source, record)
        return self.reference.started(source, record)

    def given(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The reference's number, or the candidate's own where the reference has none."""
        other = self.partner.get(source)
        if other is None:
            return self.candidate.started(source, record)
        return self.reference.own(other, self.reference.program.sources[other])

    def shaken(self, run: str, generator: torch.Generator) -> Given:
        """The same numbers, those that one run alone has off by single precision's rounding.

        A constant may be rounded in one run and computed in the other; never is it excused by more than float32.
        """
        given = self.given if run == "candidate" else self.given_to_reference
        rounding = Rounding(generator, at_most=SINGLE)

        def entering(source: Source, record: TensorRecord) -> torch.Tensor:
            tensor = given(source, record)
            return rounding.of(tensor, "float32") if source in self.lone[run] else tensor

        return entering


def common_numbers(reference: Side, candidate: Side, *, by_order: bool = False) -> CommonNumbers:
    """Pair what enters the two programs: parameters and buffers by name, all else by contents.

    Parameters
    ----------
    by_order
        Whether what has no partner of equal contents is paired by shape, in order of time.
    """
    partner: dict[Source, Source] = {}
    left, right = reference.program.sources, candidate.program.sources
    for source, record in right.items():
        other = _partner_of(source, record, candidate, left)
        if other is not None:
            partner[source] = other
    if by_order:
        taken = set(partner.values())
        for source, record in right.items():
            if source not in partner and source.kind is Enters.ARRIVED:
                found = next(
                    (
                        one
                        for one, other in left.items()
                        if one not in taken
                        and one.kind is Enters.ARRIVED
                        and other.shape == record.shape
                        and _floats(other) == _floats(record)
                    ),
                    None,
                )
                if found is not None:
                    partner[source] = found
                    taken.add(found)
    taken = set(partner.values())
    return CommonNumbers(
        reference,
        candidate,
        partner,
        {
            "reference": frozenset(
                one for one, record in left.items() if one not in taken and _is_lone(one, record)
            ),
            "candidate": frozenset(
                one for one, record in right.items() if one not in partner and _is_lone(one, record)
            ),
        },
    )


def _partner_of(
    source: Source, record: TensorRecord, candidate: Side, left: Mapping[Source, TensorRecord]
) -> Source | None:
    if source.kind is Enters.NAMED:
        other = Source(source.kind, candidate.renamed(source.name), source.version)
        found = left.get(other)
        return other if found is not None and found.shape == record.shape else None
    if source.kind is Enters.GRADIENT:
        return None
    for one, found in left.items():
        if one.kind is Enters.ARRIVED and found.digest is not None:
            same = found.digest == record.digest and found.shape == record.shape
            if same and would_differ(found.digest, record.digest):
                return one
    return None


def _is_lone(source: Source, record: TensorRecord) -> bool:
    return source.kind is Enters.ARRIVED and _floats(record)


def _floats(record: TensorRecord) -> bool:
    return unit_roundoff(record.dtype) > 0
