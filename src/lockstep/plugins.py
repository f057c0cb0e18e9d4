"""The one plug-in manager."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import pluggy

from lockstep import hookspecs
from lockstep.core.devices import add_devices
from lockstep.core.members import FRAMEWORKS, MEMBERS, OWN_VERBS, Member
from lockstep.core.version import DISTRIBUTION, VERSION

_broken: list[str] = []
_MEMBERS = frozenset(member.distribution for member in MEMBERS)


@cache
def manager() -> pluggy.PluginManager:
    """The manager with every plug-in loaded whose entry point is in the group `lockstep`: the core's and its members'
    first, without a member of a different version."""
    return _with(entry_points(group=hookspecs.NAME))


@cache
def _others() -> pluggy.PluginManager:
    """A manager with the plug-ins of others alone."""
    return _with(entry for entry in entry_points(group=hookspecs.NAME) if not _is_own(entry))


def forget() -> None:
    """Look for plug-ins anew when the next one is asked for."""
    manager.cache_clear()
    _others.cache_clear()
    _own_plugins.cache_clear()


def _with(entries: Iterable[EntryPoint]) -> pluggy.PluginManager:
    _broken.clear()
    plugins = pluggy.PluginManager(hookspecs.NAME)
    plugins.add_hookspecs(hookspecs)
    plugins.hook.lockstep_add_hookspecs.call_historic(kwargs={"plugins": plugins})
    for entry in sorted(entries, key=_order_of_loading):
        if _unfit(entry):
            continue
        try:
            plugins.register(entry.load(), f"{_distribution(entry)}:{entry.name}")
        except Exception as error:  # one that is broken takes nothing with it but itself
            _broken.append(f"the plug-in {entry.name} ({entry.value}) cannot be loaded: {error}")
    for devices in plugins.hook.lockstep_devices():
        add_devices(devices)
    return plugins


def broken_plugins(verb: str = "") -> list[str]:
    """Which plug-ins could not be loaded, and why, in sentences: all, or those that one of Lockstep's verbs needs."""
    _ = _others() if verb in _own_plugins() else manager()
    # a member may have several plug-ins
    unfit = dict.fromkeys(map(_unfit, entry_points(group=hookspecs.NAME)))
    return [*filter(None, unfit), *_broken]


def verbs() -> dict[str, hookspecs.Verb]:
    """Return every verb by name, in the order of `lockstep --help`; one that is there already is not replaced."""
    found: dict[str, hookspecs.Verb] = {}
    for _, verb in _claims(manager()):
        found.setdefault(verb.name, verb)
    return {verb.name: verb for verb in sorted(found.values(), key=_order_of)}


def verb_named(name: str) -> hookspecs.Verb | None:
    """Return the verb of a name, None if there is none; of Lockstep's own plug-ins the one that adds it is loaded."""
    own = _own_plugins().get(name)
    if own is None:
        return verbs().get(name)
    given: list[hookspecs.Verb] = own.load().lockstep_commands()
    return next(verb for verb in given if verb.name == name)


def doubled_verbs(typed: str = "") -> list[str]:
    """Which verbs two plug-ins add, in sentences that name both; for one of Lockstep's verbs no other's is loaded."""
    own = _own_plugins()
    if typed not in own:
        return _doubled((plugin, verb.name) for plugin, verb in _claims(manager()))
    known = ((f"{_distribution(entry)}:{entry.name}", name) for name, entry in own.items())
    return _doubled((*known, *((plugin, verb.name) for plugin, verb in _claims(_others()))))


def _doubled(claims: Iterable[tuple[str, str]]) -> list[str]:
    first: dict[str, str] = {}
    said = []
    for plugin, verb in claims:
        if verb in first:
            said.append(
                f"the plug-ins {first[verb]} and {plugin} both add the verb {verb}; that of {first[verb]} runs"
            )
        first.setdefault(verb, plugin)
    return said


def absent_members() -> list[Member]:
    """Return the members whose verbs cannot be used here: not installed, or not loaded."""
    there = verbs()
    return [member for member in MEMBERS if not set(member.verbs) <= there.keys()]


def _claims(plugins: pluggy.PluginManager) -> Iterator[tuple[str, hookspecs.Verb]]:
    """Each verb with the plug-in that adds it, as `distribution:entry point`, in the order of loading."""
    for one in plugins.hook.lockstep_commands.get_hookimpls():
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
    known = [framework for given in reversed(found) for framework in given]
    return [*known, *_unrecorded({framework.module for framework in known})]


def _unrecorded(known: Collection[str]) -> Iterator[hookspecs.Framework]:
    """Frameworks whose recorder is not installed here: a process that imports one says what to install."""
    for module, name in FRAMEWORKS.items():
        if module not in known:
            requirement = f"{DISTRIBUTION}[{module}]"
            yield hookspecs.Framework(name, module, _ABSENT, requirement)


_ABSENT = "lockstep.capture.process.absent_recorder"


@cache
def _own_plugins() -> dict[str, EntryPoint]:
    """By the verb, the plug-ins of the core and of the members that are installed here."""
    own = [one for one in entry_points(group=hookspecs.NAME) if _is_own(one) and not _unfit(one)]
    return {verb: one for one in own for verb in OWN_VERBS.get(one.value, ())}


def _is_own(entry: EntryPoint) -> bool:
    distribution = _distribution(entry)
    return distribution == DISTRIBUTION or distribution in _MEMBERS


def _order_of_loading(entry: EntryPoint) -> tuple[bool, str]:
    return not _is_own(entry), entry.name


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
