"""Slurm: `--on slurm:partition=gpu,gres=gpu:1,time=30` submits a verb with sbatch, in a folder that all nodes share."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_remote.executors.following import JobError
from lockstep_remote.hookspecs import JobPhase, JobState, JobWork, SubmittedJob

ANSWER_S = 60.0
"""How long one of Slurm's commands may take."""
LOOKS_AFTER_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
"""The pauses before each further question to squeue: many users share the controller that answers it."""
LATE_S = 5.0
"""How long the exit code of a job that has ended may take to be seen on a shared file system."""

_WAITING = frozenset(
    {"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
     "SPECIAL_EXIT", "SUSPENDED"}
)  # fmt: skip
_RUNNING = frozenset(
    {"COMPLETING", "RESIZING", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED"}
)  # of all others the job has ended (squeue(1), "JOB STATE CODES")
_OWN_OPTIONS = frozenset(
    {"array", "chdir", "error", "help", "input", "no-requeue", "open-mode", "output", "parsable", "requeue",
     "test-only", "usage", "version", "wait", "wrap"}
)  # fmt: skip
_SUBMITTED = re.compile(r"(?P<number>\d+)(?:;(?P<cluster>\S+))?")

_SCRIPT = """\
#!/bin/sh
# The signal of scancel goes to the command as well, which ends in order; its exit code is written then.
trap : TERM INT
{command}
code=$?
echo "$code" > {code}.new && mv {code}.new {code}
exit "$code"
"""


class Slurm:
    """The job system Slurm, by its commands sbatch, squeue and scancel."""

    name = "slurm"
    shares_files = True

    def submit(self, work: JobWork) -> SubmittedJob:
        """Submit a batch script that runs the work with this Python."""
        script, code = work.files / "job.sh", work.files / "code"
        command = shlex.join([sys.executable, "-m", "lockstep", *work.words])
        script.write_text(
            _SCRIPT.format(command=command, code=shlex.quote(str(code))), encoding="utf-8"
        )
        asked = [
            f"--{name}={value}" if value else f"--{name}" for name, value in work.options.items()
        ]
        for name in _OWN_OPTIONS & work.options.keys():
            raise UsageError(
                f"--on slurm:{name}=...: Lockstep sets --{name} of sbatch itself; leave it out"
            )
        told = _answer(
            [
                "sbatch",
                "--job-name=lockstep",
                *asked,
                "--parsable",
                "--no-requeue",
                "--open-mode=append",
                f"--chdir={work.folder}",
                f"--output={_pattern(work.files / 'output')}",
                f"--error={_pattern(work.files / 'errors')}",
                str(script),
            ]
        )
        found = _SUBMITTED.fullmatch(told.strip().rpartition("\n")[2])
        if found is None:
            raise JobError(f"slurm: sbatch gave no job number but {message(told)!r}")
        return _SlurmJob(found["number"], found["cluster"] or "", work.files)


class _SlurmJob:
    """A job that sbatch has taken."""

    def __init__(self, number: str, cluster: str, files: Path) -> None:
        self.key = number
        self._where = [f"--clusters={cluster}"] if cluster else []
        self._logs = (_Log(files / "output"), _Log(files / "errors"))
        self._code = files / "code"
        self._asked = 0
        self._next = time.monotonic()
        self._ended: float | None = None
        self._state = JobState(JobPhase.WAITS)

    @property
    def ends_by(self) -> str:
        """The command line that ends it."""
        return shlex.join(["scancel", *self._where, self.key])

    def look(self) -> JobState:
        """Return its state: from the file that the job writes at its end, else from squeue, now and then."""
        if self._code.exists():
            return JobState(JobPhase.ENDED, "", int(self._code.read_text(encoding="ascii")))
        now = time.monotonic()
        if now >= self._next:
            self._asked = min(self._asked + 1, len(LOOKS_AFTER_S) - 1)
            self._next = now + LOOKS_AFTER_S[self._asked]
            self._state = self._told()
        if self._state.phase is not JobPhase.ENDED:
            self._ended = None
            return self._state
        self._ended = now if self._ended is None else self._ended
        if now - self._ended >= LATE_S:
            return self._state
        return JobState(JobPhase.RUNS)

    def _told(self) -> JobState:
        """What squeue says; a job that it knows no longer has ended."""
        words = ["squeue", *self._where, "--noheader", "--states=all", "--format=%T|%R"]
        try:
            told = _answer([*words, f"--jobs={self.key}"])
        except JobError as error:
            if "invalid job id" in str(error).lower():
                return JobState(JobPhase.ENDED, "squeue does not know it any more")
            raise
        lines = [line for line in told.splitlines() if "|" in line]
        if not lines:
            return JobState(JobPhase.ENDED, "squeue does not know it any more")
        state, _, reason = lines[0].strip().partition("|")
        if state in _WAITING:
            why = reason.strip("()")
            return JobState(JobPhase.WAITS, why if why not in ("", "None") else state.lower())
        return JobState(JobPhase.RUNS if state in _RUNNING else JobPhase.ENDED, state)

    def printed(self) -> tuple[bytes, bytes]:
        """Return what stands in its two files since the last call."""
        output, errors = self._logs
        return output.more(), errors.more()

    def cancel(self) -> None:
        """Send it SIGTERM, so that the recorder closes the recording, and what `KillWait` says later SIGKILL."""
        _answer(["scancel", *self._where, self.key])
        self._asked, self._next = 0, time.monotonic()

    def clean(self) -> None:
        """Leave Slurm's own records of the job as they are."""


class _Log:
    """A file that a job writes, opened anew for each reading: NFS looks for new content then."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def more(self) -> bytes:
        """Return what has been written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                found = file.read()
        except FileNotFoundError:
            return b""
        self._at += len(found)
        return found


def _pattern(path: Path) -> str:
    """A path as sbatch takes it for a file: `%` begins a pattern there (sbatch(1), "filename pattern")."""
    return str(path).replace("%", "%%")


def _answer(words: Sequence[str]) -> str:
    """What one of Slurm's commands prints."""
    program = shutil.which(words[0])
    if program is None:
        raise UsageError(
            f"slurm: {words[0]} is not in your PATH; run this where Slurm's commands are, as on a login node"
        )
    try:
        done = subprocess.run(
            [program, *words[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=ANSWER_S,
            start_new_session=True,  # a Ctrl-C at the terminal is not for it
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JobError(f"slurm: {words[0]} did not answer within {ANSWER_S:.0f} s") from error
    except OSError as error:
        raise JobError(f"slurm: {program} cannot be started ({error.strerror})") from error
    if done.returncode:
        said = message(done.stderr.strip() or f"it ended with exit code {done.returncode}")
        raise JobError(f"slurm: {words[0]}: {said.removeprefix(words[0] + ': ')}")
    return done.stdout
