"""Parse the steps, ranks and patterns to record; match shell patterns, and suggest the nearest names."""

from __future__ import annotations

import difflib
import fnmatch
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.errors import UsageError
from lockstep.core.site import Phase, Site

LEVELS = ("module", "api", "aten")
SAVES = ("stats", "sketch", "program", "tensors")


@dataclass(frozen=True, slots=True)
class StepSelection:
    """Which steps to record: single numbers and half-open ranges, as in `0`, `0:3`, `10,20`, `5:` or `0::10`."""

    ranges: tuple[tuple[int, int | None, int], ...]
    """First step, the one behind the last, and how many further the next is."""

    @classmethod
    def of(cls, step: int) -> StepSelection:
        """One step."""
        return cls(((step, step + 1, 1),))

    @classmethod
    def not_known_yet(cls) -> StepSelection:
        """Some step that comes later; none of those that come now."""
        return cls(((sys.maxsize, None, 1),))

    @classmethod
    def parse(cls, text: str) -> StepSelection:
        """Return the selection that a text names; the same text means the same in Python and on the command line.

        Raises
        ------
        UsageError
            If it is not a list of numbers and ranges. An integer is refused: it could be a number of steps, or one.

        Examples
        --------
        >>> 2 in StepSelection.parse("0:3"), 3 in StepSelection.parse("0:3")
        (True, False)
        """
        if not isinstance(text, str):
            raise UsageError(_not_a_text(text))
        return cls(tuple(cls._range(part.strip(), text) for part in text.split(",")))

    @staticmethod
    def _range(part: str, whole: str) -> tuple[int, int | None, int]:
        first, colon, rest = part.partition(":")
        last, strides, stride = rest.partition(":")
        try:
            start = int(first) if first else 0
            stop = (int(last) if last else None) if colon else start + 1
            every = int(stride) if strides else 1
            if not part or start < 0 or every < 1 or (stop is not None and stop <= start):
                raise ValueError(part)
        except ValueError:
            raise UsageError(
                f"steps {whole!r}: {part!r} is not a step or a range; write 0, 0:3 or 10,20"
            ) from None
        return start, stop, every

    def __str__(self) -> str:
        return ",".join(
            str(start)
            if stop == start + 1
            else f"{start}:{'' if stop is None else stop}" + f":{every}" * (every > 1)
            for start, stop, every in self.ranges
        )

    def __contains__(self, step: int) -> bool:
        return any(
            start <= step and (stop is None or step < stop) and (step - start) % every == 0
            for start, stop, every in self.ranges
        )

    def any_from(self, step: int) -> bool:
        """Whether this step or a later one is selected."""
        return any(
            stop is None or max(start, step + (start - step) % every) < stop
            for start, stop, every in self.ranges
        )

    def numbers_in(self, steps: Iterable[int]) -> tuple[int, ...]:
        """Those of `steps` that are selected."""
        return tuple(step for step in steps if step in self)


def _not_a_text(steps: object) -> str:
    if isinstance(steps, int) and not isinstance(steps, bool):
        return (
            f"steps is the number {steps}; write steps='0:{steps}' for the first {steps} steps, or"
            f" steps='{steps}' for step {steps} alone"
        )
    return f"steps is {steps!r:.40}; write a text such as '0', '0:3' or '10,20'"


def is_step(chosen: int | StepSelection | None, number: int) -> bool:
    """Return whether a step is chosen; None chooses every step."""
    if chosen is None:
        return True
    return number == chosen if isinstance(chosen, int) else number in chosen


