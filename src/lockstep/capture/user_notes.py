"""Print notes to the user beside the training's output."""

from __future__ import annotations

import sys

from lockstep.core.text import message


def warn(sentence: str) -> None:
    """Say what the user should know."""
    sys.stderr.write(f"lockstep: {message(sentence)}\n")
