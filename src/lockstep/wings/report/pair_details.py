"""The data of one pair's blocks: statistics, call stack and, of whole tensors, pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from lockstep.commands.record_again import command_line, pattern_for, record_again
from lockstep.core.errors import RecordingError
from lockstep.core.finding import Evidence, Finding, Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.measure.facing_elements import can_face
from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import Detail, Frame, Pairs, SideNumbers
from lockstep.wings.report.pair_columns import Chosen
from lockstep.wings.report.tensor_pictures import Pictures, pictures_of

_LEADING_UP = 8
"""Rows before an origin that are shown with it."""

_MOST_ELEMENTS = 1 << 26
"""Elements that are read for all pictures together, some ten seconds; of the first pair, the first origin, more."""

_MOST_OF_THE_FIRST = 1 << 28

_MOST_REORDERED = 1 << 26
"""Elements of a pair in two layouts, of which both tensors are held: a gigabyte."""


class Details:
    """Gathers the details of chosen rows; contents that several rows are of are read once.

    chosen, pairs: The rows.
    reference, candidate: The two recordings.
    """

    def __init__(
        self, chosen: Chosen, pairs: Pairs, reference: Recording, candidate: Recording
    ) -> None:
        self._chosen, self._pairs = chosen, pairs
        self._reference, self._candidate = reference, candidate
        self._known: dict[tuple[int, int, str], Pictures] = {}
        self._left = _MOST_ELEMENTS
        self._calls = lru_cache(maxsize=4)(_calls_by_moment)

    def of(self, rows: Iterable[int]) -> dict[int, Detail]:
        """The details of these rows, in whose order tensors are read."""
        found = {row: self._detail(row) for row in rows}
        for recording in (self._reference, self._candidate):
            recording.close_tensors()
        return found

    def _detail(self, row: int) -> Detail:
        pair = self._chosen.findings[row].pair
        sides = pair.reference, pair.candidate
        reference, candidate = (None if one is None else _numbers(one) for one in sides)
        without = self._without(self._chosen.findings[row])
        shown = None if without else self._pictures(row, pair)
        if shown is None:
            return Detail(row, reference, candidate, self._stack(pair), without=without)
        return Detail(
            row,
            reference,
            candidate,
            self._stack(pair),
            shown.histogram,
            shown.quantiles,
            shown.ulp,
            shown.heat_map,
            shown.worst,
            shown.pattern,
        )

    def _pictures(self, row: int, pair: Pair) -> Pictures:
        reference, candidate = pair.contents
        key = (reference.id, candidate.id, pair.present.rank)
        if key not in self._known:
            self._left -= pair.present.content.numel
            with np.errstate(all="ignore"):
                beyond = not self._pairs.margin[row] <= 1
                self._known[key] = pictures_of(pair, beyond_noise=beyond)
        return self._known[key]

    def _without(self, finding: Finding) -> str:
        """Why there are no pictures of a pair; "" where there are."""
        pair = finding.pair
        left, right = pair.reference, pair.candidate
        if left is None or right is None:
            return f"only the {'candidate' if left is None else 'reference'} has this tensor"
        if finding.metrics.evidence is Evidence.DIGEST:
            return "the two are equal bit by bit"
        if left.shape != right.shape and pair.layout is None:
            return f"the shapes differ, {list(left.shape)} and {list(right.shape)}: no elements face each other"
        if not can_face(pair):
            return self._record_again(left, right)
        most = self._left if self._known else _MOST_OF_THE_FIRST
        if left.content.numel > (most if pair.layout is None else _MOST_REORDERED):
            return f"{left.content.numel} elements: more than are read for a report"
        return ""

    def _record_again(self, left: TensorRecord, right: TensorRecord) -> str:
        lines, paths = [], []
        for recording, record in ((self._reference, left), (self._candidate, right)):
            pattern = pattern_for(record.site.module, record.site.op)
            again = record_again(recording, only=[pattern], steps=str(record.step))
            lines.append(again.line)
            paths.append(str(again.path))
        line = " && ".join([*lines, command_line("compare", *paths)])
        return f"the tensors were not saved whole; to see where they differ: {line}"

    def _stack(self, pair: Pair) -> tuple[Frame, ...]:
        """Call stack of the candidate, else of the reference, innermost first."""
        sides = ((self._candidate, pair.candidate), (self._reference, pair.reference))
        for recording, record in sides:
            call = None if record is None else self._calls(recording, record.rank, record.step)
            found = None if call is None or record is None else call.get(record.sequence)
            if found is not None and found.stack:
                return tuple(
                    Frame(one.file, one.line, one.function, one.library) for one in found.stack
                )
        return ()


def detailed_rows(chosen: Chosen, pairs: Pairs, origins: Sequence[int], details: int) -> list[int]:
    """Rows that get details: all origins, what leads up to the first, and so many others that differ.

    A quarter of these are the next ones behind the first origin, the rest those furthest beyond their floor. Of rows
    with the same two tensors the first one alone is taken.
    """
    rows = [*origins, *(row for origin in origins[:1] for row in _leading_up(pairs, origin))]
    margins = np.nan_to_num(pairs.margin, nan=0.0, posinf=np.inf)
    apart = np.flatnonzero(margins > 0)
    worst = apart[np.argsort(-margins[apart], kind="stable")]
    met = {_contents(chosen.findings[row]) for row in rows}
    taken = 0
    behind = apart[apart > origins[0]] if origins else apart[:0]
    for wanted, candidates in ((details // 4, behind), (details, worst)):
        for row in map(int, candidates):
            if taken >= wanted:
                break
            contents = _contents(chosen.findings[row])
            if contents not in met:
                met.add(contents)
                rows.append(row)
                taken += 1
    return list(dict.fromkeys(rows))


def _leading_up(pairs: Pairs, origin: int) -> Iterator[int]:
    """What the origin's call took before it gave what is off, and what made that."""
    site = [pairs.rank, pairs.module, pairs.operator]
    found = 0
    for row in range(origin - 1, -1, -1):
        if found == _LEADING_UP or pairs.step[row] != pairs.step[origin]:
            return
        same = all(column.codes[row] == column.codes[origin] for column in site)
        if same and pairs.call[row] == pairs.call[origin]:
            found += 1
            yield row
            if pairs.producer[row] >= 0:
                yield int(pairs.producer[row])


def _contents(finding: Finding) -> tuple[str, int | None, int | None]:
    left, right = finding.pair.reference, finding.pair.candidate
    return (
        finding.pair.present.rank,
        None if left is None else left.content.id,
        None if right is None else right.content.id,
    )


def _numbers(record: TensorRecord) -> SideNumbers | None:
    numbers, layout = record.statistics, record.layout
    if numbers is None:
        return None
    return SideNumbers(
        numbers,
        record.shape,
        record.dtype,
        "" if layout is None else f"strides {list(layout.strides)}",
    )


def _calls_by_moment(recording: Recording, rank: str, step: int) -> dict[int, Call]:
    """The calls of a step by the moments of their records; nothing where they cannot be read any more."""
    if rank not in recording.ranks:
        return {}
    try:
        calls = recording.ranks[rank].calls(step)
    except RecordingError:  # damaged there: numbers stand without a stack
        return {}
    return {record.sequence: call for call in calls for record in call.records}
