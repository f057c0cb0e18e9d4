"""Judge the weights of two sides, and say where differing ones come from: an older version, or a different weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import ExitCode, UsageError
from lockstep.options import StepSelection
from lockstep_sampling.weights.matching import Matching, Pair, Weight, match, related
from lockstep_sampling.weights.relation import Standing
from lockstep_sampling.weights.sources import Side, Version


@dataclass(frozen=True, slots=True)
class Stale:
    """Weights that a pair had at a different version.

    step: Of that version.
    is_own: Whether it is one of the candidate itself, rather than of the reference.
    """

    step: int | None
    is_own: bool = False


@dataclass(frozen=True)
class Judged:
    """The weights of the candidate at one version, beside the reference's.

    reference_step, candidate_step: Their versions.
    matching: All pairs.
    stale: By the place of a differing pair, the version that it equals.
    moved: By the place of a differing pair, the weight of the reference that the candidate's is equal to.
    whole: The version of the reference that all weights are equal to, where it is not the one that they should be.
    """

    reference_step: int | None
    candidate_step: int | None
    matching: Matching
    stale: dict[int, Stale] = field(default_factory=dict)
    moved: dict[int, str] = field(default_factory=dict)
    whole: Stale | None = None

    @property
    def differing(self) -> list[Pair]:
        """Pairs whose numbers are not the same."""
        return self._of(Standing.DIFFERS)

    @property
    def not_judged(self) -> list[Pair]:
        """Pairs of which nothing can be said."""
        return self._of(Standing.NOT_JUDGED)

    @property
    def agreeing(self) -> list[Pair]:
        """Pairs that were proven to be the same."""
        return [pair for pair in self.matching.pairs if pair.relation.agrees]

    @property
    def exit_code(self) -> ExitCode:
        """As `compare`: 2 where nothing differs, but not all could be judged."""
        if self.differing or self.matching.missing or self.matching.unexpected:
            return ExitCode.DIFFERS
        return ExitCode.FAILED if self.not_judged or not self.agreeing else ExitCode.AGREES

    def _of(self, standing: Standing) -> list[Pair]:
        return [pair for pair in self.matching.pairs if pair.relation.standing is standing]


@dataclass(frozen=True, slots=True)
class Judgement:
    """All versions that both sides have.

    reference, candidate: Paths, as they were given.
    judged: In order of steps.
    left_out: Steps of the candidate that the reference lacks.
    """

    reference: Path
    candidate: Path
    judged: tuple[Judged, ...]
    left_out: tuple[int, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """The worst one: different, then not judged."""
        codes = {one.exit_code for one in self.judged}
        for code in (ExitCode.DIFFERS, ExitCode.FAILED):
            if code in codes:
                return code
        return ExitCode.AGREES


def judge(reference: Side, candidate: Side, steps: StepSelection | None = None) -> Judgement:
    """Compare all versions that both sides have; the newest ones where they share none.

    Raises UsageError if a side has no weights, or none of the chosen steps. Raises RecordingError if a file is damaged.
    """
    for side in (reference, candidate):
        if not side.versions:
            raise UsageError(f"{side.path}: holds no weights; record with --save program")
    pairs, left_out = _versions_of(reference, candidate, steps)
    judged = tuple(_judged(reference, candidate, *pair) for pair in pairs)
    return Judgement(reference.path, candidate.path, judged, left_out)


def _versions_of(
    reference: Side, candidate: Side, steps: StepSelection | None
) -> tuple[list[tuple[Version, Version]], tuple[int, ...]]:
    chosen = [
        one
        for one in candidate.versions
        if steps is None or (one.step is not None and one.step in steps)
    ]
    if not chosen:
        known = ", ".join(str(one.step) for one in candidate.versions)
        raise UsageError(f"{candidate.path}: has no such step; it has {known}")
    pairs = [
        (ours, one)
        for one in chosen
        if one.step is not None and (ours := reference.at(one.step)) is not None
    ]
    if not pairs:
        return [(reference.versions[-1], chosen[-1])], ()
    left_out = {one.step for one in chosen} - {one.step for _, one in pairs}
    return pairs, tuple(sorted(step for step in left_out if step is not None))


def _judged(reference: Side, candidate: Side, ours: Version, theirs: Version) -> Judged:
    for version, side in ((ours, reference), (theirs, candidate)):
        if not version.weights:
            raise UsageError(f"{side.path}: holds no weights; give a model that has some")
    matching = match(ours.weights, theirs.weights)
    if not (_differing(matching) or matching.missing or matching.unexpected):
        return Judged(ours.step, theirs.step, matching)
    others = [
        (other.step, match(other.weights, theirs.weights))
        for other in _nearest_first(reference.versions, ours)
    ]
    if matching.missing and matching.unexpected:
        matching = match(ours.weights, theirs.weights, [matched for _, matched in others])
    return _explained(candidate, ours, theirs, matching, others)


def _explained(
    candidate: Side,
    ours: Version,
    theirs: Version,
    matching: Matching,
    others: Sequence[tuple[int | None, Matching]],
) -> Judged:
    """Where the weights that differ come from."""
    whole = next((step for step, matched in others if _is_whole(matched, matching)), _NO_STEP)
    if whole != _NO_STEP and _differing(matching):
        return Judged(ours.step, theirs.step, matching, whole=Stale(whole))
    places = _differing(matching)
    stale = dict(_not_updated(candidate, theirs, matching, places))
    for step, matched in reversed(others):
        agreeing = {pair.candidate for pair in matched.pairs if pair.relation.agrees}
        fitting = (place for place in places if matching.pairs[place].candidate in agreeing)
        stale.update((place, Stale(step)) for place in fitting)
    moved = dict(_moved(ours, theirs, matching, [one for one in places if one not in stale]))
    return Judged(ours.step, theirs.step, matching, stale, moved)


_NO_STEP = -1


def _differing(matching: Matching) -> list[int]:
    """The places of the pairs that differ."""
    return [
        place
        for place, pair in enumerate(matching.pairs)
        if pair.relation.standing is Standing.DIFFERS
    ]


def _nearest_first(versions: Sequence[Version], own: Version) -> Iterator[Version]:
    """The versions before one, the latest first; then those after it."""
    place = versions.index(own)
    yield from reversed(versions[:place])
    yield from versions[place + 1 :]


def _is_whole(matched: Matching, matching: Matching) -> bool:
    """Whether all that was compared is equal to a version, and it lacks no more than the right one does."""
    agreeing = [pair for pair in matched.pairs if pair.relation.standing is not Standing.NOT_JUDGED]
    return (
        bool(agreeing)
        and all(pair.relation.agrees for pair in agreeing)
        and set(matched.missing) <= set(matching.missing)
        and set(matched.unexpected) <= set(matching.unexpected)
    )


def _not_updated(
    candidate: Side, theirs: Version, matching: Matching, places: Iterable[int]
) -> Iterator[tuple[int, Stale]]:
    """The differing weights that are as in the candidate's version before, where others are not."""
    earlier = candidate.versions[: candidate.versions.index(theirs)]
    if not earlier:
        return
    before = {weight.name: weight for weight in earlier[-1].weights}
    now = {weight.name: weight for weight in theirs.weights}
    same = {
        name
        for name, weight in now.items()
        if name in before and related(before[name], weight)[0].standing is Standing.EQUAL
    }
    if len(same) == len(now):
        return
    for place in places:
        if same.issuperset(matching.pairs[place].candidate):
            yield place, Stale(earlier[-1].step, is_own=True)


def _moved(
    ours: Version, theirs: Version, matching: Matching, places: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """The differing weights that are a different one of the reference."""
    if not places:
        return
    owners: dict[tuple[str, str], Weight] = {}
    for weight in ours.weights:
        if len(weight.parts) == 1 and not weight.is_constant:
            owners.update((one, weight) for one in weight.parts[0].digests.items())
    now = {weight.name: weight for weight in theirs.weights}
    for place in places:
        pair = matching.pairs[place]
        weight = now[pair.candidate[0]]
        if len(pair.candidate) > 1 or len(weight.parts) > 1:
            continue
        part = weight.parts[0]
        owner = owners.get((part.dtype, part.digests.get(part.dtype, "")))
        if (
            owner is not None
            and owner.name not in pair.reference
            and related(owner, weight)[0].agrees
        ):
            yield place, owner.name


__all__ = ["Judged", "Judgement", "Stale", "judge"]
