"""The known messages: read from the YAML files beside it, checked row by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.wings.check.data_files import rows_of

_FOLDER = Path(__file__).parent / "messages"


class Severity(Enum):
    """What a message asks for."""

    ERROR = "error"
    """It ends the training, or makes it worthless."""
    WARNING = "warning"
    """The training goes on, but not as it was meant."""
    HARMLESS = "harmless"
    """Nothing has to be done."""


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """One message and what is known of it.

    Parameters
    ----------
    name
        The row's `id`.
    contains
        Texts of which one stands in every line that has the message; they are what a log is searched for.
    pattern
        What such a line must match besides. Its named groups fill `{blanks}` of cause and cure.
    title, cause, cure, source
        In words; the source says where that is known from.
    line, near_miss
        A line that has the message, and one that looks like it and has it not.
    """

    name: str
    severity: Severity
    contains: tuple[str, ...]
    pattern: re.Pattern[str] | None
    title: str
    cause: str
    cure: str
    source: str
    line: str = field(repr=False)
    near_miss: str = field(repr=False)

    def groups_of(self, line: str) -> dict[str, str] | None:
        """What the message says in this line; None where the line has not got it.

        >>> message = known_messages()["cuda-out-of-memory"]
        >>> message.groups_of("CUDA error: out of order") is None
        True
        """
        if not any(text in line for text in self.contains):
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(line)
        return (
            None
            if found is None
            else {name: text or "" for name, text in found.groupdict().items()}
        )


@cache
def known_messages() -> Mapping[str, KnownMessage]:
    """Every row by its name; of several that match one line the first holds."""
    return {
        row.name: row
        for file in sorted(_FOLDER.glob("*.yaml"))
        for row in map(_message, rows_of(file))
    }


def _message(row: Mapping[str, Any]) -> KnownMessage:
    contains = row["contains"]
    pattern = row.get("pattern")
    words = {key: " ".join(row[key].split()) for key in ("title", "cause", "cure", "source")}
    return KnownMessage(
        name=row["id"],
        severity=Severity(row.get("severity", "error")),
        contains=(contains,) if isinstance(contains, str) else tuple(contains),
        pattern=None if pattern is None else re.compile(pattern),
        line=row["line"],
        near_miss=row["near_miss"],
        **words,
    )
