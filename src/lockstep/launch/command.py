"""Running a command as if it had been typed alone: its input, output, signals and exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from types import FrameType
from typing import Any

from lockstep.core.exit_codes import SIGNALLED

_SIGNALS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})
_GRACE_S = 3.0


class Command:
    """A running command.

    Signals that reach this process are passed on, unless they reached the command as well: from the
    keyboard a signal goes to both, and so does one to the whole process group. That shows in the
    command ending by itself within `_GRACE_S` seconds.

    Parameters
    ----------
    command, environment
        What to run, with which environment.
    streams
        Its `cwd`, `stdin`, `stdout` and `stderr`, as `subprocess.Popen` takes them; this process's by default.

    Raises
    ------
    OSError
        If the command cannot be started.
    """

    def __init__(self, command: list[str], environment: dict[str, str], **streams: Any) -> None:
        self._timers: list[threading.Timer] = []
        self._handlers = {}
        for name in _SIGNALS:
            number = getattr(signal, name)
            # What is ignored here (nohup, a background job) is to be ignored in the command too.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._pass_on)
        try:
            self._process = _start(command, environment, streams)
        except OSError:
            self._restore()
            raise

    @property
    def number(self) -> int:
        """The number of its process."""
        return self._process.pid

    def wait(self) -> int:
        """Wait for the end; returns the exit code as a shell has it, 128 + n after signal n."""
        try:
            code = self._process.wait()
        finally:
            self._restore()
        return code if code >= 0 else SIGNALLED - code

    def _restore(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number in _FROM_KEYBOARD and _at_the_keyboard():
            return
        timer = threading.Timer(_GRACE_S, lambda: self._process.send_signal(number))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)


def _start(
    command: list[str], environment: dict[str, str], streams: dict[str, Any]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=environment, **streams)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        # A script without a first line that names its interpreter: every shell then takes itself.
        return subprocess.Popen(["/bin/sh", *command], env=environment, **streams)


def _at_the_keyboard() -> bool:
    """Whether this process is in the foreground of a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
