"""List the parts of two runs that were left out, not compared or not judged; recognise runs without a seed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.core.content_notes import NoteKind
from lockstep.core.finding import (
    Evidence,
    Finding,
    Kind,
    Origin,
    Outcome,
)
from lockstep.core.manifest import (
    APART,
    CONTRADICTIONS,
    DEFAULT_RNG,
    LEFT_OUT,
    NESTING,
    PART,
    LoaderSetup,
    Options,
    RankManifest,
)
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import TensorRecord, would_differ
from lockstep.core.site import Phase, Role
from lockstep.core.text import listed
from lockstep.locate.flow.outweighed import NO_PAIR
from lockstep.locate.gathered import Gathered
from lockstep.locate.unaligned_calls import unjudged_calls
from lockstep.reading.paired_steps import Pairing
from lockstep.store.reader import Recording


def not_compared_in(
    gathered: Gathered,
    findings: Sequence[Finding],
    steps: Collection[int] | None,
    *,
    stopped: bool,
) -> Iterator[NotCompared]:
    """What of the two runs was not compared, or not judged."""
    pairing = gathered.pairing
    if not stopped:
        yield from pairing.not_compared(steps)
    if gathered.halted is not None:
        yield gathered.halted
    # Two checkpoints hold none, and are compared by their parameters.
    calls = gathered.has_calls or not pairing.is_of_another_tool or not findings
    if not stopped and gathered.aligned == 0 and calls:
        yield NotCompared(WhyNot.NOT_ALIGNED)
    if pairing.is_of_another_tool:
        yield from _contradictions(pairing)
        yield from _missing_files(findings)
        yield from _of_one_side(gathered)
    alone = {name for one in gathered.ledgers.values() for name in one.rounding_alone.sizes}
    yield from gathered.compiled.unbounded(findings, alone)
    yield from gathered.coverage.gaps(findings)
    yield from _known_by_numbers_alone(findings)
    if not gathered.judge.looks_at_set_up:
        yield from unjudged_calls(gathered.unaligned.calls, findings)
    nothing = all(one.outcome is Outcome.INCOMPARABLE for one in findings)
    # Another tool may tell no loss that would show what these do.
    if nothing or pairing.is_of_another_tool:
        yield from _unjudged(findings)
    for recording in (pairing.reference, pairing.candidate):
        gaps = (gap for gap in recording.manifest.not_seen if gap.what in (APART, PART))
        names = (str(recording.path),)
        why = {APART: WhyNot.NOT_PUT_TOGETHER, PART: WhyNot.NOT_RECORDED}
        yield from (NotCompared(why[gap.what], names=names, reason=gap.reason) for gap in gaps)


def _unjudged(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors that differ, and by how much they may is not known."""
    found = [
        one
        for one in findings
        if one.outcome is Outcome.INCOMPARABLE
        and one.pair.present.content.told.kind is not NoteKind.UNWRITTEN  # which means nothing
        and NO_PAIR.words not in one.reason  # the loss and every gradient show what these do
    ]
    if found:
        first = found[0].pair.present
        at = f"{first.name} of {first.site}"
        yield NotCompared(WhyNot.NOT_JUDGED, count=len(found), at=at, reason=found[0].reason)


def _contradictions(pairing: Pairing) -> Iterator[NotCompared]:
    """Files of either dump that say in themselves that they are of something else."""
    for name, recording in (("reference", pairing.reference), ("candidate", pairing.candidate)):
        for gap in recording.manifest.not_seen:
            if gap.what == CONTRADICTIONS:
                yield NotCompared(WhyNot.CONTRADICTION, side=name, reason=gap.reason)


