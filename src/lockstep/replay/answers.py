"""The answers of a re-run of recorded calls: a class for each, and how it is read from JSON values. Knows no torch.

`lockstep.replay.questions` has the questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from lockstep.core.finding import Explanation, Instead, Kind
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.text import message, printable
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.replay.calls.held_results import Held, Result, result_of

_MOST_CHARACTERS = 4096
"""Of the words of an answer."""


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One forward call of a module with its context.

    call: Of the module.
    inside: The operators that were called in it, in order of time.
    known: Contents that were seen before it was called.
    """

    call: Call
    inside: tuple[Call, ...]
    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class Link:
    """One call in the chain.

    call_id: Which.
    error: How far what was recorded of it is from the chain in double precision, relative; NaN where nothing is
        compared.
    refused: Why it was not run again, so that the chain goes on from what was recorded of it, or "".
    unmade: Arguments that no recorded call gave, so that they are as recorded: what was written through a view, say.
    """

    call_id: int
    error: float
    refused: str
    unmade: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chained:
    """A module run again.

    results: Of the module: as recorded, and as the chain gives them on the machine.
    links: The calls in it.
    """

    results: tuple[Result, ...]
    links: tuple[Link, ...]


def inside_of(module: Call, calls: list[Call]) -> ModuleCall:
    """A module's call with the operators that were called in it."""
    within = {module.id}
    found = []
    for call in calls:
        if call.parent in within and not call.recomputed:
            if call.kind is CallKind.MODULE:
                within.add(call.id)
            elif call.kind is CallKind.OPERATOR:
                found.append(call)
    known = {
        record.content.id for call in calls if call.id < module.id for record in call.records
    } | {record.content.id for record in module.records if record.sequence < module.sequence}
    return ModuleCall(module, tuple(found), frozenset(known | _entering(module)))


def _entering(module: Call) -> set[int]:
    return {
        record.content.id
        for record in module.records
        if record.role.value in ("input", "param", "buffer")
    }


def chained_of(said: dict[str, Any]) -> Chained:
    """Return a result from JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    links = tuple(
        Link(
            int(one["call_id"]),
            float(one["error"]),
            _shown(one["refused"]),
            tuple(_shown(name) for name in one["unmade"]),
        )
        for one in said["links"]
    )
    return Chained(tuple(result_of(one) for one in said["results"]), links)


@dataclass(frozen=True, slots=True)
class Substitute:
    """An operator's form out of other operators.

    Parameters
    ----------
    lacking
        Of an operator that torch composes of others: which of these the device lacks.
    form
        As it is written in Python; empty where there is none.
    parts
        The operators that it comes down to, all of which the device has.
    runs, proven
        On how many recorded forms of the inputs both were run, and on how many of these they gave the same.
    gradients
        Whether their gradients were held against each other too.
    worst
        The largest error against what the operator may be off, dimensionless; at most 1 where it is proven.
    why
        Why there is no form, or why it is not proven.
    """

    lacking: tuple[str, ...] = ()
    form: str = ""
    parts: tuple[str, ...] = ()
    runs: int = 0
    proven: int = 0
    gradients: bool = False
    worst: float = 0.0
    why: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether every run gave the same, and there was one."""
        return bool(self.form) and 0 < self.runs == self.proven


def substitute_of(said: dict[str, Any]) -> Substitute:
    """A substitute out of JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    return Substitute(
        lacking=tuple(_shown(one) for one in said["lacking"]),
        form=_shown(said["form"]),
        parts=tuple(_shown(one) for one in said["parts"]),
        runs=int(said["runs"]),
        proven=int(said["proven"]),
        gradients=bool(said["gradients"]),
        worst=float(said["worst"]),
        why=message(str(said["why"])),
    )


Axis = tuple[int, int]
"""An input by its index, and one of its axes. All that an update has of its parameter's shape goes by input 0."""

