"""Shell text taken apart: the words of every command, comments and here-documents, each with its place.

It reads what people write rather than what a shell would accept: Makefiles and Dockerfiles pass through the same
reader, and a quote that never ends counts as a plain character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.wings.migrate.plan import Span

_PLAIN = re.compile(r"[^\s\\'\"`$;&|<>()#{}]+")
_QUOTED_PLAIN = re.compile(r'[^\\"`$}]+')
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.]*))")
_REDIRECT = re.compile(r"\d*(?:<<<|[<>]{1,2}[&|]?|&>>?)")
_ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_CONTINUATION = re.compile(r"\\\r?\n")
_MOST_REPAIRS = 8
_MOST_SEARCHES = 100
"""Searches for an end that is not there; hostile text would otherwise take the square of its length."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: the spans of its words, assignments and redirected files among them."""

    words: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heredoc:
    """The lines between `<<END` and `END`, and the command that reads them."""

    body: Span
    words: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """A text taken apart. Commands inside `$(...)` and backquotes stand in the list by themselves."""

    commands: tuple[Command, ...]
    comments: tuple[Span, ...]
    heredocs: tuple[Heredoc, ...]


def take_apart(text: str) -> Script:
    """Find commands, comments and here-documents of a shell text."""
    literal: set[int] = set()
    while True:
        reader = _Reader(text, frozenset(literal))
        unclosed = reader.run()
        if unclosed is None or len(literal) >= _MOST_REPAIRS:
            return reader.script()
        literal.add(unclosed)


