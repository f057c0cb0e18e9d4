"""Text of other people: names of modules, files and arguments hold whatever somebody has put there."""

from __future__ import annotations


def encodable(text: str) -> str:
    r"""The text as UTF-8 can hold it: halves of surrogate pairs, as in names of files in other encodings, as escapes.

    >>> print(encodable("a\ud800b"))
    a\ud800b
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
