"""Judgements and explanations out of what another process says of them. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from lockstep.core.finding import Explanation, Instead, Kind
from lockstep.core.text import printable
from lockstep.judge.protocol import Judgement, Rounding

_MOST_CHARACTERS = 4096
"""Of the words of an answer."""


def judgement_of(said: dict[str, Any]) -> Judgement:
    """A judgement whose every value is of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
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
        values[name] = printable(str(values[name]))[:_MOST_CHARACTERS]
    return Judgement(**values)


def explanation_of(said: dict[str, Any] | None) -> Explanation | None:
    """An explanation whose every value is of its type; None where nothing explains.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    if said is None:
        return None
    share = float(said["share"])
    if not 0.0 <= share <= 1.0:
        raise ValueError("a share lies between 0 and 1")
    return Explanation(
        Instead(said["kind"]), printable(str(said["words"]))[:_MOST_CHARACTERS], share
    )


def _rounding(rounded: str, formats: Sequence[str], part: str = "") -> Rounding:
    names = tuple(printable(str(name))[:_MOST_CHARACTERS] for name in formats)
    return Rounding(_ROUNDED[rounded], names, printable(str(part))[:_MOST_CHARACTERS])


_ROUNDED: dict[str, Literal["inputs", "output", "inside"]] = {
    "inputs": "inputs",
    "output": "output",
    "inside": "inside",
}
