"""Text of other people: names of modules, files and arguments hold whatever somebody has put there."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_SLICE = re.compile(r"slice\((None|-?\d+), (None|-?\d+), (None|-?\d+)\)")
_MOST_CHARACTERS = 300
_MOST_AT_THE_END = 100


def printable(text: str) -> str:
    r"""The text on one line, as a terminal may get it and UTF-8 can hold it.

    Characters other than letters, marks, digits, signs and spaces (`str.isprintable`) become escapes: control
    characters, ends of lines, marks that turn the direction of writing, halves of surrogate pairs.

    >>> print(printable("a\x1b[31mred\nb"))
    a\x1b[31mred\nb
    """
    if text.isprintable():
        return text
    odd = {ord(one): _escaped(one) for one in set(text) if not one.isprintable()}
    return text.translate(odd)


def message(text: str) -> str:
    """Return a message on one readable line; a long one is cut in its middle, because its end tells the cure."""
    line = printable(text)
    if len(line) <= _MOST_CHARACTERS:
        return line
    return f"{line[: _MOST_CHARACTERS - _MOST_AT_THE_END - 5]} ... {line[-_MOST_AT_THE_END:]}"


def reason_of(error: Exception) -> str:
    """Return why a file could not be read or written: without number and path, which `str` adds to an `OSError`.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.yaml"))
    'No such file or directory'
    """
    return str(getattr(error, "strerror", None) or error)


def shell_line(words: Iterable[str]) -> str:
    r"""Words as one line for a shell that gives exactly them, control characters in the form of bash and zsh.

    >>> print(shell_line(["python", "train.py", "--name", "it's", "a\nb"]))
    python train.py --name 'it'"'"'s' $'a\x0ab'
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        one if one.isprintable() and one not in "\\'" else "".join(map(_BYTE.format, _utf8(one)))
        for one in word
    )
    return f"$'{''.join(escaped)}'"


def _utf8(character: str) -> bytes:
    return character.encode(
        "utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    )


_BYTE = "\\x{:02x}"


def factor_figure(factor: float) -> str:
    """Return how many times one number is another, with two significant digits, as every screen shows it.

    >>> [factor_figure(one) for one in (1.26, 9.96, 26.4, 172_513.0, 2.13e8, math.nan)]
    ['1.3', '10', '26', '170,000', '2.1e8', '-']
    """
    if math.isnan(factor):
        return "-"
    if math.isinf(factor):
        return "inf"
    rounded = float(f"{factor:.2g}")
    if 0 < abs(rounded) < _FEW or abs(rounded) >= _MANY:
        digits, _, exponent = f"{rounded:.1e}".partition("e")
        return f"{digits.removesuffix('.0')}e{int(exponent)}"
    return f"{rounded:g}" if abs(rounded) < 100 else f"{rounded:,.0f}"


_FEW, _MANY = 1e-3, 1e6
"""Beyond these, digits are no longer read at a glance."""


def times(factor: float) -> str:
    """Return `170,000 times`, for a sentence such as "170,000 times its noise floor"."""
    return f"{factor_figure(factor)} times"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """The first few names, and how many more there are.

    >>> listed(["fc1", "fc2", "fc3"], 2)
    'fc1, fc2 and 1 more'
    """
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def runs_of(numbers: Iterable[int]) -> list[str]:
    """Return ascending numbers, those that follow each other as a span.

    >>> runs_of([1, 2, 3, 7])
    ['1-3', '7']
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def spans(numbers: Iterable[int], shown: int = 8) -> str:
    """Return ascending numbers in short, as every screen shows steps and ranks.

    >>> spans([0, 1, 2, 7])
    '0-2, 7'
    """
    return listed(runs_of(numbers), shown)


def index_text(value: object) -> str | None:
    """Return a recorded argument as Python writes an index, None where it holds no slice.

    >>> index_text(["slice(None, None, None)", 0, "slice(1, None, 2)"])
    '[:, 0, 1::2]'
    """
    if isinstance(value, list):
        parts = [index_text(item) for item in value]
        if not any(parts):
            return None
        return f"[{', '.join(part or str(item) for part, item in zip(parts, value, strict=True))}]"
    found = _SLICE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    start, stop, step = ("" if part == "None" else part for part in found.groups())
    return f"{start}:{stop}" + (f":{step}" if step else "")


def told_apart(left: str, right: str, most: int = 40) -> tuple[str, str]:
    """Return two different texts, each cut to a number of characters that includes their first difference.

    >>> told_apart("a" * 60 + "b", "a" * 60 + "c", most=9)
    ('...aaaaab', '...aaaaac')
    """
    if left[:most] != right[:most] or left == right:
        return left[:most], right[:most]
    same = next(
        (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    begin = max(0, same - most // 2 - 1)
    first, second = (f"...{text[begin:]}"[:most] for text in (left, right))
    return first, second


def words_of(error: Exception) -> str:
    """Return the text of an error; "" if making it fails, as it may for a user's own class."""
    try:
        return str(error)
    except Exception:
        return ""


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """JSON values with every text in them changed, but for the keys of mappings.

    >>> with_texts({"a": ["b", 1]}, str.upper)
    {'a': ['B', 1]}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_texts(item, change) for item in value]
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    return value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
