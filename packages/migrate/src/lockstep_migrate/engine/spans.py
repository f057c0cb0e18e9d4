"""Many spans asked at once whether they touch another."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from lockstep_migrate.plan import Span


class Cover:
    """The characters that lie in any of some spans.

    Examples
    --------
    >>> Cover([Span(2, 4), Span(3, 6)]).overlaps(Span(5, 9))
    True
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for span in sorted(spans):
            if self._ends and span.start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], span.end)
            else:
                self._starts.append(span.start)
                self._ends.append(span.end)

    def overlaps(self, span: Span) -> bool:
        """Whether a character of `span` is covered."""
        place = bisect.bisect_left(self._starts, span.end) - 1
        return place >= 0 and self._ends[place] > span.start

    def holds(self, position: int) -> bool:
        """Whether the character at `position` is covered."""
        return self.overlaps(Span(position, position + 1))
