"""Auditing a training while it runs: it is recorded a step at a time, and each step goes once it was looked at."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.launch import Ended, Event, Follow, StepUnreadable, WrittenStep, launch
from lockstep.recordings import Options
from lockstep.terminal import Progress, tell
from lockstep_audit.auditor import Auditor

_START_UP_S = 3.0
"""What starting the process that runs calls again is taken to cost, before it has been: it loads torch."""


def audit_command(
    auditor: Auditor,
    command: Sequence[str],
    options: Options,
    *,
    budget: float | None,
    told: Progress,
    **streams: Any,
) -> Ended:
    """Run a command to its end and audit the steps of its training as they come.

    options: What is recorded, with whole tensors.
    budget: Share of the training's time that auditing may cost it, as `Follow` has it.
    streams: As `lockstep.launch.launch` takes them.

    Raises UsageError if the command cannot be started.
    """

    def look(step: WrittenStep) -> None:
        auditor.open_recording()
        auditor.step(step.rank, step.number, told, name=step.name, may_go_on=step.may_go_on)

    def hear(event: Event) -> None:
        tell(event)
        if isinstance(event, StepUnreadable):
            auditor.tally.not_judged["(a step)", event.reason] += 1

    auditor.tally.has_budget = budget is not None
    follow = Follow(look, budget=budget, prepare=auditor.prepare, prepare_s=_START_UP_S)
    with tempfile.TemporaryDirectory(
        prefix="lockstep-audit-", ignore_cleanup_errors=True
    ) as temporary:
        directory = Path(temporary) / "recording"
        ended = launch(command, directory, options, follow=follow, hear=hear, **streams)
    auditor.tally.left_out, auditor.tally.trained = ended.left_out, ended.trained
    return ended


def own_streams(*, as_json: bool) -> dict[str, Any]:
    """Where the command's output goes: not among JSON."""
    return {"stdout": sys.stderr} if as_json else {}
