"""The one plug-in manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import pluggy

from lockstep import hookspecs
from lockstep.core.devices import add_devices
from lockstep.core.members import MEMBERS, Member
from lockstep.core.version import DISTRIBUTION, VERSION

_broken: list[str] = []
_MEMBERS = frozenset(member.distribution for member in MEMBERS)


@cache
def manager() -> pluggy.PluginManager:
    """The manager with every plug-in loaded whose entry point is in the group `lockstep`: the core's and its members'
    first, without a member of a different version."""
    _broken.clear()
    plugins = pluggy.PluginManager(hookspecs.NAME)
    plugins.add_hookspecs(hookspecs)
    plugins.hook.lockstep_add_hookspecs.call_historic(kwargs={"plugins": plugins})
    for entry in sorted(entry_points(group=hookspecs.NAME), key=_of_others):
        if unfit := _unfit(entry):
            if unfit not in _broken:  # a member may have several plug-ins
                _broken.append(unfit)
            continue
        try:
            plugins.register(entry.load(), f"{_distribution(entry)}:{entry.name}")
        except Exception as error:  # one that is broken takes nothing with it but itself
            _broken.append(f"the plug-in {entry.name} ({entry.value}) cannot be loaded: {error}")
    for devices in plugins.hook.lockstep_devices():
        add_devices(devices)
    return plugins


def broken_plugins() -> list[str]:
    """Which plug-ins could not be loaded, and why, in sentences."""
    manager()
    return _broken


def verbs() -> dict[str, hookspecs.Verb]:
    """Return every verb by name, in the order of `lockstep --help`; one that is there already is not replaced."""
    found: dict[str, hookspecs.Verb] = {}
    for _, verb in _claims():
        found.setdefault(verb.name, verb)
    return {verb.name: verb for verb in sorted(found.values(), key=_order_of)}


def doubled_verbs() -> list[str]:
    """Which verbs two plug-ins add, in sentences that name both."""
    first: dict[str, str] = {}
    said = []
    for plugin, verb in _claims():
        if verb.name in first:
            said.append(
                f"the plug-ins {first[verb.name]} and {plugin} both add the verb {verb.name}; that of"
                f" {first[verb.name]} runs"
            )
        first.setdefault(verb.name, plugin)
    return said


def absent_members() -> list[Member]:
    """Return the members whose verbs cannot be used here: not installed, or not loaded."""
    there = verbs()
    return [member for member in MEMBERS if not set(member.verbs) <= there.keys()]


def _claims() -> Iterator[tuple[str, hookspecs.Verb]]:
    """Each verb with the plug-in that adds it, as `distribution:entry point`, in the order of loading."""
    for one in manager().hook.lockstep_commands.get_hookimpls():
        given: Iterable[hookspecs.Verb] = one.function()  # type: ignore[assignment]
        yield from ((one.plugin_name, verb) for verb in given)


def _order_of(verb: hookspecs.Verb) -> tuple[float, int]:
    """Headings in the order of `Task`, those of other plug-ins before the last; then the verb's own place."""
    tasks = [task.value for task in hookspecs.Task]
    known = verb.heading in tasks
    return float(tasks.index(verb.heading)) if known else len(tasks) - 1.5, verb.place


def report_writers() -> dict[str, hookspecs.ReportWriter]:
    """Every report format by name, the built-in ones first."""
    found = manager().hook.lockstep_report_writers()
    return {writer.name: writer for writers in reversed(found) for writer in writers}


def readers() -> list[hookspecs.Reader]:
    """Return the readers of different tools' files, the built-in ones first."""
    return [reader for given in reversed(manager().hook.lockstep_readers()) for reader in given]


def frameworks() -> list[hookspecs.Framework]:
    """Frameworks other than PyTorch that can be recorded, the built-in ones first."""
    found = manager().hook.lockstep_frameworks()
    return [framework for given in reversed(found) for framework in given]


def _of_others(entry: EntryPoint) -> tuple[bool, str]:
    distribution = _distribution(entry)
    return distribution != DISTRIBUTION and distribution not in _MEMBERS, entry.name


def _unfit(entry: EntryPoint) -> str:
    """Why a member does not fit this core, in a sentence; "" for one that does, and for all other plug-ins."""
    distribution = _distribution(entry)
    if distribution not in _MEMBERS or entry.dist is None or entry.dist.version == VERSION:
        return ""
    return (
        f"{distribution} {entry.dist.version} is not loaded: it is installed beside {DISTRIBUTION} {VERSION}, and"
        f" versions must be equal: pip install '{distribution} == {VERSION}'"
    )


def _distribution(entry: EntryPoint) -> str:
    return "" if entry.dist is None else entry.dist.name
