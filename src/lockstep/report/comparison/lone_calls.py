"""The calls that only one run makes, in sentences: the same call in many modules is listed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.core.finding import Comparison, OtherClass, UnalignedCalls
from lockstep.core.text import listed
from lockstep.locate.unaligned_calls import words_for
from lockstep.report.paragraphs import counted

if TYPE_CHECKING:
    from lockstep.report.csv_tables import Cell

CALL_TITLES = ("Side", "Calls", "Step", "Phase", "Module", "Operator", "Source", "Library")

_MODULES = 3
_LINES = 3
"""Lines of one stretch that get a sentence each; more are told together."""


@dataclass(slots=True)
class _Said:
    """A sentence, the modules that it is true of and the number of calls."""

    words: str
    modules: list[str]
    count: int

    def __str__(self) -> str:
        where = listed([module for module in self.modules if module], _MODULES)
        return f"{where}{': ' if where else ''}{self.words} ({counted(self.count, 'call')})"


def unaligned_sentences(comparison: Comparison) -> list[str]:
    """Modules of other classes, then every call without partner, in order of time."""
    said: dict[str, _Said] = {}
    called = {(one.side, one.op) for one in comparison.unaligned_calls}
    for calls in _stretches(comparison.unaligned_calls):
        words = _words(calls, called)
        count = sum(one.count for one in calls if not one.returns_as)
        count = count or sum(one.count for one in calls if one.side == calls[0].side)
        modules = sorted({one.module for one in calls})
        known = said.setdefault(words, _Said(words, [], 0))
        known.modules.extend(one for one in modules if one not in known.modules)
        known.count += count
    return [
        *_class_sentences(comparison.other_classes),
        *map(str, said.values()),
        *_recomputed(comparison),
    ]


def call_rows(comparison: Comparison) -> Iterator[tuple[Cell, ...]]:
    """The same as rows under `CALL_TITLES`, none left out."""
    for one in comparison.unaligned_calls:
        yield (
            one.side, one.count, one.step, one.phase.value, one.module, one.op, one.source, one.library,
        )  # fmt: skip


def _stretches(calls: Iterable[UnalignedCalls]) -> Iterator[list[UnalignedCalls]]:
    """Calls that one sentence tells of: those of both runs in one place, or those of one line."""
    regions: dict[int, list[UnalignedCalls]] = defaultdict(list)
    for one in calls:
        if not (one.inside or one.recomputed):
            regions[one.region].append(one)
    for region in _by_idiom(regions.values()):
        lines: dict[tuple[str, str], list[UnalignedCalls]] = defaultdict(list)
        for one in region:
            lines[one.side, "" if one.idiom else _line(one)].append(one)
        if len({one.side for one in region}) > 1 or len(lines) > _LINES:
            yield region
        else:
            yield from lines.values()


def _by_idiom(regions: Iterable[list[UnalignedCalls]]) -> Iterator[list[UnalignedCalls]]:
    """Calls of one place by what they are known as, the idioms of both runs together."""
    idioms: dict[tuple[str, int], list[UnalignedCalls]] = defaultdict(list)
    for region in regions:
        for one in region:
            place = 0 if one.idiom else one.region
            idioms[one.idiom or str(one.beside), place].append(one)
    yield from idioms.values()


def _words(calls: Sequence[UnalignedCalls], called: Set[tuple[str, str]]) -> str:
    """Words for calls of one place; `called` are all operators without partner, with their side."""
    reference, candidate = (
        [(one.op, _line(one)) for one in calls if one.side == side for _ in range(one.count)]
        for side in ("reference", "candidate")
    )
    other = "candidate" if reference else "reference"
    elsewhere = {op for side, op in called if side == other}
    words = words_for(reference, candidate, elsewhere=elsewhere)
    if calls[0].idiom:
        words = f"{calls[0].idiom}: {words}"
    beside = all(one.beside for one in calls)
    return f"{words}; nothing that is recorded of the training depends on it" if beside else words


def _line(calls: UnalignedCalls) -> str:
    return calls.library or calls.source


def _class_sentences(classes: Iterable[OtherClass]) -> Iterator[str]:
    alike: dict[tuple[str, str], list[OtherClass]] = defaultdict(list)
    for one in classes:
        alike[one.reference, one.candidate].append(one)
    for same in alike.values():
        more = f", and so at {len(same) - 1} more" if len(same) > 1 else ""
        yield f"{same[0]}{more}"


def _recomputed(comparison: Comparison) -> Iterator[str]:
    for side in ("reference", "candidate"):
        calls = [one for one in comparison.unaligned_calls if one.side == side and one.recomputed]
        if calls:
            count = counted(sum(one.count for one in calls), "call")
            yield f"the {side} runs {count} again in the backward pass (activation checkpointing)"
