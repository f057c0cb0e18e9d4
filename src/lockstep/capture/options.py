"""What to record: steps, ranks and patterns, parsed from what the user wrote."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.core.errors import UsageError

LEVELS = ("module", "api", "aten")
SAVES = ("stats", "sketch", "tensors")


@dataclass(frozen=True, slots=True)
class StepSelection:
    """Which steps to record: single numbers and half-open ranges, as in `0`, `0:3`, `10,20` or `5:`."""

    ranges: tuple[tuple[int, int | None], ...]

    @classmethod
    def parse(cls, text: str | int) -> StepSelection:
        """Parse a selection; a plain integer N means the first N steps.

        Raises
        ------
        UsageError
            If the text is not a list of numbers and ranges.

        Examples
        --------
        >>> 2 in StepSelection.parse("0:3"), 3 in StepSelection.parse("0:3")
        (True, False)
        """
        if isinstance(text, int):
            if text < 1:
                raise UsageError(f"steps={text}: give at least one step")
            return cls(((0, text),))
        return cls(tuple(cls._range(part.strip(), text) for part in text.split(",")))

    @staticmethod
    def _range(part: str, whole: str) -> tuple[int, int | None]:
        first, colon, last = part.partition(":")
        try:
            start = int(first) if first else 0
            stop = (int(last) if last else None) if colon else start + 1
            if not part or start < 0 or (stop is not None and stop <= start):
                raise ValueError(part)
        except ValueError:
            raise UsageError(f"steps {whole!r}: {part!r} is not a step or a range; write 0, 0:3 or 10,20") from None
        return start, stop

    def __contains__(self, step: int) -> bool:
        return any(start <= step and (stop is None or step < stop) for start, stop in self.ranges)

    def any_from(self, step: int) -> bool:
        """Whether this step or a later one is selected."""
        return any(stop is None or step < stop for _, stop in self.ranges)

    def numbers_in(self, steps: Iterable[int]) -> tuple[int, ...]:
        """Those of `steps` that are selected."""
        return tuple(step for step in steps if step in self)


def parse_ranks(text: str) -> frozenset[int] | None:
    """Ranks to record from `0,2`; None (all of them) from "".

    Raises
    ------
    UsageError
        If the text is not a list of numbers.
    """
    if not text:
        return None
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"ranks {text!r}: not a list of numbers; write 0 or 0,2") from None


@dataclass(frozen=True, slots=True)
class SiteFilter:
    """`--only` and `--skip`: shell patterns on module paths and operator names.

    A pattern matches a site if it matches its module path, a module path above it, its operator's full name, or the
    last part of that name.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.only or self.skip)

    def wants(self, module: str, op: str) -> bool:
        """Whether a site is to be recorded."""
        if any(matches(pattern, module, op) for pattern in self.skip):
            return False
        return not self.only or any(matches(pattern, module, op) for pattern in self.only)


def matches(pattern: str, module: str, op: str) -> bool:
    """Whether a shell pattern matches a module path, one above it, or an operator."""
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    names = (*paths, op, op.rsplit(".", 1)[-1])
    return any(fnmatch.fnmatchcase(name, pattern) for name in names if name)


def nearest_names(pattern: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Names most like a pattern that matched nothing, best first."""
    plain = pattern.strip("*")
    names = sorted(set(names))
    inside = [name for name in names if plain and plain.lower() in name.lower()]
    close = difflib.get_close_matches(plain, names, n=count, cutoff=0.4)
    return list(dict.fromkeys([*close, *inside]))[:count]
