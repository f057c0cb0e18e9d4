"""Tell two runs that drew other random numbers, because no seed was set, from runs that differ.

Only what the recorder knows counts. Torch's generator draws a seed of its own as torch is imported; whoever still has
that one when the first recorded step begins was never seeded. Of Python's and NumPy's generators it is known whether
anything was drawn from them without a seed. And what differs first must be drawn: a dropout's mask, the order of a
shuffled loader, a batch with the mean and the variance of the other run's that is no multiple of it, or initial
parameters that look like two samples of one distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.core.finding import Finding, Kind, Origin, Outcome
from lockstep.core.manifest import DEFAULT_RNG, LoaderSetup, RankManifest
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import TensorRecord
from lockstep.core.site import Phase
from lockstep.locate.gathered import Gathered

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
    clause = Clause(About.UNSEEDED, _words(names, left, right), ", ".join(names))
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


def _words(names: Sequence[str], left: RankManifest, right: RankManifest) -> str:
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
