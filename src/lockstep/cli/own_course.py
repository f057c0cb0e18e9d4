"""`record --keep-course`: the candidate trains once more, on its own course, after its windows were recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.notices import say, tell
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.manifest import Options
from lockstep.core.text import shell_line
from lockstep.launch import launch
from lockstep.store.kept_windows import kept_windows
from lockstep.store.reader import Recording, open_recording
from lockstep.store.step_log import read_step_log
from lockstep.store.urls import url_of


def course_place(directory: Path, source: Path | None, options: Options, *, force: bool) -> Path:
    """Return where the training on its own course is recorded, beside its windows.

    Raises UsageError if no window sets a state, or nothing would be left to train. Raises OutputExistsError if
    something is there.
    """
    if source is None:
        raise UsageError("--keep-course: no state is set; give --start-from too, or leave it out")
    if options.exit_after or url_of(directory):
        other = "--exit-after" if options.exit_after else f"the URL {directory}"
        raise UsageError(
            f"--keep-course trains to the end and records in two folders: leave out {other}"
        )
    place = directory.with_name(f"{directory.name}-course")
    if place.exists() and not force:
        raise OutputExistsError(f"{place}: exists already; give another directory, or --force")
    return place


def record_own_course(
    command: Sequence[str], windows: Recording, place: Path, source: Path, *, force: bool
) -> int:
    """Train once more, from the start, without a state of the reference; return the exit code of the command.

    command: What to run.
    windows: The recording of the candidate's windows.
    place: Where the training is recorded: its first steps, its step log and its end.
    source: The reference.
    """
    kept = kept_windows(open_recording(source))
    options = dataclasses.replace(
        windows.manifest.options,
        steps=kept.steps.partition(",")[0], states_at="", set_from="", inputs_of="",
        course_of=str(windows.path.absolute()), exit_after=False, step_log=True,
    )  # fmt: skip
    say("trains once more, on its own course")
    ended = launch(command, place.absolute(), options, force=force, hear=tell)
    if ended.why_nothing:
        say(f"nothing was recorded of that: {ended.why_nothing}")
        return ended.code
    if _begins_elsewhere(windows, open_recording(place)):
        say(
            "it did not begin as the run before did. Does the script resume from files of an earlier run? Then remove"
            " these, and record it by itself"
        )
    say(
        f"recorded its own course in {place}: {shell_line(['lockstep', 'compare', str(source), str(place)])}"
    )
    return ended.code


def _begins_elsewhere(windows: Recording, course: Recording) -> bool:
    """Whether a rank's first loss is not that of the first run, which had begun where the reference did."""
    for name, rank in windows.ranks.items():
        own = course.ranks.get(name)
        logs = [None if one is None else read_step_log(one.path) for one in (rank, own)]
        first = [one.rows[0] for one in logs if one is not None and one.rows]
        began_alike = any(one.step == 0 and one.distance == 0.0 for one in rank.manifest.windows)
        if began_alike and len(first) == 2 and repr(first[0].loss) != repr(first[1].loss):
            return True
    return False
