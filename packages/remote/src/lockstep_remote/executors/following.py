"""Follow a job of any job system from its submission to its end: output, reasons for waiting, Ctrl-C, exit code."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

from lockstep.errors import ExitCode, LockstepError, OutputExistsError, UsageError
from lockstep.plugin import Elsewhere, PathWord, Use
from lockstep.terminal import say
from lockstep_remote.bringing import print_bytes
from lockstep_remote.hookspecs import Executor, JobPhase, JobState, JobWork, SubmittedJob

LOOKS_EVERY_S = 0.5
LATE_S = 10.0
"""How long a file that a job wrote may take to be seen here, on a shared file system that caches (NFS: `acregmax`)."""
T = TypeVar("T")


class JobError(LockstepError):
    """A job cannot be submitted, or ended without the exit code of its verb."""


def run_as_job(asked: Elsewhere, executor: Executor, options: Mapping[str, str]) -> int:
    """Run a verb as a job to its end; returns the verb's exit code.

    Raises JobError if the system refuses the job or ends it, or what the job wrote is not here. Raises UsageError if
    the job could not read a path, or an option is none of the system's. Raises OutputExistsError if what it writes is
    here already.
    """
    words = _words(asked, executor)
    folder = Path.cwd()
    files = Path(tempfile.mkdtemp(prefix=".lockstep-job-", dir=folder))
    (files / ".gitignore").write_text("*\n", encoding="ascii")
    try:
        job = executor.submit(JobWork(words, options, folder, files))
    except BaseException:
        shutil.rmtree(files, ignore_errors=True)
        raise
    say(f"{executor.name}: job {job.key} is submitted")
    following = _Following(executor.name, job)
    state = following.to_its_end()
    if state is None:
        say(
            f"{executor.name}: job {job.key} goes on; {job.ends_by} ends it, and what it prints is in {files}"
            if executor.shares_files
            else f"{executor.name}: job {job.key} goes on; {job.ends_by} ends it"
        )
        return ExitCode.INTERRUPTED
    shutil.rmtree(files, ignore_errors=True)
    return following.conclude(state, asked)


def _words(asked: Elsewhere, executor: Executor) -> tuple[str, ...]:
    """What is typed in the job: paths in full, looked at before the job waits for hours."""
    words: list[str] = []
    for word in asked.words:
        if isinstance(word, str):
            words.append(word)
            continue
        if not executor.shares_files:
            raise UsageError(
                f"{word.path}: a job of {executor.name} does not see the files of this machine; give an address, as in"
                f" s3://bucket/{word.path.name}"
            )
        here = word.path.absolute()
        if word.use is Use.READS and not here.exists():
            raise UsageError(f"{word.path}: there is no such file")
        if word.use is not Use.READS and _is_taken(here) and not asked.force:
            raise OutputExistsError(
                f"{word.path}: exists already; give another path, or --force to replace a recording"
            )
        words.append(str(here))
    return (*words, *(("--", *asked.command) if asked.command else ()))


def _is_taken(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


class _Following:
    """One job, until it has ended or the user lets go of it."""

    def __init__(self, system: str, job: SubmittedJob) -> None:
        self._system, self._job = system, job
        self._name = f"{system}: job {job.key}"
        self._heard = threading.Event()
        self._presses = 0
        self._leaves = self._cancelled = False
        self._said: set[str] = set()

    def to_its_end(self) -> JobState | None:
        """Follow the job; returns its last state, None where the user leaves it."""
        with self._signals():
            while not self._leaves:
                if self._presses and not self._cancelled:
                    self._say_once("is being cancelled; press Ctrl-C again to leave it as it is")
                    self._cancelled = self._tried(self._cancel) or False
                state = self._tried(self._job.look)
                # after the look: what a job that has ended has printed is all there
                output, errors = self._tried(self._job.printed) or (b"", b"")
                print_bytes(sys.stdout, output)
                print_bytes(sys.stderr, errors)
                if state is not None and state.phase is JobPhase.ENDED:
                    return state
                if state is not None:
                    self._tell(state)
                self._heard.wait(LOOKS_EVERY_S)
                self._heard.clear()
        return None

    def conclude(self, state: JobState, asked: Elsewhere) -> int:
        """Say how the job ended, and where what it wrote lies; returns the exit code."""
        self._tried(self._job.clean)
        reason = f" ({state.reason})" if state.reason else ""
        written = [
            word.path
            for word in asked.words
            if isinstance(word, PathWord) and word.use is not Use.READS
        ]
        if state.exit_code == ExitCode.AGREES:
            for path in written:
                self._wait_for(path)
        for path in written:
            if path.exists():
                say(f"{self._name} wrote {path}")
        if state.exit_code == ExitCode.AGREES:
            return ExitCode.AGREES
        if self._cancelled:
            say(f"{self._name} is cancelled{reason}")
            return ExitCode.INTERRUPTED
        if state.exit_code is None:
            raise JobError(
                f"{self._name} was ended before its command had ended{reason}, so there is no exit code; what it"
                " printed last is above"
            )
        say(f"{self._name} ended with exit code {state.exit_code}{reason}")
        return state.exit_code

    def _wait_for(self, path: Path) -> None:
        """Wait for a file that a shared file system shows late."""
        until = time.monotonic() + LATE_S
        while not path.exists():
            if time.monotonic() > until:
                raise JobError(
                    f"{self._name} ended with exit code 0, and {path} is not here: its node has a different folder at"
                    " this path; run it in a folder that the nodes share, or give an address, as in -o"
                    f" s3://bucket/{path.name}"
                )
            time.sleep(LOOKS_EVERY_S)

    def _tell(self, state: JobState) -> None:
        """Say each reason for which it waits once, and once that it runs."""
        because = f": {state.reason}" if state.reason else ""
        self._say_once(f"waits{because}" if state.phase is JobPhase.WAITS else "runs")

    def _say_once(self, said: str) -> None:
        if said not in self._said:
            self._said.add(said)
            say(f"{self._name} {said}")

    def _tried(self, work: Callable[[], T]) -> T | None:
        """What some work gives; None where the system did not answer, which is said once and tried again."""
        try:
            return work()
        except LockstepError as error:
            self._say_once(f"goes on, as far as is known ({error})")
            return None

    def _cancel(self) -> bool:
        self._job.cancel()
        return True

    # these write nothing: a stream that is being written when a signal comes cannot be written again

    def _at_ctrl_c(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        self._leaves = self._presses > 1
        self._heard.set()

    def _at_end(self, number: int, frame: FrameType | None) -> None:
        self._leaves = True
        self._heard.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Take Ctrl-C and the signals that end this process, as long as the job is followed."""
        before = {signal.SIGINT: signal.signal(signal.SIGINT, self._at_ctrl_c)}
        for number in (signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, self._at_end)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
