"""Two recordings side by side, as `compare` lays them: ranks, names, steps, calls and records. Nothing is judged."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lockstep.align.extent import Extent, View, looked_at_more
from lockstep.align.mapping import NameMapping, Names, names_between, names_in
from lockstep.align.names import NameMap
from lockstep.align.ranks import RankPairs, pair_ranks, shared_steps, why_incomparable
from lockstep.align.step import AlignedStep
from lockstep.core.arguments import path_of, steps_of
from lockstep.core.errors import UsageError
from lockstep.core.finding import Pair
from lockstep.core.manifest import GIVEN_INPUTS
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.remarks import On, Remark
from lockstep.reading.chosen_calls import is_chosen, no_match
from lockstep.store.reader import RankRecording, Recording, open_recording

if TYPE_CHECKING:
    from lockstep.reading.equal_ranks import StandIns

Given: TypeAlias = Recording | str | os.PathLike[str]
"""A recording, opened or by its path."""
GivenMapping: TypeAlias = NameMapping | str | os.PathLike[str] | None
"""What two runs call by different names, or the YAML file that says it."""


@dataclass(frozen=True)
class Pairing:
    """Which rank, name and step of one recording belongs to which of the other.

    Attributes
    ----------
    reference, candidate
        The two recordings.
    ranks
        The ranks that both have, by the reference's name.
    names
        What each rank of the candidate calls otherwise than the reference.
    view
        What both were asked to look at.
    extents
        Aligns the steps of each rank that is opened.
    unconfirmed
        How many guesses of the mapping nobody has confirmed, in a clause.
    stand_ins
        Ranks that are not opened, each with the rank that is compared in its place.
    """

    reference: Recording
    candidate: Recording
    ranks: RankPairs
    names: Mapping[str, NameMap]
    view: View
    extents: Mapping[str, Extent]
    unconfirmed: str = ""
    stand_ins: StandIns = field(default_factory=dict)

    @property
    def opened(self) -> dict[str, tuple[RankRecording, RankRecording]]:
        """The ranks that are opened, by the reference's name."""
        return {name: one for name, one in self.ranks.both.items() if name not in self.stand_ins}

    @property
    def is_of_another_tool(self) -> bool:
        """Return whether a different tool wrote one of the recordings, or both."""
        return self.reference.is_of_another_tool or self.candidate.is_of_another_tool

    @property
    def is_of_another_framework(self) -> bool:
        """Return whether a framework other than PyTorch trained one of the recordings, or both."""
        return bool(self.reference.other_framework or self.candidate.other_framework)

    @property
    def is_of_two_frameworks(self) -> bool:
        """Return whether two different frameworks trained them."""
        return self.reference.other_framework != self.candidate.other_framework

    def why_incomparable(self, steps: Collection[int] | None) -> NotCompared | None:
        """Why nothing of these steps can be paired; None where something can."""
        return why_incomparable(self.reference, self.candidate, self.ranks, steps, self.names)

    def shared_steps(self, steps: Collection[int] | None) -> dict[int, list[str]]:
        """Steps that both hold, of those that are asked for, in order, each with the ranks that have it."""
        shared = {name: shared_steps(*both, steps) for name, both in self.opened.items()}
        every = sorted({number for numbers in shared.values() for number in numbers})
        return {number: [name for name in shared if number in shared[name]] for number in every}

    def step(self, number: int, ranks: Collection[str]) -> dict[str, AlignedStep]:
        """One step of these ranks."""
        with np.errstate(all="ignore"):  # huge numbers overflow to infinity
            return {name: self.extents[name].step(number) for name in ranks}

    def close_tensors(self) -> None:
        """Close the files of whole tensors; each is opened again when one of its tensors is read."""
        self.reference.close_tensors()
        self.candidate.close_tensors()

    def not_compared(self, steps: Collection[int] | None) -> list[NotCompared]:
        """Return ranks, steps and calls that only one side has, after the steps were aligned."""
        found = list(self.ranks.alone)
        for extent in self.extents.values():
            found.extend(extent.not_compared(steps))
        if self.candidate.manifest.options.course_of:  # only the reference has its windows here
            found = [one for one in found if not _is_of_reference_alone(one)]
        for one in (self.reference, self.candidate):
            found.extend(_unseen_own_inputs(one, steps))
        return [*found, *looked_at_more(self.view, self.extents.values())]

    def notes(self) -> list[str]:
        """Return notes on how ranks and names were matched, if that was not plain, and on weights of recording that
        differ.
        """
        of_names = dict.fromkeys(note for names in self.names.values() for note in names.notes())
        given = [
            note for one in (self.reference, self.candidate) for note in _notes_on_given_inputs(one)
        ]
        windows = self.candidate.manifest.options.course_of
        elsewhere = [Remark(On.WINDOWS_ELSEWHERE, names=(windows,))] if windows else []
        return [*self.ranks.notes, *self.view.notes(), *of_names, *given, *elsewhere]


