"""Notes about a content beside its statistics. Only this module writes them as text and reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class NoteKind(str, Enum):
    """The kind of a note; the value is its text in a recording, with a place for each of its fields."""

    UNWRITTEN = "memory as it was found, not written to yet"
    """The numbers mean nothing: `torch.empty` gives such a tensor."""
    UNCOUNTED = "holds NaN or infinite elements, and how many was not written"
    """A `nan_count` or `inf_count` of 1 means one or more."""
    FILE_MISSING = "its file is not there: {}"
    """Another tool should have left its elements in this file."""
    PART = "part of ({}): {} on mesh ({})"
    """One rank's part of a tensor of this shape, placed so by torch.distributed."""
    JOINED = "put together as '{}'"
    """Several ranks' parts were put together; the field says how, as dims."""
    COPIES_DIFFER = "copies differ: '{}'"
    """All of the ranks' copies, along a first axis of its own."""
    RANKS_DIFFER = "copies of ranks differ: {}"
    """All of the ranks' copies, along a first axis of its own; which ranks have other ones than the other run."""
    COPIES_APART = "copies apart by {}"
    """Ranks hold copies of different bits, the furthest this far from the first, relative to the Euclidean norms."""
    ADDED_UP = "added up of {} ranks' parts, whose roundings reach {}"
    """The sum of so many ranks' parts; the Euclidean distance by which their roundings may move it."""
    OTHER = "{}"
    """Any other text: why numbers are missing, or nothing."""


DIFFER_BETWEEN_RANKS = frozenset({NoteKind.COPIES_DIFFER, NoteKind.RANKS_DIFFER})
"""Kinds of contents that hold every rank's copy of a tensor."""


@dataclass(frozen=True, slots=True)
class Note:
    """A fact about a content beside its numbers.

    Examples
    --------
    >>> str(Note(NoteKind.JOINED, "b s[tp] f"))
    "put together as 'b s[tp] f'"
    >>> note_of("part of (50, 32): Shard(dim=0) on mesh (dp=2)").whole_shape
    (50, 32)
    """

    kind: NoteKind
    fields: tuple[str, ...]

    def __init__(self, kind: NoteKind, *fields: object) -> None:
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "fields", tuple(map(str, fields)))

    def __str__(self) -> str:
        return self.kind.value.format(*self.fields)

    @property
    def whole_shape(self) -> tuple[int, ...] | None:
        """The shape of the tensor that this is a rank's part of; None for any other."""
        if self.kind is not NoteKind.PART:
            return None
        return tuple(map(int, re.findall(r"\d+", self.fields[0])))

    @property
    def dims(self) -> str:
        """The dims by which ranks' parts were put together, or by which their copies differ; else ""."""
        return self.fields[0] if self.kind in (NoteKind.JOINED, NoteKind.COPIES_DIFFER) else ""


@lru_cache(maxsize=4096)
def note_of(text: str) -> Note:
    """Read the note of a recorded content."""
    for kind, form in _FORMS.items():
        if found := form.fullmatch(text):
            return Note(kind, *found.groups())
    raise AssertionError("NoteKind.OTHER is any text")


_SHAPE, _NUMBER = r"([\d, ]{0,999})", r"(inf|nan|\d\.\d{3}e[+-]\d{2,3})"
_FIELDS = {NoteKind.PART: (_SHAPE, "(.*)", "(.*)"), NoteKind.COPIES_APART: (_NUMBER,),
           NoteKind.ADDED_UP: (r"(\d+)", _NUMBER)}  # fmt: skip
"""What a field may be, of notes whose fields are numbers; else any text."""


def _form(kind: NoteKind) -> re.Pattern[str]:
    parts = map(re.escape, kind.value.split("{}"))
    fields = (*_FIELDS.get(kind, ("(.*)",) * kind.value.count("{}")), "")
    return re.compile("".join(map("".join, zip(parts, fields, strict=True))), re.DOTALL)


_FORMS = {kind: _form(kind) for kind in NoteKind}
