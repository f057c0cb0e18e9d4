"""Take paths and the names of person and machine out of a recording (`--redact`); keep all that comparing needs.

Files of Python code keep their place below the project or their package (`models/net.py`), since a comparison names
lines. Elsewhere a path becomes `[redacted]` as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from lockstep.core.secrets import MASK, masked

REDACTED = "[redacted]"
"""Stands where something was taken out."""

_OF_EVERYBODY = frozenset({"", "root", "localhost"})
"""Names that tell of nobody."""

_A_PATH = re.compile(r"""file://[^\s"']+|(?<![\w./<])(?:~[\w.-]*)?/(?!/)[\w.@+~-][^\s"'<>|;,()]*""")


@dataclass(frozen=True)
class Redaction:
    """The names and paths of this machine and person, to take out.

    working_directory, home: Absolute paths.
    roots: Absolute paths of the folders that modules are imported from.
    names: Of the user and of the host.
    """

    working_directory: str
    home: str
    roots: tuple[str, ...]
    names: tuple[str, ...]

    def text(self, text: str) -> str:
        """A text without paths, names and secrets."""
        text = _A_PATH.sub(REDACTED, self._folders.sub(REDACTED, masked(text)))
        return self._names.sub(REDACTED, text)

    def file(self, file: str) -> str:
        """The name of a file of code, given as an absolute path, below the project or package that it is of.

        >>> Redaction("/home/me", "/home/me", ("/home/me/project",), ("me",)).file("/home/me/project/models/net.py")
        'models/net.py'
        """
        path, here = PurePath(file), self.working_directory
        # What is below a home is called by the person and the project, so it has to begin further down.
        if path.is_relative_to(here) and not PurePath(self.home).is_relative_to(here):
            return self.relative(str(path.relative_to(here)))
        above = [PurePath(root) for root in self.roots if path.is_relative_to(root)]
        if not above:
            return f"{REDACTED}/{path.name}"
        return self.relative(str(path.relative_to(max(above, key=lambda root: len(root.parts)))))

    def relative(self, file: str) -> str:
        """Return a path after the last folder that is named like the user or the host."""
        parts = PurePath(file).parts
        told = [place for place, part in enumerate(parts[:-1]) if self._names.search(part)]
        kept = parts[told[-1] + 1 :] if told else parts
        return self._names.sub(REDACTED, str(PurePath(*kept)))

    @cached_property
    def _folders(self) -> re.Pattern[str]:
        """Paths that are known, which may have spaces in them."""
        known = {self.working_directory, self.home, *self.roots} - {"/", ""}
        longest_first = sorted(map(re.escape, known), key=len, reverse=True)
        return re.compile(rf"""(?:{"|".join(longest_first) or "(?!)"})(?![\w-])[^\s"']*""")

    @cached_property
    def _names(self) -> re.Pattern[str]:
        return _any_of(self.names)


def is_withheld(text: str) -> bool:
    """Return whether a part of a text was masked or removed, so that the text is not known."""
    return REDACTED in text or MASK in text


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Any of the names as a word of its own."""
    told = sorted({*names} - _OF_EVERYBODY, key=len, reverse=True)
    words = "|".join(map(re.escape, told)) or "(?!)"
    return re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE)