@dataclass(slots=True)
class _Frame:
    """Something that is open: `close` ends it; `start` is where it began."""

    close: str
    start: int
    commands: bool
    word: int = -1
    words: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class _Reader:
    text: str
    literal: frozenset[int]
    frames: list[_Frame] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    comments: list[Span] = field(default_factory=list)
    heredocs: list[Heredoc] = field(default_factory=list)
    pending: list[tuple[str, bool, _Frame, list[Span]]] = field(default_factory=list)
    no_more_quotes: bool = False
    vain_searches: int = 0

    def run(self) -> int | None:
        """Read all; the place of the first thing left open, if any."""
        self.frames = [_Frame("", 0, commands=True)]
        position = 0
        while position < len(self.text):
            frame = self.frames[-1]
            step = self._in_commands if frame.commands else self._in_quotes
            position = step(frame, position)
        unclosed = self.frames[1].start if len(self.frames) > 1 else None
        while self.frames:
            self._end_command(self.frames.pop(), len(self.text))
        return unclosed

    def script(self) -> Script:
        """What was read, commands in the order of their first words."""
        commands = sorted(self.commands, key=lambda command: command.words[0])
        return Script(tuple(commands), tuple(self.comments), tuple(self.heredocs))

    def _in_quotes(self, frame: _Frame, position: int) -> int:
        plain = _QUOTED_PLAIN.match(self.text, position)
        if plain:
            return plain.end()
        if self.text[position] == frame.close:
            self.frames.pop()
            return position + 1
        if self.text[position] == "\\":
            return position + 2
        if frame.close == "}" and self.text[position] == '"' and position not in self.literal:
            return self._open('"', position, 1, commands=False)
        return self._expansion(position) or position + 1

    def _in_commands(self, frame: _Frame, position: int) -> int:
        plain = _PLAIN.match(self.text, position)
        if plain:
            self._begin_word(frame, position)
            return plain.end()
        character = self.text[position]
        if character == frame.close:
            self._end_command(frame, position)
            self.frames.pop()
            return position + 1
        if character.isspace():
            return self._space(frame, position)
        if character in ";|()&<>":
            return self._operator(frame, position, character)
        if character == "#" and frame.word < 0:
            end = self._line_end(position)
            self.comments.append(Span(position, end))
            return end
        if character == "\\":
            return self._backslash(frame, position)
        self._begin_word(frame, position)
        return self._word_character(position, character)

    def _space(self, frame: _Frame, position: int) -> int:
        if self.text[position] != "\n":
            self._end_word(frame, position)
            return position + 1
        self._end_command(frame, position)
        return self._bodies(position + 1)

    def _backslash(self, frame: _Frame, position: int) -> int:
        continuation = _CONTINUATION.match(self.text, position)
        if continuation:
            self._end_word(frame, position)
            return continuation.end()
        self._begin_word(frame, position)
        return position + 2

    def _operator(self, frame: _Frame, position: int, character: str) -> int:
        heredoc = _HEREDOC.match(self.text, position)
        if heredoc:
            self._end_word(frame, position)
            name = heredoc[2] or heredoc[3] or heredoc[4]
            self.pending.append((name, bool(heredoc[1]), frame, frame.words))
            return heredoc.end()
        redirect = _REDIRECT.match(self.text, position)
        if redirect:
            self._end_word(frame, position)
            return redirect.end()
        self._end_command(frame, position)
        if character == "(" and position not in self.literal:
            return self._open(")", position, 1, commands=True)
        return position + 1

    def _word_character(self, position: int, character: str) -> int:
        if character == "'" and position not in self.literal and not self.no_more_quotes:
            end = self.text.find("'", position + 1)
            self.no_more_quotes = end < 0
            return end + 1 if end >= 0 else position + 1
        if character == '"' and position not in self.literal:
            return self._open('"', position, 1, commands=False)
        if self.text.startswith("$'", position) and self.vain_searches < _MOST_SEARCHES:
            quoted = _ANSI_QUOTED.match(self.text, position)
            if quoted:
                return quoted.end()
            self.vain_searches += 1
        return self._expansion(position) or position + 1

    def _expansion(self, position: int) -> int:
        """Open what begins here: `$(`, `${` or a backquote; 0 where nothing does."""
        if position in self.literal:
            return 0
        if self.text.startswith("$(", position):
            return self._open(")", position, 2, commands=True)
        if self.text.startswith("${", position):
            return self._open("}", position, 2, commands=False)
        if self.text[position] == "`":
            if any(frame.close == "`" for frame in self.frames):
                return self._close_backquote(position)
            return self._open("`", position, 1, commands=True)
        return 0

    def _close_backquote(self, position: int) -> int:
        while True:
            frame = self.frames.pop()
            if frame.commands:
                self._end_command(frame, position)
            if frame.close == "`":
                return position + 1

    def _open(self, close: str, position: int, length: int, *, commands: bool) -> int:
        self.frames.append(_Frame(close, position, commands))
        return position + length

    def _bodies(self, position: int) -> int:
        """Pass over the here-documents that begin on this line."""
        for name, indented, _, words in self.pending:
            end = self._terminator(name, indented, position)
            if end is not None:
                self.heredocs.append(Heredoc(Span(position, end[0]), tuple(words)))
                position = end[1]
        self.pending.clear()
        return position

    def _terminator(self, name: str, indented: bool, position: int) -> tuple[int, int] | None:
        start = r"^[ \t]*" if indented else "^"
        pattern = re.compile(f"{start}{re.escape(name)}[ \\t\\r]*$", re.MULTILINE)
        if self.vain_searches >= _MOST_SEARCHES:
            return None
        match = pattern.search(self.text, position)
        self.vain_searches += match is None
        return (match.start(), match.end()) if match else None

    def _line_end(self, position: int) -> int:
        end = self.text.find("\n", position)
        return len(self.text) if end < 0 else end

    def _begin_word(self, frame: _Frame, position: int) -> None:
        if frame.word < 0:
            frame.word = position

    def _end_word(self, frame: _Frame, position: int) -> None:
        if frame.word >= 0:
            frame.words.append(Span(frame.word, position))
            frame.word = -1

    def _end_command(self, frame: _Frame, position: int) -> None:
        self._end_word(frame, position)
        if frame.words:
            self.commands.append(Command(tuple(frame.words)))
            frame.words = []


def json_words(text: str, span: Span) -> Iterator[Span]:
    """The strings of a Dockerfile's `["program", "argument"]`, without their quotes."""
    for match in re.finditer(r'"((?:[^"\\\n]|\\.)*)"', text[span.start : span.end]):
        yield Span(*match.span(1)).moved(span.start)
