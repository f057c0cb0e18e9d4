"""Running a training's command under the recorder, where its recording is what a check looks at."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.recordings import Options, Recorded, run_recorded


def run_training(command: Sequence[str], place: Path, options: Options, **streams: Any) -> Recorded:
    """Run a command and record it.

    Raises UsageError if it is not there, cannot be started, or left nothing recorded.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    recorded = run_recorded(command, place, options, **streams)
    code, why_nothing = recorded.ended.code, recorded.ended.why_nothing
    if why_nothing:
        failed = f"the command ended with exit code {code}; " if code else ""
        raise UsageError(f"nothing was recorded: {failed}{why_nothing}")
    return recorded
