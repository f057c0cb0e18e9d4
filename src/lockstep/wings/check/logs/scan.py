"""Searching logs for the known messages.

A log is searched for all texts of all messages at once (Aho-Corasick); only lines that have one are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ahocorasick_rs import BytesAhoCorasick, Implementation, MatchKind

from lockstep.wings.check.logs.ascend_operators import MARK, AscendOperators
from lockstep.wings.check.logs.blocks import CONTEXT_BYTES, Block, Source, blocks
from lockstep.wings.check.logs.known_messages import KnownMessage

_LINE_ENDS = (b"\n", b"\r")
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

    Parameters
    ----------
    text
        The first line that has it.
    """

    message: KnownMessage
    groups: Mapping[str, str]
    first: Place
    text: str
    last: Place
    count: int = 1


Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Findings:
    """What was found in the logs, in order of appearance, and how much was looked at."""

    found: dict[Key, Found] = field(default_factory=dict)
    operators: AscendOperators = field(default_factory=AscendOperators)
    looked_bytes: int = 0
    not_read: dict[str, str] = field(default_factory=dict)
    """Why a log was not looked at, by its name."""

    def add(
        self, message: KnownMessage, groups: Mapping[str, str], place: Place, text: str
    ) -> None:
        """Count a line that has a message."""
        key = (message.name, tuple(sorted(groups.items())))
        if key not in self.found and len(self.found) >= _MOST_KINDS:
            key = (message.name, ())
        if (known := self.found.get(key)) is None:
            self.found[key] = Found(message, dict(groups), place, text, place)
            return
        known.count += 1
        known.last = place


class Scanner:
    """Looks for messages in logs.

    Parameters
    ----------
    messages
        In order: of several that one line has, the first is told.
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

        Raises
        ------
        NotALogError
            If it is no text.
        """
        for block in blocks(source):
            for line, text in self._lines_of(block):
                self._look_at(Place(name, line), text, findings)
            looked = block.end - block.fresh
            findings.looked_bytes += looked
            advance(looked)

    def _lines_of(self, block: Block) -> Iterator[tuple[int, bytes]]:
        """Lines that have any text that is searched for, with their numbers."""
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
            yield line, data[begin:stop]

    def _look_at(self, place: Place, line: bytes, findings: Findings) -> None:
        text = line.decode("utf-8", "replace").strip()
        hits = {
            index for index, _, _ in self._all_texts.find_matches_as_indexes(line, overlapping=True)
        }
        if len(self._owners) in hits:
            findings.operators.add(text)
            hits.remove(len(self._owners))
        candidates = {message.name: message for index in hits for message in self._owners[index]}
        for message in sorted(candidates.values(), key=lambda one: self._ranks[one.name]):
            groups = message.groups_of(text)
            if groups is not None:
                findings.add(message, groups, place, text)
                return
