"""How far work has come: what is called by whoever works, and shown by whoever has a screen."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is worked on now, how many parts of it are done, and how many there are."""

CountedProgress = Callable[[int, int], None]
"""The same where what is worked on goes without saying."""


def unheard(what: str, done: int, total: int) -> None:
    """Progress that nobody hears of."""
