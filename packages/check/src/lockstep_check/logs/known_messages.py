"""The known messages: read from the YAML files beside it, checked row by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_check.data_files import filled, rows_of
from lockstep_check.logs.code_tables import CodeTable, code_table

_FOLDER = Path(__file__).parent / "messages"
_MOST_SENTENCES = 3
"""Of one detail, that stand in a cure."""


class Role(Enum):
    """The place of a message between cause and report; messages are printed in this order.

    One failure prints many messages. The one that says why it failed is told first, however late it stands in the log.
    """

    CAUSE = "cause"
    """It says why something failed."""
    EXCEPTION = "exception"
    """An exception of Python that no row knows more of: its own text says why."""
    SYMPTOM = "symptom"
    """It says that something failed; a different message of the same process often says why."""
    CONSEQUENCE = "consequence"
    """It says that a different process, rank or machine failed or is late."""
    ECHO = "echo"
    """It reports a failure that was printed before: a launcher's table, a wrapper's own exception."""


class Severity(Enum):
    """How urgent a message is."""

    ERROR = "error"
    """It ends the training, or makes it worthless."""
    WARNING = "warning"
    """The training goes on, but not as it was meant."""
    HARMLESS = "harmless"
    """Nothing has to be done."""


@dataclass(frozen=True, slots=True)
class Detail:
    """A sentence that the cure begins with, for what the log itself holds.

    pattern: What the message's line, or else the text before it, has; its named groups fill the blanks of `words`.
    """

    pattern: re.Pattern[str]
    words: str

    def sentences(self, line: str, before: str) -> list[str]:
        """Return the sentence for each different match in the line; of the text before it, for the last one."""
        found = list(self.pattern.finditer(line)) or list(self.pattern.finditer(before))[-1:]
        shown = (filled(self.words, one.groupdict(default="")) for one in found)
        return list(dict.fromkeys(shown))[:_MOST_SENTENCES]


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """One message and what is known of it.

    name: The row's `id`.
    contains: Texts of which one stands in every line that has the message; they are what a log is searched for.
    pattern: What such a line must match besides. Its named groups fill `{blanks}` of cause and cure.
    title, cause, cure, source: In words; the source says where that is known from. Blanks are filled by the pattern's
        groups.
    role: Where it stands in the chain from cause to report.
    near: A pattern that the line or the 4 kB before it must have besides, such as a frame of the traceback.
    table: Codes that the pattern's groups are looked up in; the row found fills more blanks.
    fallback: Told only where no other message has the line.
    general: It names the class of a failure: told behind a particular message of the same log and rank.
    details: What the log itself holds.
    harmless_up_to: A message that is found this often or less asks for nothing.
    harmless_if: A pattern: where the line, or the next one, has it, the training goes on as it was meant.
    harmless_beside, harmless_before: Messages by name: where the same log has one of them, or has one later, this one
        asks for nothing.
    line, near_miss: A line that has the message, and one that looks like it and has it not.
    before: A line that stands in front of `line`, where `near` asks for one.
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
    before: str = field(default="", repr=False)
    role: Role = Role.CAUSE
    near: re.Pattern[str] | None = None
    table: CodeTable | None = field(default=None, repr=False)
    fallback: bool = False
    general: bool = False
    details: tuple[Detail, ...] = ()
    harmless_up_to: int = 0
    harmless_if: re.Pattern[str] | None = None
    harmless_beside: tuple[str, ...] = ()
    harmless_before: tuple[str, ...] = ()

    def groups_of(self, line: str, before: str = "") -> dict[str, str] | None:
        """Return what the message says in this line; None where the line has not got it.

        line, before: The line, and up to 4 kB of the log that stands in front of it.

        >>> message = known_messages()["cuda-out-of-memory"]
        >>> message.groups_of("CUDA error: out of order") is None
        True
        """
        if not any(text in line for text in self.contains):
            return None
        if self.near is not None and not self.near.search(f"{before}\n{line}"):
            return None
        if self.pattern is None:
            return {}
        found = self.pattern.search(line)
        if found is None:
            return None
        groups = {name: text or "" for name, text in found.groupdict().items()}
        return groups if self.table is None else self.table.explained(groups)


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
        before=row.get("before", ""),
        near_miss=row["near_miss"],
        role=Role(row.get("role", "cause")),
        near=re.compile(row["near"]) if "near" in row else None,
        table=code_table(row["table"]) if "table" in row else None,
        fallback=row.get("fallback", False),
        general=row.get("general", False),
        details=tuple(
            Detail(re.compile(one["pattern"]), one["words"]) for one in row.get("details", ())
        ),
        harmless_up_to=row.get("harmless_up_to", 0),
        harmless_if=re.compile(row["harmless_if"]) if "harmless_if" in row else None,
        harmless_beside=tuple(row.get("harmless_beside", ())),
        harmless_before=tuple(row.get("harmless_before", ())),
        **words,
    )
