"""Support lists that plug-ins give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from lockstep.errors import UsageError
from lockstep.plugin import SupportedOperators, SupportEntry, manager
from lockstep.plugin import SupportList as GivenList
from lockstep_operators.support.dispatcher_names import dispatcher_name, name_of_api
from lockstep_operators.support.native_functions import dispatch_keys


def given_devices() -> list[str]:
    """Devices that plug-ins have lists for."""
    return sorted({one.target for one in _given()})


def with_given(name: str, known: SupportedOperators | None) -> SupportedOperators:
    """The lists that plug-ins give for a device, on top of one that is known by its name.

    Raises UsageError if one names what is no operator.
    """
    given = [one for one in _given() if one.target == name]
    entries: dict[str, SupportEntry] = {}
    for one in given:
        entries.update(_has(one))
        entries.update(_lacks(one))
    versions = ", ".join(filter(None, (one.version for one in given)))
    sources = "; ".join(filter(None, (one.source for one in given))) or "a plug-in"
    if known is not None:
        both = {**known.entries, **entries}
        return replace(known, entries=both, source=f"{known.source}; {sources}") if given else known
    named = {one for one in entries if "." in one}
    return SupportedOperators(
        name,
        versions,
        sources,
        entries,
        for_all_overloads=frozenset(entries) - {one.partition(".")[0] for one in named},
        is_whole=any(one.has for one in given),
        namespaces=frozenset({"aten", *(one.partition("::")[0] for one in entries)}),
    )


def _given() -> Iterator[GivenList]:
    return (one for lists in manager().hook.lockstep_support_lists() for one in lists)


def _has(given: GivenList) -> Mapping[str, SupportEntry]:
    found = {}
    for written, dtypes in given.has.items():
        name = dispatcher_name(written)
        if name is None:
            raise UsageError(
                f"the list of {given.target} names {written!r}, which is not an operator"
            )
        found[name] = SupportEntry(dtypes=frozenset(dtypes) or None)
    return found


def _lacks(given: GivenList) -> Mapping[str, SupportEntry]:
    """Every overload of what is lacking, patterns of the API's names among it."""
    found = {}
    for written, reason in given.lacks.items():
        pattern = dispatcher_name(written) or name_of_api(written)
        for name in dispatch_keys():
            if name == pattern or fnmatchcase(name.partition(".")[0], pattern):
                found[name] = SupportEntry(has=False, how=reason)
        found.setdefault(pattern, SupportEntry(has=False, how=reason))
    return found
