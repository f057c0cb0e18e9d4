"""`make prose`: print how many words of prose each page has and how it reads, as rates for 1 000 words.

A page a user reads should stay within LIMITS. Code, comments, figures, link targets and the tables that benchmarks
write are no prose.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"behind": 0.2, "what": 3.0}
"""The most uses of a word for 1 000 words of prose."""
YOU = 3.0
"""The fewest uses of *you* and *your* for 1 000 words."""
_NOT_PROSE = re.compile(
    r"<!-- ([\w-]+)(?: begin)? -->.*?<!-- (?:\1 end|/\1) -->|^```.*?^```|<!--.*?-->|`[^`]*`|(?<=\])\([^)]*\)",
    re.MULTILINE | re.DOTALL,
)


def words_of(text: str) -> list[str]:
    """Return the words of prose of a page in Markdown, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Za-z][\w'-]*", _NOT_PROSE.sub(" ", text))]


def rates(words: list[str]) -> dict[str, float]:
    """Return how often each measured word is used in 1 000 words."""
    counted = {name: words.count(name) for name in LIMITS}
    counted["you"] = sum(word in ("you", "your", "yours", "yourself") for word in words)
    return {name: 1000 * number / max(1, len(words)) for name, number in counted.items()}


def main() -> None:
    """Print the table, with a mark at each rate that is outside its limit."""
    total: list[str] = []
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        words = words_of(page.read_text(encoding="utf-8"))
        total += words
        print(_row(str(page.relative_to(ROOT)), words))
    print(_row("all", total))


def _row(name: str, words: list[str]) -> str:
    parts = []
    for word, rate in rates(words).items():
        outside = rate < YOU if word == "you" else rate > LIMITS[word]
        parts.append(f"{word} {rate:5.2f}{'*' if outside else ' '}")
    return f"{name:34}{len(words):6}  {'  '.join(parts)}"


if __name__ == "__main__":
    main()
