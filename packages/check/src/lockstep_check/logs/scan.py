"""Searching logs for the known messages.

A log is searched for all texts of all messages at once (Aho-Corasick); only lines that have one are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from lockstep_check.data_files import filled
from lockstep_check.logs.ascend_operators import MARK, AscendOperators
from lockstep_check.logs.blocks import CONTEXT_BYTES, Block, Source, blocks
from lockstep_check.logs.code_tables import SAID
from lockstep_check.logs.known_messages import KnownMessage, Role, Severity
from lockstep_check.logs.line_origin import frame_of, is_chained, rank_of, time_of

_LINE_ENDS = (b"\n", b"\r")
_ROLES = list(Role)
_AFTER_BYTES = 400
"""Of the line behind a message, which may say that the training goes on."""
_MOST_KINDS = 1000
"""A message whose blanks are filled in more ways than this is counted as one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a log."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Found:
    """A message that stands in the logs, however often.

    text: The first line that has it.
    rank, time: Which rank wrote that line, and when, where the log says so.
    frame: The line of code that the traceback in front of it ends in, the script's own before a library's.
    chained: The traceback follows from a different exception, which stands before it.
    details: What the log itself holds, as sentences.
    passed: Times that the text after the line says that the training goes on as it was meant.
    settled: A different message of the same log says so.
    """

    message: KnownMessage
    groups: Mapping[str, str]
    first: Place
    text: str
    last: Place
    rank: int | None = None
    time: datetime | None = None
    frame: str = ""
    chained: bool = False
    details: tuple[str, ...] = ()
    count: int = 1
    passed: int = 0
    settled: bool = False

    @property
    def severity(self) -> Severity:
        """How urgent the message is, as often as it was found."""
        if self.settled or self.count <= max(self.message.harmless_up_to, self.passed):
            return Severity.HARMLESS
        return self.message.severity

    @property
    def cure(self) -> str:
        """What to do, after what the log itself holds."""
        return " ".join([*self.details, filled(self.message.cure, self.groups)])

    @property
    def role(self) -> Role:
        """Where the message stands between cause and report: what its code's row says, else its own row."""
        said = self.groups.get("role")
        role = Role(said) if said else self.message.role
        return Role.ECHO if role is Role.EXCEPTION and self.chained else role


Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Findings:
    """The messages found in logs, in order of appearance, and the amount that was read."""

    found: dict[Key, Found] = field(default_factory=dict)
    operators: AscendOperators = field(default_factory=AscendOperators)
    looked_bytes: int = 0
    not_read: dict[str, str] = field(default_factory=dict)
    """Why a log was not looked at, by its name."""

    def add(
        self,
        message: KnownMessage,
        groups: Mapping[str, str],
        place: Place,
        text: str,
        before: str = "",
        after: str = "",
    ) -> None:
        """Count a line that has a message; `before` is the text in front of it, `after` begins with the next line."""
        kinds = {name: text for name, text in groups.items() if name != SAID}
        key = (message.name, tuple(sorted(kinds.items())))
        if key not in self.found and len(self.found) >= _MOST_KINDS:
            key = (message.name, ())
        passes = message.harmless_if
        following = after.strip().partition("\n")[0]
        passed = passes is not None and bool(passes.search(f"{text}\n{following}"))
        if (known := self.found.get(key)) is None:
            self.found[key] = Found(
                message,
                dict(groups),
                place,
                text,
                place,
                rank=rank_of(text),
                time=time_of(text, before),
                frame=frame_of(before),
                chained=is_chained(before),
                details=tuple(
                    words for one in message.details for words in one.sentences(text, before)
                ),
                passed=int(passed),
            )
            return
        known.count += 1
        known.passed += passed
        known.last = place

    def settle(self) -> None:
        """Note which messages ask for nothing, because of others that stand in the same log."""
        by_name: dict[str, list[Found]] = {}
        for one in self.found.values():
            by_name.setdefault(one.message.name, []).append(one)
        for one in self.found.values():
            beside = [
                each for name in one.message.harmless_beside for each in by_name.get(name, ())
            ]
            later = [each for name in one.message.harmless_before for each in by_name.get(name, ())]
            one.settled = any(each.first.file == one.first.file for each in beside) or any(
                each.last.file == one.last.file and each.last.line > one.last.line for each in later
            )


class Scanner:
    """Looks for messages in logs.

    messages: Of several that one line has, a cause is told before an echo, and else the first in this order.
    """

    def __init__(self, messages: Mapping[str, KnownMessage]) -> None:
        owners: dict[str, list[KnownMessage]] = {}
        for message in messages.values():
            for text in message.contains:
                owners.setdefault(text, []).append(message)
        self._ranks = {name: rank for rank, name in enumerate(messages)}
        self._owners = [tuple(one) for one in owners.values()]
        texts = [text.encode() for text in [*owners, MARK]]
        # Which of several overlapping texts is found does not matter: the line is searched for all of them.
        self._texts = BytesAhoCorasick(texts, MatchKind.LeftmostFirst, Implementation.DFA)
        self._all_texts = BytesAhoCorasick(texts, MatchKind.Standard, Implementation.DFA)

    def scan(
        self,
        name: str,
        source: Source,
        findings: Findings,
        *,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Search one log; `advance` is told how many bytes more were looked at.

        Raises NotALogError if it is no text.
        """
        for block in blocks(source):
            for line, text, before, after in self._lines_of(block):
                self._look_at(Place(name, line), text, before, after, findings)
            looked = block.end - block.fresh
            findings.looked_bytes += looked
            advance(looked)
        findings.settle()

    def _lines_of(self, block: Block) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """Lines that have any text that is searched for: number, line, and what stands before and after it."""
        data, done, counted, line = block.data, block.fresh, 0, block.line
        for _, start, end in self._texts.find_matches_as_indexes(data):
            if start < done or start >= block.end:
                continue
            least, most = max(start - CONTEXT_BYTES, 0), end + CONTEXT_BYTES
            begin = max(least, *(data.rfind(mark, least, start) + 1 for mark in _LINE_ENDS))
            ends = [at for mark in _LINE_ENDS if (at := data.find(mark, end, most)) >= 0]
            stop = min(ends, default=min(most, len(data)))
            line += data.count(b"\n", counted, start)
            done, counted = stop, start
            before = data[max(begin - CONTEXT_BYTES, 0) : begin]
            yield line, data[begin:stop], before, data[stop : stop + _AFTER_BYTES]

    def _look_at(
        self, place: Place, line: bytes, before: bytes, after: bytes, findings: Findings
    ) -> None:
        text = line.decode("utf-8", "replace").strip()
        hits = {
            index for index, _, _ in self._all_texts.find_matches_as_indexes(line, overlapping=True)
        }
        if len(self._owners) in hits:
            findings.operators.add(text)
            hits.remove(len(self._owners))
        candidates = {message.name: message for index in hits for message in self._owners[index]}
        context = before.decode("utf-8", "replace") if candidates else ""
        for message in sorted(candidates.values(), key=self._precedence):
            groups = message.groups_of(text, context)
            if groups is not None:
                behind = after.decode("utf-8", "replace") if message.harmless_if else ""
                findings.add(message, groups, place, text, context, behind)
                return

    def _precedence(self, message: KnownMessage) -> tuple[bool, int, int]:
        """Of several messages that one line has: what is particular first, then the cause, then the order of rows."""
        role = 0 if message.fallback else _ROLES.index(message.role)
        return message.fallback, role, self._ranks[message.name]
