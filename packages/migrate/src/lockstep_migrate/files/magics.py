"""The parts of a notebook cell that are no Python: `%magic`, `!command`, `name?`, other languages.

Such lines are masked, with text of the same length, so that the rest is Python with every character in its place.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_migrate.plan import Span

_CELL_MAGIC = re.compile(r"\s*%%(\S+)[^\n]*(?:\n|$)")
_LINE = re.compile(
    r"(?P<before>[ \t]*(?:[^\W\d][\w.,\[\] \t'\"]*=[ \t]*)?)(?P<magic>%%?[A-Za-z_][\w.]*|!{1,2}(?!=))(?P<rest>.*)",
)
_HELP = re.compile(r"[ \t]*(?:\?{1,2}[ \t]*[\w.*%]+|[\w.*%\[\]()'\"]+[ \t]*\?{1,2})[ \t;]*")
_BARE = re.compile(
    r"[ \t]*(?:pip|conda|mamba|cd|ls|mkdir|cat|cp|mv|rm|env|run|matplotlib|load_ext)[ \t]+\S"
)
"""Magics that a notebook also takes without their `%`; only where the line is no Python."""

_TIMED = re.compile(r"%(?:time|timeit|prun|memit|mprun|lprun)\b(?:[ \t]+-\w+(?:[ \t]+\d+)?)*[ \t]+")
_TOKEN = re.compile(
    r"#[^\n]*|(?i:[rbfut]{0,3})(?:'''|\"\"\"|'|\")|\\\r?\n|[\[\](){}]|\n|[^\W\d]\w*|.", re.DOTALL
)
_STRING_ENDS = {
    '"': re.compile(r'(?:[^\\\n"]|\\.)*"?', re.DOTALL),
    "'": re.compile(r"(?:[^\\\n']|\\.)*'?", re.DOTALL),
    '"""': re.compile(r'(?:[^\\"]|\\.|"(?!""))*(?:""")?', re.DOTALL),
    "'''": re.compile(r"(?:[^\\']|\\.|'(?!''))*(?:''')?", re.DOTALL),
}
_PYTHON_CELLS = frozenset(
    {"time", "timeit", "capture", "prun", "memit", "python", "python3", "px", "autopx"}
)
_SHELL_CELLS = frozenset({"bash", "sh", "shell", "script", "system", "sx", "!", "zsh"})
_SHELL_LINES = frozenset(
    {"!", "!!", "%env", "%set_env", "%run", "%pip", "%conda", "%system", "%sx", "%sc", "%cd"}
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One code cell taken apart.

    masked: The cell with everything but Python masked, as long as the cell itself; empty where none of it is Python.
    start: Where Python begins: behind a first line such as `%%time`, which has to stay the first.
    shell: Stretches that a shell reads.
    file: The name of the file that the cell writes (`%%writefile`), or nothing.
    language: What the cell is in, where it is neither Python nor shell.
    """

    masked: str = ""
    start: int = 0
    shell: tuple[Span, ...] = ()
    file: str = ""
    language: str = ""


def take_apart(code: str) -> Cell:
    """Find what in a code cell is Python and what is not."""
    magic = _CELL_MAGIC.match(code)
    if magic is None:
        return _python(code, 0)
    name, arguments = magic[1], magic[0].split()[1:]
    if name in _PYTHON_CELLS:
        return _python(code, magic.end())
    if name in {"writefile", "file"}:
        return Cell(start=magic.end(), file=arguments[-1] if arguments else "")
    if name in _SHELL_CELLS or (name == "script" and arguments[:1] and arguments[0].endswith("sh")):
        return Cell(shell=(Span(magic.end(), len(code)),))
    return Cell(start=magic.end(), language=name)


def _python(code: str, start: int) -> Cell:
    body = code[start:]
    if parses(body):
        return Cell(body, start)
    masked, shell, position = [], [], 0
    for line in _logical_lines(body):
        text, commands = _masked(body[line.start : line.end])
        masked += [body[position : line.start], text]
        shell += [command.moved(start + line.start) for command in commands]
        position = line.end
    return Cell("".join(masked) + body[position:], start, tuple(shell))


def parses(code: str) -> bool:
    """Whether text is Python."""
    return syntax_error(code) is None


def syntax_error(code: str) -> SyntaxError | None:
    """What keeps text from being Python; nothing where it is."""
    with warnings.catch_warnings():
        # Odd escapes and comparisons are the author's affair.
        warnings.simplefilter("ignore")
        try:
            ast.parse(code)
        except SyntaxError as error:
            return error
        except (ValueError, RecursionError, MemoryError) as error:
            return SyntaxError(str(error) or "nested too deeply")
    return None


def _masked(line: str) -> tuple[str, list[Span]]:
    """A logical line without its magic, and what of it a shell reads."""
    if _HELP.fullmatch(line.rstrip("\r\n")):
        return _blank(line), []
    if _is_bare(line):
        return _blank(line), [Span(0, len(line))]
    match = _LINE.match(line)
    if match is None or line[match.start("magic") :].startswith("%%"):
        return line, []
    timed = _TIMED.match(line, match.start("magic"))
    if timed and parses(line[timed.end() :].strip()):
        # `0;` in front keeps the statement where it is.
        return line[: timed.start()] + "0;".ljust(timed.end() - timed.start()) + line[
            timed.end() :
        ], []
    start = match.start("magic")
    shell = [Span(start, len(line))] if match["magic"] in _SHELL_LINES else []
    return line[:start] + _blank(line[start:]), shell


def _blank(line: str) -> str:
    """An expression as long as the line, whose indentation and line ends stay."""
    indent = len(line) - len(line.lstrip(" \t"))
    return line[:indent] + "0" + re.sub(r"[^\r\n]", " ", line[indent + 1 :])


def _logical_lines(code: str) -> Iterator[Span]:
    """The stretches at whose start a magic may stand: not inside brackets, strings or continued lines."""
    start, depth, position = 0, 0, 0
    while position < len(code):
        if position == start and _begins_magic(code, start):
            position = _magic_end(code, start)
            yield Span(start, position)
            start = position
            continue
        token = _TOKEN.match(code, position)
        assert token is not None
        text, position = token[0], token.end()
        if text[-1] in "'\"" and len(text) < 7:
            position = _string_end(code, token)
        elif text in {"(", "[", "{"}:
            depth += 1
        elif text in {")", "]", "}"}:
            depth = max(0, depth - 1)
        elif text == "\n" and depth == 0:
            start = position


def _begins_magic(code: str, start: int) -> bool:
    line = code[start : _line_end(code, start)].rstrip("\r\n")
    return bool(_HELP.fullmatch(line) or _LINE.match(line) or _is_bare(line))


def _is_bare(line: str) -> bool:
    return _BARE.match(line) is not None and not parses(line.strip())


def _magic_end(code: str, start: int) -> int:
    """Behind the line, and behind those that a backslash adds to it."""
    end = _line_end(code, start)
    while code[start:end].rstrip("\r\n").endswith("\\") and end < len(code):
        end = _line_end(code, end)
    return end


def _line_end(code: str, start: int) -> int:
    end = code.find("\n", start)
    return len(code) if end < 0 else end + 1


def _string_end(code: str, token: re.Match[str]) -> int:
    """Behind a string; one that does not end takes the rest of its line, or of the cell."""
    long = token[0].endswith(("'''", '"""'))
    end = _STRING_ENDS[token[0][-3:] if long else token[0][-1]].match(code, token.end())
    assert end is not None
    return end.end()
