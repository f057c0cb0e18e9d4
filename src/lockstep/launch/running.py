"""Running a command under the recorder to its end."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lockstep.capture.process.environment import (
    TRACE_VARIABLE,
    Reached,
    environment_for,
    take_traces,
    trace_of,
)
from lockstep.core.errors import UsageError
from lockstep.core.manifest import Options
from lockstep.core.posix import check_posix
from lockstep.core.selection import StepSelection
from lockstep.following.live_runs import announced
from lockstep.launch.command import Command
from lockstep.launch.descendants import started_with
from lockstep.launch.events import Ended, Event, Started
from lockstep.launch.follow import Follow, WhenFull
from lockstep.launch.follower import Follower
from lockstep.launch.lookout import Lookout
from lockstep.launch.reasons import reason_for_nothing, unseen_processes
from lockstep.plugins import frameworks
from lockstep.store.directory import RunDirectory
from lockstep.store.leftovers import drop_untrained, sweep
from lockstep.store.reader import open_recording


def unheard(event: Event) -> None:
    """Events that nobody hears of."""


def launch(
    command: Sequence[str],
    directory: Path,
    options: Options,
    *,
    force: bool = False,
    adjust: Callable[[dict[str, str]], dict[str, str]] = dict,
    follow: Follow | None = None,
    hear: Callable[[Event], None] = unheard,
    **streams: Any,
) -> Ended:
    """Run a command to its end and record it; signals and output pass through.

    Parameters
    ----------
    command
        The command.
    directory
        Where the recording goes, an absolute path.
    options
        The options of the recording.
    force
        Whether a recording that is there is replaced.
    adjust
        Changes the command's environment.
    follow
        How steps are looked at while it runs; each goes then, and no recording is left. None to keep them.
    hear
        Is given each event, one at a time, from several threads.
    streams
        Its `cwd`, `stdin`, `stdout` and `stderr`, as `subprocess.Popen` takes them; this process's by default.

    Returns
    -------
    Ended
        The last event, which is also heard.

    Raises
    ------
    UsageError
        If the command cannot be started, or the system is none of POSIX.
    OutputExistsError
        If the directory is taken or cannot be written.
    """
    check_posix("running a training")
    hear, options = _one_at_a_time(hear), _options_for(options, follow)
    run = RunDirectory.create(directory, list(command), options, force=force)
    try:
        process = Command(
            list(command), adjust(environment_for(directory, options, _arming())), **streams
        )
    except OSError as error:
        run.discard()
        reason = error.strerror or error
        raise UsageError(f"{command[0]}: the command cannot be started ({reason})") from error
    run.started()
    hear(Started(process.number, str(directory)))
    with ExitStack() as around:
        if follow is not None:
            around.enter_context(announced(directory, [] if options.redact else command))
        follower = around.enter_context(_watched(directory, process.number, options, follow, hear))
        code = process.wait()
    ended = _concluded(
        run, code, options, has_seen_a_step=follower is not None and follower.has_seen_a_step
    )
    hear(ended)
    return ended


def _arming() -> dict[str, str]:
    """What arms a process that imports a framework other than PyTorch, by the root module of that."""
    return {framework.module: framework.arming for framework in frameworks()}


def is_left_running(directory: Path) -> bool:
    """Return whether a process of a command that has ended goes on, and may still train into its recording."""
    return bool(started_with(TRACE_VARIABLE, str(trace_of(directory))))


def _options_for(options: Options, follow: Follow | None) -> Options:
    if follow is None:
        return options
    return dataclasses.replace(
        options,
        apart=True,
        apart_steps=follow.waiting_steps,
        apart_waits=follow.when_full is WhenFull.WAIT,
        apart_share=follow.recording_share,
        ends_when_asked=follow.may_end,
    )


def _one_at_a_time(hear: Callable[[Event], None]) -> Callable[[Event], None]:
    hearing = threading.Lock()

    def hear_one(event: Event) -> None:
        with hearing:
            hear(event)

    return hear_one


@contextmanager
def _watched(
    directory: Path,
    process: int,
    options: Options,
    follow: Follow | None,
    hear: Callable[[Event], None],
) -> Iterator[Follower | None]:
    """Look at what the command does until the block, in which it ends, is left."""
    lookout = Lookout(directory, process, hear)
    follower = None
    if follow is not None:
        follower = Follower(directory, follow, StepSelection.parse(options.steps), hear)
        follower.start()
    lookout.start()
    try:
        yield follower
    finally:
        lookout.finish()
        if follower is not None:
            follower.finish()


def _concluded(run: RunDirectory, code: int, options: Options, *, has_seen_a_step: bool) -> Ended:
    """Close the recording of a command that has ended."""
    traces = take_traces(run.path)
    run.manifest.not_seen = unseen_processes(traces)
    run.finish(exit_code=code)
    sweep(run.path)
    drop_untrained(run.path, traces.training)
    why_nothing = ""
    if not has_seen_a_step:
        recording = open_recording(run.path)
        why_nothing = reason_for_nothing(recording, traces, options)
    as_asked = traces.reached is Reached.OTHER_RANK
    return Ended(code, why_nothing, as_asked, traces.left_out, traces.trained, traces.unwritten)
