"""The values of settings files with their places: YAML, JSON, TOML, INI and lists of requirements.

Files are taken apart by their characters, so that a value can be shown where it stands; one that is not valid is still
read as far as its lines allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from lockstep.wings.migrate.plan import Span

_YAML_CHARACTERS = 1 << 18
"""A longer YAML file is read line by line: the scanner takes seconds for it."""

_DEEPEST = 200

_OPENING = (
    yaml.BlockMappingStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.FlowSequenceStartToken,
)
_CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)

# A string that does not end takes the rest of its line, or of the text: a pattern that fails there is tried again from
# every quote, which takes the square of the length.
_JSON_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*(?:"|\\?(?=\n)|\\?\Z)|//[^\n]*')
_TOML_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*(?:"""|\\?\Z)|\'\'\'(?:[^\']|\'(?!\'\'))*(?:\'\'\'|\Z)'
    r'|"(?:[^"\\\n]|\\[^\n])*(?:"|\\?(?=\n)|\\?\Z)|\'[^\'\n]*(?:\'|(?=\n)|\Z)|#[^\n]*',
    re.DOTALL,
)
_TOML_BARE = re.compile(r"(?<![\w.-])[\w.-]+(?=\s*[=\]])")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_INI_LINE = re.compile(
    r"(?P<indent>[ \t]*)(?:(?P<key>[^\s=:#;\[][^=:\n]*)[=:][ \t]*)?(?P<value>.*)"
)
_YAML_LINE = re.compile(
    r"[ \t]*(?:- +)*(?:(?P<quote>['\"]?)(?P<key>[^\s'\"#:{}\[\],][^'\"#:]*)(?P=quote)[ \t]*:(?=\s|$))?"
    r"[ \t]*(?P<value>.*)"
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value, or one key.

    Parameters
    ----------
    span
        Its characters, without quotes.
    key
        The key that it belongs to, or in whose list it stands; empty where there is none.
    is_key
        Whether it is a key itself.
    is_comment
        Whether it is a comment.
    """

    span: Span
    key: str = ""
    is_key: bool = False
    is_comment: bool = False


def yaml_scalars(text: str) -> Iterator[Scalar]:
    """Keys, values and comments of YAML, of several documents and of templates too."""
    if len(text) > _YAML_CHARACTERS or _is_deep(text):
        yield from _yaml_lines(text)
        return
    try:
        found = list(_yaml_tokens(text))
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError):
        yield from _yaml_lines(text)
        return
    yield from found
    yield from _yaml_comments(text, [scalar.span for scalar in found])


def _is_deep(text: str) -> bool:
    """Whether flow style or lists nest so deeply that the scanner would take the square of the depth."""
    depth = deepest = 0
    for match in re.finditer(r"[\[{]|[\]}]", text):
        depth = depth + 1 if match[0] in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest > _DEEPEST or re.search(rf"(?:[-?] ){{{_DEEPEST}}}", text) is not None


def _yaml_tokens(text: str) -> Iterator[Scalar]:
    keys: list[str] = [""]
    is_key = False
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, _OPENING):
            keys.append(keys[-1])
        elif isinstance(token, _CLOSING):
            if len(keys) == 1:
                raise ValueError("a bracket closes what is not open")
            keys.pop()
        elif isinstance(token, yaml.KeyToken):
            is_key = True
        elif isinstance(token, yaml.ValueToken):
            is_key = False
        elif isinstance(token, yaml.ScalarToken):
            span = _without_quotes(Span(token.start_mark.index, token.end_mark.index), token.style)
            yield Scalar(span, "" if is_key else keys[-1], is_key)
            if is_key:
                keys[-1] = token.value
            is_key = False
    if len(keys) > 1:
        raise ValueError("a list or mapping does not end")


def _without_quotes(span: Span, style: str | None) -> Span:
    return Span(span.start + 1, span.end - 1) if style in {"'", '"'} else span


def _yaml_comments(text: str, spans: list[Span]) -> Iterator[Scalar]:
    """`#` at the start of a line or behind a blank, outside of every value."""
    ordered, place = sorted(spans), 0
    for match in re.finditer(r"(?:^|(?<=[ \t]))#[^\n]*", text, re.MULTILINE):
        while place < len(ordered) and ordered[place].end <= match.start():
            place += 1
        if place == len(ordered) or ordered[place].start > match.start():
            yield Scalar(Span(*match.span()), is_comment=True)


def _yaml_lines(text: str) -> Iterator[Scalar]:
    """The same, line by line, for what the scanner does not take."""
    for line in _LINE.finditer(text):
        match = _YAML_LINE.match(text, line.start(), line.end())
        if match is None:
            continue
        if match["key"]:
            yield Scalar(Span(*match.span("key")), is_key=True)
        yield from _value_and_comment(text, Span(*match.span("value")), match["key"] or "", "#")


def json_scalars(text: str) -> Iterator[Scalar]:
    """Keys and strings of JSON, and comments where a tool allows them."""
    key = ""
    for match in _JSON_TOKEN.finditer(text):
        if match[0][0] != '"':
            yield Scalar(Span(*match.span()), is_comment=True)
            continue
        span = _inside(match, 1)
        if re.compile(r"\s*:").match(text, match.end()):
            key = text[span.start : span.end]
            yield Scalar(span, is_key=True)
        else:
            yield Scalar(span, key)


def _inside(match: re.Match[str], width: int) -> Span:
    """A string without its quotes, the last of which may be missing."""
    start = match.start() + width
    ended = match.end() - width >= start and match[0].endswith(match[0][0])
    return Span(start, match.end() - width if ended else max(start, match.end()))


def toml_scalars(text: str) -> Iterator[Scalar]:
    """Keys, strings and comments of TOML; tables count as keys."""
    position, key = 0, ""
    for match in _TOML_TOKEN.finditer(text):
        for bare in _TOML_BARE.finditer(text[position : match.start()]):
            span = Span(*bare.span()).moved(position)
            key = text[span.start : span.end]
            yield Scalar(span, is_key=True)
        position = match.end()
        if match[0][0] == "#":
            yield Scalar(Span(*match.span()), is_comment=True)
            continue
        width = 3 if match[0][:3] in {'"""', "'''"} else 1
        span = _inside(match, width)
        is_key = _is_toml_key(text, match)
        key = text[span.start : span.end] if is_key else key
        yield Scalar(span, "" if is_key else key, is_key)
    for bare in _TOML_BARE.finditer(text[position:]):
        yield Scalar(Span(*bare.span()).moved(position), is_key=True)


def _is_toml_key(text: str, match: re.Match[str]) -> bool:
    """Whether a string is a key: of a value, a part of a dotted key, or in the head of a table."""
    if re.compile(r"[ \t]*[=.]").match(text, match.end()):
        return True
    before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
    head = re.compile(r"[ \t]*\]{1,2}[ \t\r]*(?:#|\n|\Z)").match(text, match.end())
    return head is not None and re.fullmatch(r"\s*\[{1,2}[\w.\s\"'-]*", before) is not None


def ini_scalars(text: str) -> Iterator[Scalar]:
    """Keys, values and comments of INI files; an indented line goes on with the value before it."""
    key = ""
    for line in _LINE.finditer(text):
        match = _INI_LINE.match(text, line.start(), line.end())
        content = text[line.start() : line.end()].strip()
        if match is None or not content:
            continue
        if content.startswith("["):
            yield Scalar(_stripped(text, Span(*line.span())), is_key=True)
        elif match["key"] and not (match["indent"] and key):
            key = match["key"].strip()
            yield Scalar(_stripped(text, Span(*match.span("key"))), is_key=True)
            yield from _value_and_comment(text, Span(*match.span("value")), key, "#;")
        else:
            yield from _value_and_comment(text, Span(*line.span()), key, "#;")


def requirement_scalars(text: str) -> Iterator[Scalar]:
    """The lines of a list of requirements, and its comments."""
    for line in _LINE.finditer(text):
        yield from _value_and_comment(text, Span(*line.span()), "", "#")


def _value_and_comment(text: str, span: Span, key: str, marks: str) -> Iterator[Scalar]:
    """A value without its quotes, and the comment behind it."""
    comment = re.compile(rf"(?:^|(?<=\s))[{marks}]").search(text[span.start : span.end])
    end = span.start + comment.start() if comment else span.end
    value = _stripped(text, Span(span.start, end))
    raw = text[value.start : value.end]
    if len(raw) > 1 and raw[0] in "'\"" and raw[-1] == raw[0]:
        value = Span(value.start + 1, value.end - 1)
    if value.start < value.end:
        yield Scalar(value, key)
    if comment:
        yield Scalar(_stripped(text, Span(end, span.end)), is_comment=True)


def _stripped(text: str, span: Span) -> Span:
    raw = text[span.start : span.end]
    start = span.start + len(raw) - len(raw.lstrip())
    return Span(start, max(start, span.start + len(raw.rstrip())))