def _is_of_reference_alone(one: NotCompared) -> bool:
    """Whether it tells of steps that are complete in the reference only."""
    return one.facts.why is WhyNot.STEPS_ALONE and one.facts.side == "reference"


def pair_recordings(
    reference: Recording,
    candidate: Recording,
    mapping: GivenMapping = None,
    ranks: RankPairs | None = None,
    stand_ins: StandIns | None = None,
) -> Pairing:
    """Pair the ranks and the names of two recordings.

    Parameters
    ----------
    mapping
        What the two call by different names.
    ranks
        The ranks that belong together, where they are known already.
    stand_ins
        Ranks that are not to be opened, each with the rank that is compared in its place.

    Raises
    ------
    UsageError
        If the mapping cannot be read, or has a name that nothing has.
    """
    ranks = ranks or pair_ranks(reference, candidate)
    stand_ins = stand_ins or {}
    if mapping is not None and not isinstance(mapping, NameMapping):
        mapping = NameMapping.read(path_of("mapping", mapping))
    both_opened = {name: both for name, both in ranks.both.items() if name not in stand_ins}
    names = _names(both_opened, mapping)
    view = View(reference.manifest.options, candidate.manifest.options)
    extents = {name: Extent(*both, view, names[name]) for name, both in both_opened.items()}
    unconfirmed = "" if mapping is None else mapping.unconfirmed()
    return Pairing(reference, candidate, ranks, names, view, extents, unconfirmed, stand_ins)


def _names(
    both: Mapping[str, tuple[RankRecording, RankRecording]], mapping: NameMapping | None
) -> dict[str, NameMap]:
    if mapping is not None and both:
        known = [
            reduce(Names.__or__, map(names_in, side)) for side in zip(*both.values(), strict=True)
        ]
        mapping.check(*known)
    return {name: names_between(*each, mapping) for name, each in both.items()}


def opened(name: str, recording: Given) -> Recording:
    """Return a recording that was given opened or by its path; messages call it `name`.

    Raises
    ------
    UsageError
        If it is neither.
    RecordingError
        If it cannot be read.
    """
    if isinstance(recording, (str, os.PathLike)):
        return open_recording(path_of(name, recording))
    if not hasattr(recording, "ranks"):
        kind = type(recording).__name__
        raise UsageError(f"{name} is of type {kind}; give a path, or what lockstep.open returns")
    return recording


@dataclass(frozen=True, slots=True)
class PairedStep:
    """One step of one rank that two recordings hold.

    Parameters
    ----------
    rank, number
        As the reference calls them.
    calls
        Its calls with their partners and paired records, and those without a partner.
    """

    rank: str
    number: int
    calls: AlignedStep


