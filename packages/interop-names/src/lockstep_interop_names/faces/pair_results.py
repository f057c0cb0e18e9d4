"""Fill a table's "Result" from the verdict above it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.compare import Comparison, Evidence, Finding, Outcome, Pair, would_differ
from lockstep.recordings import Call, Role, Site, TensorRecord

PASS, WARNING, ERROR, UNKNOWN = "pass", "warning", "error", "N/A"

_Key = tuple[str, int, Site, Role, int, str, int]
_Place = tuple[str, int, str, str, int]


@dataclass(frozen=True, slots=True)
class PairResults:
    """Results by pair, of one comparison.

    An origin is an error, what follows from it a warning, what was not judged N/A, all with the reason. Numbers that
    agree prove no equality where nothing else is known, and are N/A.
    """

    _findings: dict[_Key, Finding] = field(default_factory=dict)
    _origins: dict[_Key, str] = field(default_factory=dict)
    _places: set[_Place] = field(default_factory=set)

    @classmethod
    def of(cls, comparison: Comparison | None) -> PairResults:
        """Return the results of a comparison; None for one that could not be made, of which every pair is N/A."""
        found = cls()
        for finding in comparison.findings if comparison is not None else ():
            key = _key(finding.pair.present)
            known = found._findings.get(key)
            if known is None or finding.outcome is Outcome.DIFFER:
                found._findings[key] = finding
        for origin in comparison.origins if comparison is not None else ():
            record = origin.finding.pair.present
            found._origins.setdefault(_key(record), origin.reason)
            found._places.add(_place(record.rank, record.step, record.site))
        return found

    def of_pair(self, pair: Pair) -> tuple[str, str]:
        """Return the result of a pair, and why; "" for a pass."""
        key = _key(pair.present)
        if key in self._origins:
            return ERROR, f"origin: {self._origins[key]}"
        finding = self._findings.get(key)
        if finding is None:
            return UNKNOWN, "not judged"
        if finding.outcome is Outcome.DIFFER:
            return WARNING, finding.reason
        if finding.outcome is Outcome.AGREE and _by_numbers_alone(finding):
            return UNKNOWN, "the numbers agree, and nothing else is known"
        if finding.outcome is not Outcome.AGREE or finding.is_by_checksum_alone:
            return UNKNOWN, finding.reason
        return PASS, ""

    def of_argument(self, call: Call, *, equal: bool) -> tuple[str, str]:
        """Return the result of a plain argument of the reference's call."""
        if equal:
            return PASS, ""
        at_origin = _place(call.rank, call.step, call.site) in self._places
        return (ERROR if at_origin else WARNING), "another value"


def _by_numbers_alone(finding: Finding) -> bool:
    left, right = finding.pair.reference, finding.pair.candidate
    digests = [None if one is None else one.digest for one in (left, right)]
    return finding.metrics.evidence is Evidence.STATISTICS and not would_differ(*digests)


def _key(record: TensorRecord) -> _Key:
    return (
        record.rank, record.step, record.site, record.role, record.index, record.name, record.occurrence,
    )  # fmt: skip


def _place(rank: str, step: int, site: Site) -> _Place:
    return rank, step, site.module, site.op, site.call
