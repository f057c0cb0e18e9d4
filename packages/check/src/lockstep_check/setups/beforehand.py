"""The set-up of a command before it has computed anything: it is run until its first backward."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.recordings import Options, Recorded
from lockstep_check.running import run_training


@contextmanager
def stopped_before_backward(
    command: Sequence[str], options: Options, folder: Path | None, **streams: Any
) -> Iterator[Recorded]:
    """Run a command to its first backward; gives what is known of its set-up by then.

    options: How the reference was recorded: what changes numbers, or which calls there are, is done in this run as
        well.
    folder: Where the recording is kept; None to drop it behind the block.
    streams: As `lockstep.launch.launch` takes them.

    Raises UsageError if the command cannot be started, or ended before it came to train.
    """
    asked = replace(
        options, steps="0", ranks="", max_bytes=None, exit_after=False, redact=False, before_backward=True
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as name:
        place = Path(name) / "candidate" if folder is None else folder.absolute()
        yield run_training(command, place, asked, **streams)
