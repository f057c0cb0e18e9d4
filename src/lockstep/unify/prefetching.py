"""What a loader calls within a step to fetch a later batch: every rank, and every part, fetches other samples then."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Role
from lockstep.unify.one_recording import Key


def without_fetched(part: Mapping[Key, Call]) -> dict[Key, Call]:
    """Return the calls of a part without those that fetch a later batch.

    These are operators outside of all modules that no gradient goes through, that take nothing but data and what each
    other made, and of whose results nothing else in the part is computed; and the data that go into them alone.
    """
    fetching = _fetching(part)
    needed = {
        content
        for key, call in part.items()
        if key not in fetching and call.kind is not CallKind.DATA
        for content in _contents(call, Role.INPUT)
    }
    for key in reversed(fetching):  # what goes into a needed one is needed too
        if _contents(part[key], Role.OUTPUT) & needed:
            needed |= _contents(part[key], Role.INPUT)
    taken = {content for key in fetching for content in _contents(part[key], Role.INPUT)}
    return {
        key: call
        for key, call in part.items()
        if (key not in fetching and call.kind is not CallKind.DATA)
        or (made := _contents(call, Role.OUTPUT)) & needed
        or (call.kind is CallKind.DATA and not made <= taken)
    }


def _fetching(part: Mapping[Key, Call]) -> list[Key]:
    """The operators outside of modules that take data, and what such operators made, alone."""
    data = {
        content
        for call in part.values()
        if call.kind is CallKind.DATA
        for content in _contents(call, Role.OUTPUT)
    }
    found = []
    for key, call in part.items():
        outside = call.kind is CallKind.OPERATOR and call.parent == -1 and not call.site.module
        plain = all(record.site.phase is Phase.FORWARD for record in call.records)
        given = _contents(call, Role.INPUT)
        if outside and plain and given and given <= data:
            data |= _contents(call, Role.OUTPUT)
            found.append(key)
    return found


def _contents(call: Call, role: Role) -> set[int]:
    return {record.content.id for record in call.with_role(role)}


__all__ = ["without_fetched"]
