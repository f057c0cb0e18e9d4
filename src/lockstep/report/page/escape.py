"""Make text from a recording safe to show; the one place that does it.

Names, sources and messages were written by whoever wrote the training, or the file. In HTML they are text, never
markup; here they also lose what would lie to the reader: control characters and ANSI sequences, marks that turn the
direction of reading, and halves of surrogate pairs, which no UTF-8 file can hold. Each is spelled out.
"""

from __future__ import annotations

import html
import re

LONGEST = 240
"""Characters of a name in plain HTML; the data behind it keep all of them."""

_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls but tab and line feed, and so ANSI sequences
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # unseen, or changing the direction
    "\ud800-\udfff\ufff9-\ufffb]"  # halves of pairs; annotations
)


def visible(text: str) -> str:
    """The same text with every character spelled out that cannot be seen or changes how others are.

    Examples
    --------
    >>> visible("a\\x1b[31mb\\u202e")
    'a\\\\x1b[31mb\\\\u202e'
    """
    return _MISLEADING.sub(lambda found: ascii(found[0])[1:-1], text)


def shortened(text: str, longest: int = LONGEST) -> str:
    """Head and tail of a text that is longer than `longest`: the end of a path tells most."""
    if len(text) <= longest:
        return text
    head = longest // 3
    return f"{text[:head]}…{text[head + 1 - longest :]}"


def html_text(text: str, longest: int | None = LONGEST) -> str:
    """A text as it may stand between tags or in a quoted attribute.

    text: What is to be read.
    longest: Cut in the middle where it is longer; None for never, as for a command that is to be pasted.
    """
    shown = visible(text)
    return html.escape(shown if longest is None else shortened(shown, longest))
