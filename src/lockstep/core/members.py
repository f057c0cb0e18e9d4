"""The members of Lockstep: packages with verbs that are installed apart, each by an extra of its name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lockstep.core.version import DISTRIBUTION


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
    Member("cache", ("cache",)),
    Member("deploy", ("explain",)),
    Member("migrate", ("migrate",)),
    Member("tune", ("search",)),
)


def member_of(verb: str) -> Member | None:
    """Return the member that adds a verb, None for a verb of the core or of a plug-in."""
    return next((member for member in MEMBERS if verb in member.verbs), None)


def installing(members: Sequence[Member]) -> str:
    """Return the command that installs members, in the version of this core."""
    return f"pip install '{DISTRIBUTION}[{','.join(member.name for member in members)}]'"


@cache
def own_folders() -> tuple[str, ...]:
    """Return the folders of Lockstep's own code, each with a separator at its end: the core's, then the members'."""
    return tuple(folder + os.sep for folder in _folders())


def _folders() -> Iterator[str]:
    yield str(Path(__file__).parents[1])
    for member in MEMBERS:
        found = find_spec(member.package)  # of a package at the top: nothing is loaded
        if found is not None:
            yield from found.submodule_search_locations or ()