def _missing_files(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors whose file is not in the dump that names it."""
    sides = (
        record
        for finding in findings
        for record in (finding.pair.reference, finding.pair.candidate)
        if record is not None and record.content.told.kind is NoteKind.FILE_MISSING
    )
    names = tuple(dict.fromkeys(one.content.told.fields[0] for one in sides))
    if names:
        yield NotCompared(WhyNot.FILE_MISSING, names=names, count=len(names))


def _of_one_side(gathered: Gathered) -> Iterator[NotCompared]:
    """What one dump alone has, as where a file is missing: nothing else tells whether the two agree in it.

    Where names of files tell the calls, in both by one tool, each tensor of a call that both have counts. So does a
    call of one side that nothing depends on, and a result that the other dump has under the name of a different call.
    A dump that lists its calls may lack an argument, or a call, by rights.
    """
    told = [
        {gap.what: gap.reason for gap in one.manifest.not_seen}
        for one in (gathered.pairing.reference, gathered.pairing.candidate)
    ]
    by_name = NESTING in told[0] and told[0].keys() == told[1].keys()
    by_name = by_name and told[0].get(LEFT_OUT) == told[1].get(LEFT_OUT)
    roles = (Role.OUTPUT, Role.INPUT) if by_name else (Role.OUTPUT,)
    found = [pair for pair in gathered.one_sided if pair.present.role in roles]
    if found:
        side = "candidate" if found[0].candidate is None else "reference"
        at = f"{found[0].present.name} of {found[0].present.site}"
        yield NotCompared(WhyNot.NO_PARTNER, count=len(found), at=at, side=side)
    if by_name and gathered.crossed:
        count, at = len(gathered.crossed), gathered.crossed[0]
        yield NotCompared(WhyNot.OTHER_NAME, count=count, at=at)
    alone = [one for one in gathered.unaligned.calls if by_name and (one.beside or one.around)]
    if alone:
        at = f"{alone[0].module} ({alone[0].op})" if alone[0].op else alone[0].module
        yield NotCompared(WhyNot.CALLS_ALONE, count=sum(one.count for one in alone), at=at)


def _known_by_numbers_alone(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors without elements, sketch or digest that both sides have: equal numbers do not make them equal."""
    count = sum(
        one.outcome is Outcome.AGREE
        and one.metrics.evidence is Evidence.STATISTICS
        and one.pair.reference is not None
        and one.pair.candidate is not None
        and not would_differ(one.pair.reference.digest, one.pair.candidate.digest)
        for one in findings
    )
    if count:
        yield NotCompared(WhyNot.NUMBERS_ALONE, count=count)


def left_out(reference: Recording, candidate: Recording) -> Iterator[str]:
    """Say which part of the model was not recorded; of which run, where the two differ."""
    said = [_words(one.manifest.options) for one in (reference, candidate)]
    if said[0] == said[1]:
        yield from said[0]
        return
    for side, words in zip(("reference", "candidate"), said, strict=True):
        yield from (f"{one} in the {side}" for one in words)


def _words(options: Options) -> list[str]:
    only = [f"all but {listed(options.only)} (--only)"] if options.only else []
    return only + ([f"{listed(options.skip)} (--skip)"] if options.skip else [])


__all__ = ["left_out"]


# Tell two runs that drew other random numbers, because no seed was set, from runs that differ.
#
# Only what the recorder knows counts. Torch's generator draws a seed of its own as torch is imported; whoever still
# has that one when the first recorded step begins was never seeded. Of Python's and NumPy's generators it is known
# whether anything was drawn from them without a seed. And what differs first must be drawn: a dropout's mask, the
# order of a shuffled loader, a batch with the mean and the variance of the other run's that is no multiple of it, or
# initial parameters that look like two samples of one distribution.

_SIGMAS = 6.0
"""Standard errors that two samples of one distribution may be apart: 2e-9 of all do more, in a normal distribution."""

_SKETCH_ERROR = 0.05
"""Standard error of a cosine that a sketch estimates: see `lockstep.core.sketch`."""

_HEAVY_TAILS = 4.0
"""How many times the variance of a normal sample's variance that of another distribution's may be."""

_MULTIPLE = 0.9999
"""Cosine of a tensor and of a multiple of it: their sketches are multiples too, so that it is 1 up to rounding."""

TORCH = "torch"
_TOLD = {"python": "Python's random", "numpy": "numpy.random", DEFAULT_RNG: f"{DEFAULT_RNG}()"}


def without_seed(origins: Sequence[Origin], gathered: Gathered) -> list[Origin]:
    """Return the origins, the first named as other random numbers where no seed was set and it was drawn."""
    if not origins or origins[0].rank not in gathered.pairing.ranks.both:
        return list(origins)
    first = origins[0]
    left, right = (one.manifest for one in gathered.pairing.ranks.both[first.rank])
    names = [
        name for name in _unseeded(left, right) if _is_drawn(name, first, (left, right), gathered)
    ]
    if not names:
        return list(origins)
    clause = Clause(About.UNSEEDED, _seed_words(names, left, right), ", ".join(names))
    return [replace(first, kind=Kind.RANDOM, reason=Reason(clause, first.reason)), *origins[1:]]


def _unseeded(left: RankManifest, right: RankManifest) -> list[str]:
    """The generators that a run did not seed, and that so gave other numbers in the other run."""
    names = dict.fromkeys([*left.unseeded, *right.unseeded])
    if not (
        DEFAULT_RNG in left.unseeded and DEFAULT_RNG in right.unseeded
    ):  # it may be a long seed
        names.pop(DEFAULT_RNG, None)
    return [name for name in names if _state_of(left, name) != _state_of(right, name)]


def _state_of(manifest: RankManifest, name: str) -> str | None:
    """What tells whether two runs draw the same by a generator: forks of one process do."""
    return manifest.seeds.get(name) if name == TORCH else manifest.random_states.get(name)


def _seed_words(names: Sequence[str], left: RankManifest, right: RankManifest) -> str:
    """How it is said that a run set no seed."""
    told = [_TOLD.get(name, name) for name in names]
    which = "" if TORCH in names else f" for {' and '.join(told)}"
    sides = [
        side
        for side, one in (("reference", left), ("candidate", right))
        if set(names) & set(one.unseeded)
    ]
    where = f" in the {sides[0]}" if len(sides) == 1 else ""
    return f"the two runs drew other random numbers: no seed was set{which}{where}"


def _is_drawn(
    name: str, origin: Origin, both: tuple[RankManifest, RankManifest], gathered: Gathered
) -> bool:
    if origin.kind is Kind.RANDOM:
        return name == TORCH
    if origin.phase is Phase.DATA:
        return all(map(_draws_order, both)) if name == TORCH else _is_drawn_batch(origin.finding)
    if origin.phase is Phase.INIT and origin.step == 0:
        return _are_samples(gathered.ledgers[origin.rank].findings)
    return False


def _is_drawn_batch(finding: Finding) -> bool:
    """Whether two batches may be samples of one distribution, and neither is the other one times a factor."""
    left, right = (_sample(record) for record in finding.pair.both)
    alike = left is not None and right is not None and _are_alike(left, right)
    return alike and abs(finding.metrics.cosine) < _MULTIPLE


def _draws_order(manifest: RankManifest) -> bool:
    """Whether every loader that was iterated draws its order by torch's own generator, and there is one."""
    return bool(manifest.loaders) and all(map(_is_shuffled, manifest.loaders))


def _is_shuffled(loader: LoaderSetup) -> bool:
    settings = loader.settings
    generators = {settings.get(name, "none") for name in ("generator", "sampler.generator")}
    return settings.get("sampler") == "RandomSampler" and generators == {"none"}


# --- initial parameters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    """Mean, sum of squares about it, and number of elements of a tensor."""

    mean: float
    squares: float
    count: int

    @property
    def variance(self) -> float:
        return self.squares / self.count


def _are_samples(findings: Sequence[Finding]) -> bool:
    """Whether all initial parameters that differ look like two independent samples of one distribution each."""
    pairs = [
        one
        for one in findings
        if one.pair.present.site.phase is Phase.INIT
        and one.pair.present.step == 0
        and one.outcome is Outcome.DIFFER
    ]
    products, norms, counts = 0.0, 0.0, 0
    for one in pairs:
        left, right = (_sample(record) for record in one.pair.both)
        if left is None or right is None or not _are_alike(left, right):
            return False
        both = math.sqrt(left.squares * right.squares)
        products += _correlation(one, left, right) * both
        norms += both
        counts += left.count
    if not norms > 0 or not math.isfinite(products):
        return False
    return abs(products) <= _SIGMAS * (1 / math.sqrt(counts) + _SKETCH_ERROR) * norms


def _sample(record: TensorRecord | None) -> _Sample | None:
    numbers = record.statistics if record is not None else None
    if record is None or numbers is None or numbers.nan_count or numbers.inf_count:
        return None
    count = record.content.numel
    squares = numbers.norm**2 - count * numbers.mean**2
    return _Sample(numbers.mean, max(squares, 0.0), count) if count and squares >= 0 else None


def _are_alike(left: _Sample, right: _Sample) -> bool:
    """Whether means and variances are as far apart as those of two samples of one distribution may be."""
    if left.count != right.count or not (left.squares > 0 and right.squares > 0):
        return left.count == right.count == 1
    spread = math.sqrt((left.variance + right.variance) / left.count)
    ratio = abs(math.log(left.variance / right.variance))
    return abs(left.mean - right.mean) <= _SIGMAS * spread and ratio <= _SIGMAS * math.sqrt(
        _HEAVY_TAILS / left.count
    ) * math.sqrt(2)


def _correlation(finding: Finding, left: _Sample, right: _Sample) -> float:
    """The correlation of two tensors, from their cosine: that of what is left without their means."""
    norms = [math.sqrt(one.squares + one.count * one.mean**2) for one in (left, right)]
    product = finding.metrics.cosine * norms[0] * norms[1] - left.count * left.mean * right.mean
    both = math.sqrt(left.squares * right.squares)
    return product / both if both > 0 else 0.0
