"""Re-runs in a process of their own: a native kernel that a recording's numbers crash takes that process with it."""

from __future__ import annotations

import atexit
import itertools
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from lockstep.core.known_results import Kind, Values, ahead, find, is_collecting, keep
from lockstep.core.text import message
from lockstep.replay.calls.refusals import Crashed
from lockstep.replay.process import ONE_THREAD, READY
from lockstep.replay.process.messages import Begin, Known, answer_in, is_lasting, packed, send
from lockstep.replay.questions import Answer, Imports, Question

if TYPE_CHECKING:
    from lockstep.replay.calls.imported import Import

_MOST_CRASHES = 8
"""Processes that one comparison loses before it asks for no more."""

_PATIENCE_S = 120.0
_SECONDS_A_BYTE = 1e-6
_MOST_PATIENCE_S = 3600.0
"""How long an answer may take: two minutes, and a second for each megabyte of the tensors that are compared; an hour at
most, for a shape may be made up."""

_CODE = (
    "import sys; sys.path[:] = {path!r}; from lockstep.replay.process.worker import main; main()"
)


class RerunsApart:
    """Asks a process to judge, as `lockstep.replay.process.answered_here.Verdicts` does in this one.

    The process is started when it is first needed, serves the comparisons of this process one after the other, and ends
    with it. One that dies is replaced.

    Parameters
    ----------
    memory_bytes
        Memory that the comparison may take.
    imports
        Custom functions that the process imports before it is asked.
    """

    _numbers = itertools.count()

    def __init__(self, memory_bytes: int, imports: Sequence[Import] = ()) -> None:
        self._number = next(self._numbers)
        self._imports = tuple(imports)
        self._memory_bytes = memory_bytes
        self._crashes = 0
        self._asked_ahead: list[tuple[Question[Any], str]] = []

    def prepare(self) -> None:
        """Start the process, which takes some seconds, before there is a question.

        Raises
        ------
        CannotReplay
            If it cannot be started.
        """
        with _lock:
            _process()

    def prepare_imports(self) -> None:
        """Have the process import the custom functions that it is to know.

        Raises
        ------
        CannotReplay
            If that cannot be done; the message says why.
        """
        with _lock:
            self._begun()

    def _begun(self) -> _Process:
        """The process, which serves this comparison. One that has imported a user's code serves no other."""
        process = _process()
        if process.serves != self._number and (self._imports or process.has_imported):
            _end()
            process = _process()
        if process.serve(self._number, self._memory_bytes) and self._imports:
            process.has_imported = True
            question = Imports(self._imports)
            answer_in(process.answer(packed(question)[0], {}, _PATIENCE_S), question.read)
        return process

    def ask(self, question: Question[Answer]) -> Answer:
        """As `Verdicts.ask`.

        Raises
        ------
        CannotReplay
            If the calls cannot be run again, or doing so ends the process.
        """
        if self._crashes >= _MOST_CRASHES:
            raise Crashed(f"{_MOST_CRASHES} re-runs ended their process, so no more are made")
        key = next((key for one, key in self._asked_ahead if one is question), None)
        known = find(Kind.RERUN, key)
        if known is not None:
            return answer_in(str(known).encode(), question.read)
        data, files = packed(question)
        key = self._key_of(data)
        known = find(Kind.RERUN, key)
        if known is not None:
            return answer_in(str(known).encode(), question.read)
        with _lock:
            try:
                line = self._begun().answer(data, files, _patience_s(question))
            except Crashed:
                self._crashes += 1
                raise
        if is_lasting(line):
            keep(Kind.RERUN, key, line.decode())
        return answer_in(line, question.read)

    def ahead(self, question: Question[Any], holds_bytes: int) -> None:
        """Have a question answered by a different process until it is asked, if there is one (`lockstep.engines`)."""
        if self._imports or not is_collecting():
            return
        data, files = packed(question)
        key = self._key_of(data)
        if key is None or find(Kind.RERUN, key) is not None:
            return
        marks = {path: _Marks(one.unchecked) for path, one in files.items()}
        self._asked_ahead.append((question, key))
        ahead(AskedAhead(key, data, marks, holds_bytes, self._memory_bytes, _patience_s(question)))

    def _key_of(self, question: bytes) -> str | None:
        """The key of a question among the results of other processes; None if a user's code helps to answer it."""
        if self._imports or not is_collecting():
            return None
        return f"{self._memory_bytes} {xxhash.xxh3_128_hexdigest(question)}"


@dataclass(frozen=True, slots=True)
class _Marks:
    """The digests of one rank's files that were not read yet."""

    unchecked: dict[str, str]


