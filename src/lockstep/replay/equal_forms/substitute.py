"""The result of looking for an equal form of an operator. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.core.text import message, printable


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

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
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


def _shown(text: object) -> str:
    return printable(str(text))[:_MOST_CHARACTERS]


_MOST_CHARACTERS = 4096
