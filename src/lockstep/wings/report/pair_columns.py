"""The pairs of a comparison as columns, in the order in which they were executed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from lockstep.core.finding import Comparison, Evidence, Finding, Origin
from lockstep.core.records import TensorRecord
from lockstep.report.comparison.kinds import kind_of, margin_of
from lockstep.report.comparison.pairs import EVIDENCE_WORDS, identity, source_line
from lockstep.wings.report import comparison_types as types
from lockstep.wings.report.comparison_types import Floats, Pairs, TextColumn
from lockstep.wings.report.links import producers


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pairs of the table, in execution order.

    findings: One per row.
    origins: By row, the origin that it is.
    left_out: How many equal pairs are not among them.
    """

    findings: Sequence[Finding]
    origins: dict[int, Origin]
    left_out: int

    def rows_of(self, origins: Iterable[Origin]) -> tuple[int, ...]:
        """The rows of these origins, in their order, each once."""
        rows = {identity(origin.finding): row for row, origin in self.origins.items()}
        return tuple(dict.fromkeys(rows[identity(origin.finding)] for origin in origins))


def chosen_pairs(comparison: Comparison, largest_pairs: int) -> Chosen:
    """The pairs of a comparison in execution order; of more than so many, equal ones are left out from the end on.

    A cause in the set-up may be told of a pair that no finding is of: it gets a row of its own.
    """
    origins = {identity(origin.finding): origin for origin in comparison.origins}
    findings = list(comparison.findings)
    known = {identity(one) for one in findings} if origins else set()
    findings.extend(one.finding for name, one in origins.items() if name not in known)
    ordered = in_execution_order(findings)
    surplus = len(ordered) - largest_pairs
    left_out = 0
    if surplus > 0:
        ordered, left_out = _without_equal(ordered, surplus, origins)
    rows = {
        row: origins[name]
        for row, one in enumerate(ordered)
        if origins and (name := identity(one)) in origins
    }
    return Chosen(ordered, rows, left_out)


def _without_equal(
    findings: Sequence[Finding], surplus: int, origins: dict[tuple[object, ...], Origin]
) -> tuple[list[Finding], int]:
    """The same without so many equal pairs, the last ones; without all where there are fewer."""
    kept, left_out = [], 0
    for finding in reversed(findings):
        equal = finding.metrics.evidence is Evidence.DIGEST and identity(finding) not in origins
        if equal and left_out < surplus:
            left_out += 1
        else:
            kept.append(finding)
    kept.reverse()
    return kept, left_out


def in_execution_order(findings: Iterable[Finding]) -> list[Finding]:
    """By step, rank and time, which is the reference's.

    What the candidate alone has stands behind the last pair that the candidate came through before it.
    """
    findings = list(findings)
    clocks = _clocks(findings)

    def moment(finding: Finding) -> tuple[int, int, str, int, int]:
        record = finding.pair.present
        at = (record.step, len(record.rank), record.rank)
        if finding.pair.reference is not None:
            return (*at, record.sequence, -1)
        own, theirs = clocks.get((record.step, record.rank), ([], []))
        before = bisect_right(own, record.sequence)
        return (*at, theirs[before - 1] if before else -1, record.sequence)

    return sorted(findings, key=moment)


def _clocks(findings: Iterable[Finding]) -> dict[tuple[int, str], tuple[list[int], list[int]]]:
    """Per step and rank the candidate's times at which both were, in order, and the reference's at each."""
    met: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for one in findings:
        left, right = one.pair.reference, one.pair.candidate
        if left is not None and right is not None:
            met[left.step, right.rank].append((right.sequence, left.sequence))
    return {
        key: ([own for own, _ in times], [theirs for _, theirs in times])
        for key, unordered in met.items()
        for times in [sorted(unordered)]
    }


def pairs_of(chosen: Chosen, comparison: Comparison) -> Pairs:
    """The columns of these pairs."""
    findings = chosen.findings
    kinds = [kind_of(one, chosen.origins.get(row), comparison) for row, one in enumerate(findings)]
    return Pairs(
        step=_whole(findings, lambda one: one.pair.present.step),
        index=_whole(findings, lambda one: one.pair.present.index),
        call=_whole(findings, lambda one: one.pair.present.site.call),
        rank=_texts(findings, lambda one: one.rank),
        phase=_texts(findings, lambda one: one.site.phase.value),
        module=_texts(findings, lambda one: one.site.module),
        operator=_texts(findings, lambda one: one.site.op),
        role=_texts(findings, lambda one: one.role.value),
        tensor=_texts(findings, lambda one: one.name),
        dtype=_texts(findings, lambda one: one.dtype),
        shape=_texts(findings, _shape),
        reference_dtype=_side_texts(findings, "reference", lambda one: one.dtype),
        candidate_dtype=_side_texts(findings, "candidate", lambda one: one.dtype),
        reference_shape=_side_texts(findings, "reference", _shape),
        candidate_shape=_side_texts(findings, "candidate", _shape),
        kind=TextColumn.of(kinds),
        outcome=TextColumn.of(one.outcome.value for one in findings),
        evidence=TextColumn.of(EVIDENCE_WORDS[one.metrics.evidence] for one in findings),
        judged_by=TextColumn.of(one.judged_by or comparison.judged_by for one in findings),
        reason=TextColumn.of(one.reason for one in findings),
        source=TextColumn.of(
            source_line(one, chosen.origins.get(row)) for row, one in enumerate(findings)
        ),
        floor=_floats(one.floor for one in findings),
        margin=_floats(map(margin_of, findings, kinds)),
        difference=_floats(one.difference for one in findings),
        tolerance=_floats(one.tolerance for one in findings),
        rel_l2=_floats(one.metrics.rel_l2 for one in findings),
        cosine=_floats(one.metrics.cosine for one in findings),
        max_abs=_floats(one.metrics.max_abs for one in findings),
        max_ulp=_floats(one.metrics.max_ulp for one in findings),
        **_statistics(findings),
        producer=producers(findings),
    )


def _shape(record: TensorRecord) -> str:
    return str(list(record.shape))


def _whole(findings: Sequence[Finding], value: Callable[[Finding], int]) -> types.Integers:
    return np.array([value(one) for one in findings], dtype=np.int32)


def _floats(values: Iterable[float]) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _texts(findings: Sequence[Finding], value: Callable[[TensorRecord], str]) -> TextColumn:
    return TextColumn.of(value(one.pair.present) for one in findings)


def _side_texts(
    findings: Sequence[Finding], side: str, value: Callable[[TensorRecord], str]
) -> TextColumn:
    records = map(attrgetter(f"pair.{side}"), findings)
    return TextColumn.of("" if one is None else value(one) for one in records)


def _statistics(findings: Sequence[Finding]) -> dict[str, Floats]:
    return {
        f"{side}_{name}": _floats(
            math.nan
            if (record := getattr(one.pair, side)) is None or record.statistics is None
            else getattr(record.statistics, name)
            for one in findings
        )
        for side in ("reference", "candidate")
        for name in ("norm", "mean", "minimum", "maximum")
    }