def paired_steps(
    reference: Given,
    candidate: Given,
    *,
    mapping: GivenMapping = None,
    steps: Collection[int] | None = None,
) -> Iterator[PairedStep]:
    """The steps of two recordings, aligned as `compare` aligns them, step by step over all ranks.

    Parameters
    ----------
    reference, candidate
        Two recordings, opened or as paths.
    mapping
        Names that differ between the two runs, or the YAML file that lists them.
    steps
        Only these; None for all that both hold.

    Raises
    ------
    UsageError
        If an argument is wrong, or nothing of the two can be paired.
    RecordingError
        If a recording cannot be read.
    """
    numbers = steps_of("steps", steps)
    pairing = pair_recordings(
        opened("reference", reference), opened("candidate", candidate), mapping
    )
    if stopper := pairing.why_incomparable(numbers):
        raise UsageError(stopper)
    for number, ranks in pairing.shared_steps(numbers).items():
        for name, aligned in pairing.step(number, ranks).items():
            yield PairedStep(name, number, aligned)
        pairing.close_tensors()


def paired_records(
    reference: Given,
    candidate: Given,
    *,
    pattern: str | None = None,
    mapping: GivenMapping = None,
    steps: Collection[int] | None = None,
) -> Iterator[Pair]:
    """The tensor records of two recordings that belong together, in the order of `paired_steps`.

    Parameters
    ----------
    pattern
        Only records of calls that it chooses, in either recording; see `is_chosen`.

    The other parameters, and the errors, are those of `paired_steps`; a pattern that chooses nothing is refused too.

    Yields
    ------
    Pair
        With both sides; `lockstep.measure.measured_pair.measure_pair` says how far apart they are.
    """
    reference, found = opened("reference", reference), False
    for step in paired_steps(reference, candidate, mapping=mapping, steps=steps):
        for item in step.calls.aligned:
            sites = item.reference.site, item.candidate.site
            if pattern is None or any(is_chosen(pattern, site) for site in sites):
                found = True
                yield from item.whole
    if pattern is not None and not found:
        raise no_match(reference, pattern)


# --- inputs that modules were given ---------------------------------------------------------------------------------


def has_given_inputs(recording: Recording) -> bool:
    """Whether modules of a recording were given inputs of a reference."""
    return bool(recording.manifest.options.inputs_of)


def _unseen_own_inputs(
    recording: Recording, steps: Collection[int] | None
) -> Iterator[NotCompared]:
    """Yield own inputs that were replaced and are no recorded result, as what changed them is not seen otherwise.

    Of a recording of chosen modules alone, what is between them is not compared in any case.
    """
    options = recording.manifest.options
    if not has_given_inputs(recording) or options.only or options.skip:
        return
    for name, rank in recording.ranks.items():
        for step in sorted({one.step for one in rank.manifest.given_inputs}):
            if steps is None or step in steps:
                yield from _unseen(name, rank, step)


def _unseen(name: str, rank: RankRecording, step: int) -> Iterator[NotCompared]:
    recorded = {one.content.digest for call in rank.calls(step) for one in call.records}
    for given in rank.manifest.given_inputs:
        if given.step == step and given.own not in recorded:
            yield NotCompared(
                WhyNot.OWN_INPUT_UNSEEN, rank=name, names=(given.module,), at=given.name, step=step
            )


def _notes_on_given_inputs(recording: Recording) -> Iterator[Remark]:
    """Yield what was given to modules, and why not."""
    if not has_given_inputs(recording):
        return
    manifests = [rank.manifest for rank in recording.ranks.values()]
    count = sum(len(one.given_inputs) for one in manifests)
    source = recording.manifest.options.inputs_of
    yield Remark(On.GIVEN_INPUTS, count=count, names=(source,))
    gaps = (gap for one in manifests for gap in one.not_seen if gap.what == GIVEN_INPUTS)
    for reason in dict.fromkeys(gap.reason for gap in gaps):
        yield Remark(On.NOT_GIVEN, reason=reason)
