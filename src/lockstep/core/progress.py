"""Report progress: workers call it, screens show it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the work, how many parts of it are done, and how many there are."""

CountedProgress = Callable[[int, int], None]
"""The same where what is worked on goes without saying."""


def unheard(what: str, done: int, total: int) -> None:
    """Progress that nobody hears of."""
