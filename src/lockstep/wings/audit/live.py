"""Auditing a training while it runs: it is recorded a step at a time, and each step goes once it was looked at."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.capture.environment import Traces, environment_for, take_traces
from lockstep.cli.command import Command
from lockstep.cli.record import reason_for_nothing
from lockstep.core.errors import RecordingError, UsageError
from lockstep.core.manifest import Options
from lockstep.core.progress import Progress
from lockstep.store.directory import RunDirectory
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.reader import RankRecording, open_recording
from lockstep.store.schema import MANIFEST
from lockstep.wings.audit.auditor import Auditor

_LOOKS_EVERY_S = 0.1

_START_UP_S = 3.0
"""What starting the process that runs calls again is taken to cost, before it has been: it loads torch."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a training that was audited ended: its exit code as a shell has it, and why nothing was seen, or ""."""

    code: int
    why_nothing: str


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

    Parameters
    ----------
    options
        What is recorded; `apart`, with whole tensors.
    budget
        Share of the command's time that auditing may take; None for as much as there are steps.
    streams
        As `lockstep.cli.command.Command` takes them.

    Raises
    ------
    UsageError
        If the command cannot be started.
    """
    with tempfile.TemporaryDirectory(
        prefix="lockstep-audit-", ignore_cleanup_errors=True
    ) as temporary:
        directory = Path(temporary) / "recording"
        run = RunDirectory.create(directory, list(command), options, force=False)
        follower = _Follower(auditor, directory, budget, told)
        try:
            process = Command(list(command), environment_for(directory, options), **streams)
        except OSError as error:
            run.discard()
            reason = error.strerror or error
            raise UsageError(f"{command[0]}: the command cannot be started ({reason})") from error
        run.started()
        follower.start()
        try:
            code = process.wait()
        finally:
            follower.finish()
        traces = take_traces(directory)
        run.finish(exit_code=code)
        auditor.tally.left_out = traces.left_out
        auditor.tally.trained = traces.trained
        return Ended(code, _why_nothing(directory, traces, options, follower))


def _why_nothing(directory: Path, traces: Traces, options: Options, follower: _Follower) -> str:
    if follower.has_seen_a_step:
        return ""
    return reason_for_nothing(open_recording(directory), traces.reached, traces.detail, options)


class _Follower:
    """Audits steps as they are written, on a thread of its own, and takes them away.

    The recorder waits for that: it leaves out the steps that come while the last one is still there.

    Attributes
    ----------
    has_seen_a_step
        Whether anything was recorded.
    """

    def __init__(
        self, auditor: Auditor, directory: Path, budget: float | None, told: Progress
    ) -> None:
        self._auditor, self._directory = auditor, directory
        self._budget, self._told = budget, told
        self.has_seen_a_step = False
        self._done: list[Path] = []
        self._auditing_s, self._began_s = 0.0, time.monotonic()
        self._at_work_since_s: float | None = None
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="lockstep-audit", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._began_s = time.monotonic()
        self._thread.start()

    def finish(self) -> None:
        """The command has ended: audit what is left, and stop.

        Raises
        ------
        BaseException
            What ended the thread, if something did.
        """
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            self._wait_for_start_up()
            with self._at_work():
                if not self._ended.is_set():
                    self._auditor.prepare()
            while not self._ended.wait(_LOOKS_EVERY_S):
                self._look(only_whole=True)
                if self._may_go_on:
                    self._clear()
            self._look(only_whole=False)
        except BaseException as error:
            self._failure = error

    def _look(self, *, only_whole: bool) -> None:
        for path in sorted(self._directory.glob("rank*")):
            if path in self._done or (only_whole and not _is_closed(path)):
                continue
            with self._at_work():
                self._audit(path)
            self._done.append(path)
            if self._may_go_on:
                self._clear()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Count the time that auditing takes, its start-up too."""
        self._at_work_since_s = time.monotonic()
        try:
            yield
        finally:
            self._count()
            self._at_work_since_s = None

    def _count(self) -> None:
        now_s = time.monotonic()
        if self._at_work_since_s is not None:
            self._auditing_s += now_s - self._at_work_since_s
            self._at_work_since_s = now_s

    @property
    def _may_go_on(self) -> bool:
        """Whether auditing has not taken more than its share."""
        if self._budget is None:
            return True
        return self._auditing_s <= self._budget * (time.monotonic() - self._began_s)

    def _wait_for_start_up(self) -> None:
        """Until the share of the time covers what starting to run calls again takes, or the training has ended."""
        while self._budget is not None and not self._ended.is_set():
            if self._budget * (time.monotonic() - self._began_s) >= _START_UP_S:
                return
            self._ended.wait(_LOOKS_EVERY_S)

    def _its_turn(self) -> bool:
        """Wait until the training has gone on for so long that another call fits; False once it has ended before."""
        self._count()
        while not self._may_go_on:
            if self._ended.wait(_LOOKS_EVERY_S):
                return False
        if self._at_work_since_s is not None:
            self._at_work_since_s = time.monotonic()
        return True

    def _clear(self) -> None:
        """Take away what was audited: the recorder goes on."""
        for path in self._done:
            aside = path.with_name(f".{path.name}.audited")
            with suppress(FileNotFoundError):
                path.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        self._done.clear()

    def _audit(self, path: Path) -> None:
        name = path.name.partition("-")[0]
        try:
            self._auditor.open_recording()
            rank = RankRecording(path)
            for number in rank.steps:
                turn = None if self._budget is None else self._its_turn
                self._auditor.step(rank, number, self._told, name=name, may_go_on=turn)
                self.has_seen_a_step = True
            rank.close_tensors()
        except RecordingError as error:  # the process was killed as it wrote
            self._auditor.tally.not_judged["(a step)", str(error)] += 1


def _is_closed(path: Path) -> bool:
    """Whether a step was written to its end."""
    try:
        manifest = values_of(read_manifest(path / MANIFEST))
    except (RecordingError, ValueError, OSError):
        return False
    return isinstance(manifest, dict) and manifest.get("state") == "complete"


def own_streams(*, as_json: bool) -> dict[str, Any]:
    """Where the command's output goes: not among JSON."""
    return {"stdout": sys.stderr} if as_json else {}