@dataclass(frozen=True, slots=True)
class AskedAhead:
    """A question as it is sent to a different process, which has it answered; a `lockstep.core.known_results.Work`.

    key: Of the answer among all results.
    data, files: The packed question, and the digests of the files that it names.
    holds_bytes: Most memory that the answer takes.
    memory_bytes, patience_s: What the comparison may take, and how long this answer.
    """

    key: str
    data: bytes
    files: Mapping[Path, _Marks]
    holds_bytes: int
    memory_bytes: int
    patience_s: float

    def results(self) -> Values:
        """The answer; none where this machine gave none that lasts."""
        with _lock:
            try:
                process = RerunsApart(self.memory_bytes)._begun()
                line = process.answer(self.data, self.files, self.patience_s)
            except Crashed:  # the comparison asks again, and says why
                return {}
        return {Kind.RERUN.value: {self.key: line.decode()}} if is_lasting(line) else {}


class _HasMarks(Protocol):
    """Files of which some were not read yet."""

    @property
    def unchecked(self) -> dict[str, str]:
        """Their digests."""


class _Process:
    """One process that re-runs, and what it was told.

    serves: Number of the comparison that it is at.
    has_imported: Whether it was asked to import a user's code, which may have changed anything in it.
    """

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key[:9] != "LOCKSTEP_"}
        # Read by torch as it is loaded: large tensors in large pages. A re-run makes and drops many of them, and
        # most of its time went into getting their memory, 4 KiB at a time.
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        # Threads that wait for each other spin otherwise, and take the processors that others compute on: beside five
        # busy processes on two processors, a comparison took 24 s of them instead of 5.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        try:
            self._popen = subprocess.Popen(
                [sys.executable or "python3", "-c", _CODE.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environment, ONE_THREAD: "1"},
            )
        except OSError as error:
            raise Crashed(f"no process for it could be started ({error.strerror})") from error
        self._known: set[Path] = set()
        self.serves = -1
        self.has_imported = False
        assert self._popen.stdout is not None
        if self._popen.stdout.readline() != READY:
            why = self._why_not_ready()
            self.end()
            raise Crashed(why)

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._popen.poll() is None

    def serve(self, number: int, memory_bytes: int) -> bool:
        """Begin a comparison, unless it is at it; says whether it has begun."""
        if number == self.serves:
            return False
        self.serves = number
        self._known.clear()
        self._send(packed(Begin(memory_bytes))[0])
        return True

    def answer(self, question: bytes, files: Mapping[Path, _HasMarks], patience_s: float) -> bytes:
        """Ask, and wait for the answer. Raises Crashed if it ends first, or takes longer than `patience_s` seconds."""
        for directory, tensors in files.items():
            if directory not in self._known:
                self._known.add(directory)
                self._send(packed(Known(directory, tensors.unchecked))[0])
        self._send(question)
        assert self._popen.stdout is not None
        with (
            selectors.DefaultSelector() as selector
        ):  # `select` itself knows no file beyond the 1024th
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            ready = selector.select(patience_s)
        if not ready:
            self.end()
            raise Crashed(f"its re-run took more than {patience_s:.0f} s")
        line = self._popen.stdout.readline()
        if not line.endswith(b"\n"):
            raise Crashed(f"its re-run ended the process that made it ({self._how_it_ended()})")
        return line

    def end(self) -> None:
        """End it, and wait for that."""
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            with suppress(OSError):  # what could not be sent to it
                if stream is not None:
                    stream.close()

    def _send(self, data: bytes) -> None:
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # its end shows as there being no answer
            send(self._popen.stdin, data)

    def _how_it_ended(self) -> str:
        code = self._popen.wait()
        return (
            signal.Signals(-code).name if -code in signal.valid_signals() else f"exit code {code}"
        )

    def _why_not_ready(self) -> str:
        assert self._popen.stderr is not None
        said = self._popen.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
        return message(f"no process for it could be started ({''.join(said)})")


_lock = threading.RLock()
_running: list[_Process] = []


def _process() -> _Process:
    """The process that is there, or else a new one."""
    while _running and not _running[0].is_alive:
        _running.pop().end()
    if not _running:
        _running.append(_Process())
    return _running[0]


def _end() -> None:
    while _running:
        _running.pop().end()


def _forget() -> None:
    """After a fork: the process is the parent's."""
    global _lock
    _lock = threading.RLock()
    _running.clear()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _patience_s(question: Question[Any]) -> float:
    size_bytes = sum(8 * record.content.numel for record in question.about if record is not None)
    once = min(_PATIENCE_S + _SECONDS_A_BYTE * size_bytes, _MOST_PATIENCE_S)
    return question.seconds_besides + question.runs * once