Ranges = tuple[tuple[int, int], ...]
"""First element and end, per axis."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a call's inputs that is kept; everything where there is no range.

    ranges: Input, axis, first element, end.
    resized: Extents that stand in lists among the arguments (a normalised shape), and what they become.
    """

    ranges: tuple[tuple[int, int, int, int], ...] = ()
    resized: tuple[tuple[int, int], ...] = ()

    def of(self, index: int, shape: tuple[int, ...]) -> Ranges:
        """The part of one input."""
        kept = {axis: (start, stop) for source, axis, start, stop in self.ranges if source == index}
        return tuple(kept.get(axis, (0, extent)) for axis, extent in enumerate(shape))

    def argument(self, value: Any) -> Any:
        """A plain argument with the extents that it names."""
        sizes = dict(self.resized)
        if not isinstance(value, list) or not sizes:
            return value
        return [
            sizes.get(item, item)
            if isinstance(item, int) and not isinstance(item, bool)
            else self.argument(item)
            for item in value
        ]


class Makes(str, Enum):
    """Where the results on smaller inputs come from."""

    MACHINE = "run again on the machine that is off"
    CALL = "the candidate's call, run again"
    PART = "the part of what was recorded that belongs to them"


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Smaller inputs on which a call still fails in the same way.

    makes: Where results on them come from.
    cut: What is kept; without ranges where nothing smaller fails.
    before, after: Results on the inputs as recorded, and on what is kept.
    attempts: Cuts that were tried.
    why: Why nothing smaller was found, or "".
    in_time: Whether the search came to its end.
    """

    makes: Makes
    cut: Cut
    before: tuple[Result, ...]
    after: tuple[Result, ...]
    attempts: int
    why: str
    in_time: bool


Key = tuple[str, int, int]
"""A result by role, index and occurrence."""


def failing(results: tuple[Result, ...]) -> dict[Key, Held]:
    """Return the results beyond their limit, the worst first."""
    found = {
        (result.role.value, result.index, result.occurrence): held
        for result in results
        for held in result.held
        if not held.sound
    }
    return dict(sorted(found.items(), key=lambda one: -one[1].excess))


def shrunk_of(said: dict[str, Any]) -> Shrunk:
    """Return a result from JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    ranges = [
        (int(index), int(axis), int(start), int(stop))
        for index, axis, start, stop in said["cut"]["ranges"]
    ]
    if any(axis < 0 or not 0 <= start < stop for _, axis, start, stop in ranges):
        raise ValueError("a part lies within its tensor")
    resized = [(int(old), int(new)) for old, new in said["cut"]["resized"]]
    before, after = (tuple(result_of(one) for one in said[name]) for name in ("before", "after"))
    return Shrunk(
        Makes(said["makes"]),
        Cut(tuple(ranges), tuple(resized)),
        before,
        after,
        int(said["attempts"]),
        _shown(said["why"]),
        bool(said["in_time"]),
    )


@dataclass(frozen=True, slots=True)
class Timed:
    """Processor time of each call in seconds, the shortest of a few runs; NaN for one that cannot be run alone."""

    seconds: tuple[float, ...]


def timed_of(said: dict[str, Any]) -> Timed:
    """Times out of JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    return Timed(tuple(float(one) for one in said["seconds"]))


def judgement_of(said: dict[str, Any]) -> Judgement:
    """A judgement whose every value is of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    values = dict(said)
    if values.get("kind") is not None:
        values["kind"] = Kind(values["kind"])
    for name in ("tolerance", "floor"):
        values[name] = float(values[name])
    for name in ("beyond_floor", "unexplained", "open", "local", "overrules"):
        values[name] = bool(values[name])
    if values["rounding"] is not None:
        values["rounding"] = _rounding(**values["rounding"])
    for name in ("words", "judged_by", "wrong_run"):
        values[name] = _shown(values[name])
    return Judgement(**values)


def explanation_of(said: dict[str, Any] | None) -> Explanation | None:
    """An explanation whose every value is of its type; None where nothing explains.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    if said is None:
        return None
    share = float(said["share"])
    if not 0.0 <= share <= 1.0:
        raise ValueError("a share lies between 0 and 1")
    return Explanation(Instead(said["kind"]), _shown(said["words"]), share)


def _rounding(rounded: str, formats: Sequence[str], part: str = "") -> Rounding:
    names = tuple(_shown(name) for name in formats)
    return Rounding(_ROUNDED[rounded], names, _shown(part))


_ROUNDED: dict[str, Literal["inputs", "output", "inside"]] = {
    "inputs": "inputs",
    "output": "output",
    "inside": "inside",
}


def _shown(text: object) -> str:
    return printable(str(text))[:_MOST_CHARACTERS]
