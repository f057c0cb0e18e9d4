"""The members of Lockstep, packages installed apart, each by an extra of its name; strangers of Lockstep's own name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.core.version import DISTRIBUTION, VERSION

SOURCE_VARIABLE = "LOCKSTEP_SOURCE"
"""Tells the processes of a recorded command where the Python that runs it has Lockstep, core and members."""


@dataclass(frozen=True, slots=True)
class Member:
    """A package of verbs.

    Parameters
    ----------
    name
        That of its folder in `packages`, and of the extra that installs it.
    verbs
        The verbs that it adds.
    """

    name: str
    verbs: tuple[str, ...]

    @property
    def distribution(self) -> str:
        """The name under which pip lists it."""
        return f"lockstep-{self.name}"

    @property
    def package(self) -> str:
        """The name by which Python imports it."""
        return f"lockstep_{self.name.replace('-', '_')}"


MEMBERS = (
    Member("audit", ("audit",)),
    Member("cache", ("cache",)),
    Member("check", ("check", "diagnose", "doctor")),
    Member("deploy", ("bisect-fusions", "codegen", "explain", "export", "quantize", "run")),
    Member("frameworks", ("map",)),
    Member("gate", ("gate",)),
    Member("interop-names", ("convert", "msaccucmp", "msprobe", "tfdbg")),
    Member("migrate", ("migrate",)),
    Member("operators", ("ops",)),
    Member("remote", ("remote",)),
    Member("sampling", ("experts", "invariance", "logprobs", "weights")),
    Member("serve", ("serve",)),
    Member("shell", ("shell",)),
    Member("tune", ("bisect", "profile", "run-tuned", "search", "tune")),
    Member("ui", ("ui",)),
    Member("watch", ("guide", "overflow", "watch")),
    Member("zoom", ("zoom",)),
)
"""Every member, with its verbs."""


FRAMEWORKS = {"tensorflow": "TensorFlow", "mindspore": "MindSpore", "jax": "JAX"}
"""The frameworks that the member `frameworks` records, by their root modules, which are the names of extras too."""


OWN_VERBS = {
    "lockstep.cli.verbs": ("record", "compare", "show", "copy"),
    "lockstep.wings.extract.plugin": ("extract",),
    "lockstep.wings.follow.plugin": ("follow",),
    "lockstep.wings.replay.plugin": ("replay",),
    "lockstep.wings.report.plugin": ("report", "plot"),
    "lockstep.wings.skill.plugin": ("skill",),
    "lockstep_audit.plugin": ("audit",),
    "lockstep_cache.plugin": ("cache",),
    "lockstep_check.plugin": ("check", "diagnose", "doctor"),
    "lockstep_deploy.explain.plugin": ("explain",),
    "lockstep_deploy.plugin": ("export", "run", "quantize", "codegen", "bisect-fusions"),
    "lockstep_frameworks.plugin": ("map",),
    "lockstep_gate.plugin": ("gate",),
    "lockstep_interop_names.dumps.plugin": ("convert",),
    "lockstep_interop_names.plugin": ("tfdbg", "msaccucmp", "msprobe"),
    "lockstep_migrate.plugin": ("migrate",),
    "lockstep_operators.plugin": ("ops",),
    "lockstep_remote.plugin": ("remote",),
    "lockstep_sampling.plugin": ("weights", "logprobs", "experts", "invariance"),
    "lockstep_serve.plugin": ("serve",),
    "lockstep_shell.plugin": ("shell",),
    "lockstep_tune.plugin": ("profile", "bisect", "tune", "run-tuned"),
    "lockstep_tune.search.plugin": ("search",),
    "lockstep_ui.plugin": ("ui",),
    "lockstep_watch.plugin": ("watch", "overflow", "guide"),
    "lockstep_zoom.plugin": ("zoom",),
}
"""The verbs of the core and of its members by the plug-in that adds them, so that a verb loads no other's."""


OWN_PACKAGES = frozenset({"lockstep", *(member.package for member in MEMBERS)})
"""The packages of Lockstep's own modules."""


def member_of(verb: str) -> Member | None:
    """Return the member that adds a verb, None for a verb of the core or of a plug-in."""
    return next((member for member in MEMBERS if verb in member.verbs), None)


def lacking(what: str, name: str) -> UsageError:
    """Return the error that something needs the member of a name, which is not here, with the command to install it."""
    (member,) = (member for member in MEMBERS if member.name == name)
    return UsageError(f"{what} needs {member.distribution} {VERSION}", command=installing([member]))


def installing(members: Sequence[Member]) -> str:
    """Return the command that installs members, in the version of this core."""
    return f"pip install '{DISTRIBUTION}[{','.join(member.name for member in members)}]'"


@cache
def own_folders() -> tuple[str, ...]:
    """Return the folders of Lockstep's own code, each with a separator at its end: the core's, then the members'."""
    return tuple(folder + os.sep for folder in _folders())


def source_folders() -> list[str]:
    """Return the folders on the path in which the core and the members lie, each once."""
    return list(dict.fromkeys(str(Path(folder).parent) for folder in own_folders()))


def _folders() -> Iterator[str]:
    yield str(Path(__file__).parents[1])
    for member in MEMBERS:
        yield from dict.fromkeys(_folders_of(member))


def _folders_of(member: Member) -> Iterator[str]:
    """Where this Python has a member, and where the one has it that runs the command."""
    found = find_spec(member.package)  # of a package at the top: nothing is loaded
    if found is not None:
        yield from found.submodule_search_locations or ()
    for source in filter(None, os.environ.get(SOURCE_VARIABLE, "").split(os.pathsep)):
        folder = Path(source) / member.package
        if folder.is_dir():
            yield str(folder)


OTHERS = ("lockstep-ml", "lockstep")
"""Distributions that are known to bring a package `lockstep`, or may."""

_HERE = Path(__file__).parents[1]


def shadow() -> str:
    """Return the file that hides this package, in one sentence; "" if none does."""
    package = sys.modules.get("lockstep")
    place = getattr(package, "__file__", None) or ""
    if getattr(package, "DISTRIBUTION", "") != DISTRIBUTION or Path(place).parent != _HERE:
        return (
            f"the package `lockstep` at {place or 'an unknown place'} is another project's; uninstall that project and"
            f" install {DISTRIBUTION} again"
        )
    for name in OTHERS:
        version = _installed(name)
        if version:
            return (
                f"{name} {version}, another project, is installed here and brings a package `lockstep` too, so each"
                f" overwrites the other's files; pip uninstall {name}, then install {DISTRIBUTION} again"
            )
    return ""


def _installed(name: str) -> str:
    """Version of a distribution that brings a package `lockstep` of its own, "" where there is none."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ""
    # An earlier build of this very package went by another name.
    ours = any(point.value == "lockstep.report.writers" for point in found.entry_points)
    brings = found.files is None or any(file.parts[0] == "lockstep" for file in found.files)
    return "" if ours or not brings else found.version
