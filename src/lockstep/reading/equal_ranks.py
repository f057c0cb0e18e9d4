"""Ranks that are equal in two recordings by the digests of their files, so that they need not be opened.

The manifest of a rank lists its files with their digests. Where both sides list the same, and each file still has its
digest, all that was recorded of the rank is equal. What a comparison says of such a rank depends on its layout (calls,
names, shapes), and not on its numbers: one rank of each layout is compared, and stands for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import ReferenceType, WeakKeyDictionary, ref

from lockstep.align.ranks import RankPairs
from lockstep.core.errors import RecordingError
from lockstep.store.equal_files import layout_of
from lockstep.store.reader import RankRecording, Recording

StandIns = Mapping[str, str]
"""Ranks that are not opened, each with the rank that is compared in its place, by the reference's names."""


def stand_ins(reference: Recording, candidate: Recording, ranks: RankPairs) -> StandIns:
    """Return the ranks that need not be opened; the first of each layout is.

    Every file of the others is read and compared with its digest, on both sides. A rank of which anything is odd is
    opened: comparing it says what is wrong.
    """
    known = _known.get(reference)
    if known is None or known[0]() is not candidate:
        known = _known[reference] = ref(candidate), _found(reference, candidate, ranks)
    return known[1]


Files = tuple[tuple[str, str], ...]

_known: WeakKeyDictionary[Recording, tuple[ReferenceType[Recording], StandIns]] = (
    WeakKeyDictionary()
)
"""By the reference, the candidate and the ranks that are equal in both: files are digested once."""


def _found(reference: Recording, candidate: Recording, ranks: RankPairs) -> StandIns:
    if not _may_stand(reference, candidate):
        return {}
    first: dict[str, str] = {}
    tables: dict[Files, str] = {}
    found: dict[str, str] = {}
    for name, (left, right) in ranks.both.items():
        layout = _layout(left, right, tables)
        if layout and first.setdefault(layout, name) != name:
            one = ranks.both[first[layout]]
            left.stands_as(one[0])
            right.stands_as(one[1])
            right.hold_once(left)
            found[name] = first[layout]
    return found


def _may_stand(reference: Recording, candidate: Recording) -> bool:
    """Whether both recorded the same part of a training on its own course, with torch, rank by rank."""
    options = reference.manifest.options
    return options == candidate.manifest.options and not any(
        one.is_of_another_tool
        or one.other_framework
        or one.put_together_of is not None
        or one.manifest.options.states_at
        or one.manifest.options.set_from
        or one.manifest.options.inputs_of
        or one.manifest.options.course_of
        for one in (reference, candidate)
    )


def _layout(left: RankRecording, right: RankRecording, tables: dict[Files, str]) -> str:
    """The layout of a rank that is equal in both; "" if that is not sure.

    `tables` has the digests of tables that are known, by the files of a rank.
    """
    try:
        if not left.is_equal_by_files(right):
            return ""
        files = tuple(left.manifest.files.items())
        if files not in tables:
            tables[files] = left.digest_of_tables()
        return layout_of(left.manifest, tables[files]) if tables[files] else ""
    except (RecordingError, OSError):  # it is opened, which says what is wrong
        return ""
