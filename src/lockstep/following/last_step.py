"""A small file in a recording by which a follower asks the training to end after a step."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.replacement import replacing

_NAME = ".last-step"
_NEVER = 1 << 53


@dataclass(frozen=True, slots=True)
class LastStep:
    """The step after which a training is to end; if it is past that step, it ends after its next one.

    step: Which; by default none: what was recorded was looked at, and the training may go on to its own end.
    whole: Patterns as of `--only`: of the last step these are recorded with whole tensors, and nothing else.
    into: The recording that they go to; "" where the step is recorded as those before.
    """

    step: int = _NEVER
    whole: tuple[str, ...] = ()
    into: str = ""


def ask_for_last_step(recording: Path, last: LastStep) -> None:
    """Ask each process that is recorded there to end. Raises OSError if that cannot be written."""
    with replacing(recording / _NAME) as aside:
        aside.write_text(json.dumps(dataclasses.asdict(last)), encoding="ascii")


def last_step_in(recording: Path) -> LastStep | None:
    """Return the requested last step, None if there is none."""
    try:
        values = json.loads((recording / _NAME).read_bytes())
        return LastStep(values["step"], tuple(values["whole"]), values["into"])
    except (OSError, ValueError):
        return None
