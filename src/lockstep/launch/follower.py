"""Gives the steps of a running command to whoever looks at them, and takes them away."""

from __future__ import annotations

import gc
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lockstep.core.errors import RecordingError
from lockstep.core.selection import StepSelection
from lockstep.launch.events import Event, StepsLeftOut, StepUnreadable, StepWritten
from lockstep.launch.follow import Follow, WrittenStep
from lockstep.launch.time_share import TimeShare
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.reader import RankRecording
from lockstep.store.schema import MANIFEST

_LOOKS_EVERY_S = 0.1
_COLLECTS_EVERY = 64
"""Behind so many steps what was read of them is let go: tables in cycles weigh little in Python, and much beside it."""


class Follower:
    """Follows steps on a thread of its own.

    The recorder leaves out steps, or lets the training wait, while as many as may lie there
    (`capture.recording.apart`).

    directory: The recording, in which each step is a rank's directory of its own.
    follow: How.
    steps: Which steps are chosen.
    hear: Is told of each step.

    has_seen_a_step: Whether anything was recorded.
    """

    def __init__(
        self,
        directory: Path,
        follow: Follow,
        steps: StepSelection,
        hear: Callable[[Event], None],
    ) -> None:
        self.has_seen_a_step = False
        self._directory, self._follow, self._steps, self._hear = directory, follow, steps, hear
        self._done: list[Path] = []
        self._looked_at = 0
        self._last: dict[str, int] = {}
        self._ended = threading.Event()
        self._time = TimeShare(follow.looking_share, self._ended)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="lockstep-follower", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._time.begin()
        self._thread.start()

    def finish(self) -> None:
        """Look at the remaining steps after the command has ended, and stop.

        Raises BaseException: The error that ended the thread, if one did.
        """
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            self._prepare()
            while not self._ended.wait(_LOOKS_EVERY_S):
                self._look_around(only_whole=True)
                if self._time.may_go_on():
                    self._clear()
            self._look_around(only_whole=False)
        except BaseException as error:
            self._failure = error
            self._let_all_go()

    def _prepare(self) -> None:
        self._time.wait_for_room(self._follow.prepare_s)
        with self._time.at_work():
            if self._follow.prepare is not None and not self._ended.is_set():
                self._follow.prepare()

    def _look_around(self, *, only_whole: bool) -> None:
        there = [path for path in self._directory.glob("rank*") if path not in self._done]
        if only_whole:  # asked before they are put in order: closing a step makes it younger
            there = [path for path in there if _is_closed(path)]
        for path in sorted(there, key=_age):
            with self._time.at_work():
                self._look(path)
            self._done.append(path)
            if self._time.may_go_on():
                self._clear()

    def _look(self, path: Path) -> None:
        name = path.name.partition("-")[0]
        turn = self._time.its_turn if self._time.is_limited else None
        try:
            rank = RankRecording(path)
            for number in rank.steps:
                self._tell(name, number)
                self.has_seen_a_step = True
                self._follow.look(WrittenStep(rank, name, number, turn))
            rank.close_tensors()
            self._looked_at += 1
            if self._looked_at % _COLLECTS_EVERY == 0:
                gc.collect()
        except RecordingError as error:  # the process was killed as it wrote
            self._hear(StepUnreadable(name, str(error)))

    def _tell(self, name: str, number: int) -> None:
        first = self._last.get(name, -1) + 1
        left_out = len(self._steps.numbers_in(range(first, number)))
        if left_out:
            self._hear(StepsLeftOut(name, left_out))
        self._last[name] = number
        self._hear(StepWritten(name, number))

    def _clear(self) -> None:
        """Take away what was looked at: the recorder goes on."""
        for path in self._done:
            _remove(path)
        self._done.clear()

    def _let_all_go(self) -> None:
        """Nobody looks any more: no training is to wait for that."""
        while True:
            for path in self._directory.glob("rank*"):
                if path in self._done or _is_closed(path):
                    _remove(path)
            self._done.clear()
            if self._ended.wait(_LOOKS_EVERY_S):
                return


def _remove(path: Path) -> None:
    aside = path.with_name(f".{path.name}.seen")
    with suppress(FileNotFoundError):
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _age(path: Path) -> tuple[int, str]:
    """Steps of a process come in order: which name was free says nothing."""
    try:
        return (path / MANIFEST).stat().st_mtime_ns, path.name
    except OSError:
        return 0, path.name


def _is_closed(path: Path) -> bool:
    """Whether a step was written to its end."""
    try:
        manifest = values_of(read_manifest(path / MANIFEST))
    except (RecordingError, ValueError, OSError):
        return False
    return isinstance(manifest, dict) and manifest.get("state") == "complete"
