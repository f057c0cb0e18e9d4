"""Runs the command line on mutated recordings, and judges what it answers."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutations import Mutation, Promise

HANG_S = 60.0
MEMORY_BYTES = 1 << 30
WORKER = Path(__file__).with_name("worker.py")
_MESSAGE_CHARACTERS = 320
_OVERSIZE_BYTES = 64 << 20
_SIZES = re.compile(r"\d+\.\d\d MB")
_KEYS = ("step", "rank", "phase", "module", "op", "call", "role", "index", "tensor")


@dataclass(frozen=True)
class Answer:
    """What one command line left: its exit code (or how it died), and what it printed."""

    code: int | str
    out: str
    err: str
    seconds: float = 0.0
    grown_bytes: int = 0


class Runner:
    """Runs command lines in a worker process that is started anew when it dies.

    Parameters
    ----------
    directory
        Working directory of the commands.
    warm_up
        Command lines that load everything, run after each start.
    worker
        The program.
    hang_s
        Seconds after which a command is ended.
    """

    def __init__(
        self,
        directory: Path,
        warm_up: Sequence[list[str]],
        *,
        worker: Path = WORKER,
        hang_s: float = HANG_S,
    ) -> None:
        self._directory, self._warm_up = directory, warm_up
        self._worker, self._hang_s = worker, hang_s
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str]) -> Answer:
        """The answer to one command line; one that hung or died is asked once more, by a new worker."""
        found = self._ask(arguments)
        if isinstance(found.code, str) or found.grown_bytes > MEMORY_BYTES:
            self.close()
            found = self._ask(arguments)
        return found

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(self._worker)],
            cwd=self._directory,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for arguments in self._warm_up:
            _send(process, arguments)
            assert process.stdout is not None
            process.stdout.readline()
        _send(process, "loaded")
        return process

    def _ask(self, arguments: list[str]) -> Answer:
        process = self._process = self._process or self._start()
        out, err = self._directory / "out", self._directory / "err"
        for path in (out, err):
            os.truncate(path, 0)
        assert process.stdout is not None
        _send(process, arguments)
        if not select.select([process.stdout], [], [], self._hang_s)[0]:
            process.send_signal(signal.SIGUSR1)  # where it is, on its standard error
            select.select([process.stdout], [], [], 0.5)
            self.close()
            return Answer("hung", _text(out), _text(err), self._hang_s)
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.close()
            return Answer(f"died of signal {-code}", _text(out), _text(err))
        return Answer(out=_text(out), err=_text(err), **json.loads(line))


def _send(process: subprocess.Popen[str], value: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value) + "\n")
    process.stdin.flush()


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_OVERSIZE_BYTES).decode("utf-8", "backslashreplace")


# --- judging --------------------------------------------------------------------------------------


def complaint(mutation: Mutation, sound: Answer, found: Answer) -> str:
    """What is wrong with an answer, in one line that is the same for the same fault; "" where nothing is.

    Parameters
    ----------
    sound
        The answer to the recordings as they were.
    found
        The answer to the mutated ones.
    """
    return _misbehaviour(found) or _broken_promise(mutation.promise, sound, found)


def _misbehaviour(found: Answer) -> str:
    """What no input at all may lead to."""
    if isinstance(found.code, str):
        return f"{found.code}: {_deepest(found.err)}"
    if "Traceback" in found.err or "fault of its own" in found.err:
        return f"traceback: {_deepest(found.err)}"
    if found.grown_bytes > MEMORY_BYTES:
        return "memory"
    if found.code not in (0, 1, 2):
        return f"exit code {found.code}"
    if not all(line.isprintable() for line in (found.out + found.err).split("\n")):
        return "control characters"
    if len(found.out) > _OVERSIZE_BYTES // 2:
        return "endless output"
    if found.err and not _is_clear(found):
        return f"unclear error: {re.sub(r'[0-9]+', 'N', found.err[:60])!r}"
    if found.code == 2 and not found.err and not found.out:
        return "silent failure"
    return ""


def _is_clear(found: Answer) -> bool:
    """Whether what was said on standard error is one sentence, or the words that a report was written."""
    lines = found.err.splitlines()
    if found.code != 2:
        return all(line.startswith("wrote ") for line in lines)
    return (
        len(lines) == 1
        and len(lines[0]) <= _MESSAGE_CHARACTERS
        and lines[0].startswith("lockstep: ")
        and not found.out
    )


def _broken_promise(promise: Promise, sound: Answer, found: Answer) -> str:
    """What this mutation may not lead to."""
    if promise is Promise.NOTHING or (promise is Promise.DETECTED and found.err):
        return ""
    before, after = _gist(sound), _gist(found)
    if before == after:
        return ""
    if promise is Promise.DETECTED and _is_stated(sound, found):
        return ""
    lines = zip(sound.out.splitlines(), found.out.splitlines(), strict=False)
    other = next(
        (f"{one.strip()!r:.90} / {two.strip()!r:.90}" for one, two in lines if one != two), ""
    )
    return f"another answer: {_short(before)} became {_short(after)}: {other}{found.err[:200]}"


def _gist(answer: Answer) -> Any:
    """What a reader takes from an answer: exit code, verdict and origins; the whole of it where it is no verdict."""
    try:
        value = json.loads(answer.out)
    except ValueError:
        return answer.code, _SIZES.sub("SIZE", answer.out)
    if "verdict" in value:
        return (
            answer.code,
            value["verdict"],
            [[one[key] for key in _KEYS] for one in value["origins"]],
        )
    for rank in value["ranks"].values():
        rank["files"] = {}
    return answer.code, value


def _short(gist: Any) -> str:
    code, *rest = gist
    return f"exit {code} {rest[0] if len(rest) > 1 else ''}".rstrip()


def _is_stated(sound: Answer, found: Answer) -> bool:
    """Whether an answer says more of what is not in it than the whole one did, or that nothing is."""
    return "nothing was recorded" in found.out or _reservations(found.out) > _reservations(
        sound.out
    )


def _reservations(out: str) -> int:
    try:
        value = json.loads(out)
    except ValueError:
        return len(
            re.findall("Not compared|not in this recording|cut off|occurs only in|incomplete", out)
        )
    lists = (value.get(key) for key in ("not_compared", "notes", "missing"))
    return sum(len(one) for one in lists if isinstance(one, list))


def _deepest(text: str) -> str:
    """Where Python was, without what changes from case to case: of a traceback, or of what `faulthandler` tells."""
    current = text.rpartition("Current thread")[2]
    frames = re.findall(r'File "[^"]*?([^/"]+/[^/"]+)", line (\d+),? in (\S+)', current)
    frame = frames[-1 if current == text else 0] if frames else ()
    words = (
        [] if current != text else [line for line in text.splitlines() if line and line[0] != " "]
    )
    return f"{':'.join(frame)} {re.sub(r'[0-9]+', 'N', ' '.join(words[-2:-1])[:160])}".rstrip()
