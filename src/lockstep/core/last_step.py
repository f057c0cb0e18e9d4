"""The word by which whoever follows a training asks it to end behind a step: a small file in its recording."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.replacement import replacing

_NAME = ".last-step"


def ask_for_last_step(recording: Path, step: int) -> None:
    """Ask each process that is recorded there to end behind this step, or behind its next one if it is past it."""
    with replacing(recording / _NAME) as aside:
        aside.write_text(f"{step}\n", encoding="ascii")


def last_step_in(recording: Path) -> int | None:
    """The step that was asked for as the last one, None where none was."""
    try:
        return int((recording / _NAME).read_bytes())
    except (OSError, ValueError):
        return None