@dataclass(frozen=True, slots=True)
class RankSelection:
    """Which ranks of a recording: numbers, each of which takes every process of that rank, or names as `rank0-1`."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> RankSelection | None:
        """Return the selection that a text names; None, which takes all ranks, for "".

        Raises
        ------
        UsageError
            If the text is not a list of ranks.

        Examples
        --------
        >>> chosen = RankSelection.parse("0,rank2-1")
        >>> [name for name in ("rank0", "rank0-1", "rank2", "rank2-1") if is_rank(chosen, name)]
        ['rank0', 'rank0-1', 'rank2-1']
        """
        if not text:
            return None
        parts = [part.strip().removeprefix("rank") for part in text.split(",")]
        if not all(_RANK.fullmatch(part) for part in parts):
            raise UsageError(f"ranks {text!r}: not a list of ranks; write 0 or 0,2")
        return cls(tuple(dict.fromkeys(parts)))

    def __str__(self) -> str:
        return ", ".join(f"rank{part}" for part in self.parts)

    def __contains__(self, name: str) -> bool:
        own = name.removeprefix("rank")
        return own in self.parts or own.partition("-")[0] in self.parts


_RANK = re.compile(r"\d+(-\d+)?")


def is_rank(chosen: str | RankSelection | None, name: str) -> bool:
    """Return whether a rank is chosen by its name; None chooses every rank."""
    if chosen is None:
        return True
    return name == chosen if isinstance(chosen, str) else name in chosen


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
        ranks = frozenset(int(part.strip().removeprefix("rank")) for part in text.split(","))
    except (ValueError, AttributeError):
        raise UsageError(f"ranks {text!r}: not a list of numbers; write 0 or 0,2") from None
    if min(ranks) < 0:
        raise UsageError(f"ranks {text!r}: a rank is 0 or more; write 0 or 0,2")
    return ranks


@dataclass(frozen=True, slots=True)
class SiteFilter:
    """`--only` and `--skip`: shell patterns on module paths and operator names.

    A pattern matches a site if it matches its module path, a module path above it, its operator's full name, or the
    last part of that name.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    _decided: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)
    _matched: set[str] = field(default_factory=set, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.only or self.skip)

    def wants(self, module: str, op: str) -> bool:
        """Whether a site is to be recorded."""
        decision = self._decided.get((module, op))
        if decision is None:
            decision = self._decided[module, op] = self._decide(module, op)
        return decision

    def _decide(self, module: str, op: str) -> bool:
        if not self:
            return True
        only = {pattern for pattern in self.only if matches(pattern, module, op)}
        skip = {pattern for pattern in self.skip if matches(pattern, module, op)}
        self._matched.update(only | skip)
        return not skip and (bool(only) or not self.only)

    def unmatched(self) -> dict[str, list[str]]:
        """Patterns that no site met so far matches, each with the nearest names of those sites."""
        names = {name for site in self._decided for name in site if name}
        return {
            pattern: nearest_names(pattern, names)
            for pattern in (*self.only, *self.skip)
            if pattern not in self._matched
        }


def matches(pattern: str, module: str, op: str) -> bool:
    """Whether a pattern matches a module path, a path above it, an operator's full name, or that name's last part.

    >>> matches("h.0", "h.0.mlp", "torch.nn.functional.linear"), matches("linear", "head", "torch.nn.functional.linear")
    (True, True)
    """
    parts = module.split(".")
    paths = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    names = (*paths, op, op.rsplit(".", 1)[-1])
    return any(fnmatch.fnmatchcase(name, pattern) for name in names if name)


def site_matches(pattern: str, site: Site) -> bool:
    """Whether a pattern matches a site: its module path, a path above it, its operator, or all of it as it is printed.

    >>> act = Site("h.3.mlp.act", "torch.nn.functional.gelu", 0, Phase.FORWARD)
    >>> patterns = ("h.*.mlp", "gelu", "h.3.mlp.act / torch.nn.functional.gelu", "h.*.act / *.gelu")
    >>> [site_matches(pattern, act) for pattern in patterns]
    [True, True, True, True]
    """
    printed = _printed(site)
    if " / " in pattern and any(fnmatch.fnmatchcase(form, pattern) for form in printed):
        return True
    return matches(pattern, site.module, site.op) or pattern in printed


def _printed(site: Site) -> tuple[str, ...]:
    """A site as it is printed: whole, without its phase, without the number of the call.

    A backward is recorded with the call that it is the backward of.
    """
    whole = str(site)
    call = whole.rpartition(", ")[0]
    return whole, call, whole.rpartition(" #")[0], f"{call}, {Phase.BACKWARD.value}"


def nearest_names(pattern: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Names most like a pattern that matched nothing, best first.

    >>> names = ("body.0", "torch.Tensor.mul")
    >>> nearest_names("bdy.0", names), nearest_names("model", names)
    (['body.0'], [])
    """
    plain = pattern.strip("*").lower()
    known = sorted(set(names))
    inside = [name for name in known if plain and plain in name.lower()]
    spellings: dict[str, str] = {}
    for name in known:
        spellings.setdefault(name.lower(), name)
        spellings.setdefault(name.lower().rsplit(".", 1)[-1], name)
    close = difflib.get_close_matches(plain, spellings, n=count)
    return list(dict.fromkeys([*(spellings[form] for form in close), *inside]))[:count]
