"""A list of the operators that a device has, and its answer for one operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from lockstep.core.dtypes import is_floating

COMPOSED = "composed by torch of other operators"
"""The note of an operator of which torch makes others, each of which the device has to have."""


class Standing(str, Enum):
    """The entry of a list for an operator."""

    SUPPORTED = "supported"
    OTHER_DTYPES = "other dtypes only"
    MISSING = "not in the list"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    """An operator that a list names.

    Parameters
    ----------
    has
        Whether the device has it; a list may name what it lacks.
    dtypes
        Of the tensors that it takes; None where the list does not say.
    how
        How it is had where the device has no kernel of its own for it, or what else the list says.
    """

    has: bool = True
    dtypes: frozenset[str] | None = None
    how: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a list for an operator as it ran; `why` is in words, or empty."""

    standing: Standing
    why: str = ""


@dataclass(frozen=True, slots=True)
class SupportList:
    """The operators of a device, in one version, from one source.

    Parameters
    ----------
    name, version, source
        What it is called, which release it is for, and where it is from.
    entries
        By the name of the dispatcher with its overload (`aten::add.Tensor`; `aten::mm` where that has no name).
    for_all_overloads
        Names without an overload that stand for all of them, as people write `aten::add`.
    is_whole
        Whether what it does not name is not there; of another nothing is known.
    has_whole_dtypes
        Whether an operator takes no other dtypes than those that it gives; of others nothing is known else.
    namespaces
        Those of the operators that it speaks of; of others it knows nothing.
    is_of_torch
        Whether it is torch's own, whose composed operators are written for the backend.
    lacks_dtypes
        Dtypes that no tensor on the device has, with the source.
    """

    name: str
    version: str
    source: str
    entries: Mapping[str, Entry]
    for_all_overloads: frozenset[str] = frozenset()
    is_whole: bool = True
    has_whole_dtypes: bool = True
    namespaces: frozenset[str] = frozenset({"aten"})
    is_of_torch: bool = False
    lacks_dtypes: Mapping[str, str] = field(default_factory=dict)

    def entry_of(self, operator: str) -> Entry | None:
        """Return the entry of an operator, by its overload, or by its name if that stands for all of them."""
        found = self.entries.get(operator)
        name = operator.partition(".")[0]
        return self.entries.get(name) if found is None and name in self.for_all_overloads else found

    def answer(self, operator: str, dtypes: Collection[str]) -> Answer:
        """Whether the device has an operator for tensors of these dtypes.

        Dtypes that a list gives are held against those that round, where there are some: what is listed are the
        numbers that an operator computes with, not the indices beside them.

        Examples
        --------
        >>> mps = SupportList("mps", "1", "", {"aten::mm": Entry(dtypes=frozenset({"float32"}))})
        >>> mps.answer("aten::mm", ["float64"]).standing.value
        'other dtypes only'
        >>> mps.answer("mylib::mm", ["float32"]).standing.value
        'unknown'
        """
        if operator.partition("::")[0] not in self.namespaces:
            return Answer(Standing.UNKNOWN, "of another library, of which the list does not speak")
        entry = self.entry_of(operator)
        if entry is None and self.is_whole:
            return Answer(Standing.MISSING)
        if entry is None:
            return Answer(
                Standing.UNKNOWN, "the list does not name it, and does not claim to be whole"
            )
        if not entry.has:
            return Answer(Standing.MISSING, entry.how)
        lacking = sorted(dtype for dtype in dtypes if dtype in self.lacks_dtypes)
        if lacking:
            return Answer(Standing.OTHER_DTYPES, f"no tensor there is {' or '.join(lacking)}")
        computed = {dtype for dtype in dtypes if is_floating(dtype)} or set(dtypes)
        if entry.dtypes is not None and not entry.dtypes >= computed:
            others = sorted(computed - entry.dtypes)
            only = ", ".join(sorted(entry.dtypes)) or "none"
            standing = Standing.OTHER_DTYPES if self.has_whole_dtypes else Standing.UNKNOWN
            return Answer(standing, f"ran with {', '.join(others)}; listed for {only}")
        return Answer(Standing.SUPPORTED, entry.how)
