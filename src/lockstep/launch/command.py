"""Running a command as if it had been typed alone: its input, output, signals and exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from types import FrameType
from typing import Any

from lockstep.core.errors import SIGNALLED
from lockstep.launch.group_witness import GroupWitness

_SIGNALS = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_KEYBOARD = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)
)


class Command:
    """A running command.

    A signal that reaches this process is passed on at once, unless it reached the command as well: from the keyboard a
    signal goes to both, and so does one to the whole process group.

    command, environment: What to run, with which environment.
    streams: Its `cwd`, `stdin`, `stdout` and `stderr`, as `subprocess.Popen` takes them; this process's by default.

    Raises OSError if the command cannot be started.
    """

    def __init__(self, command: list[str], environment: dict[str, str], **streams: Any) -> None:
        self._handlers = {}
        for name in _SIGNALS:
            number = getattr(signal, name)
            # What is ignored here (nohup, a background job) is to be ignored in the command too.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._pass_on)
        self._started = threading.Event()
        self._witness: GroupWitness | None = None
        try:
            if self._handlers:
                self._witness = GroupWitness(self._handlers)
            self._process = _start(command, environment, streams)
        except OSError:
            self._restore()
            raise
        self._started.set()

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
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.close()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number in _FROM_KEYBOARD and _at_the_keyboard():
            return
        threading.Thread(target=self._pass_on_once, args=(number,), daemon=True).start()

    def _pass_on_once(self, number: int) -> None:
        """Send a signal to the command, unless it came to the process group that both are of."""
        self._started.wait()
        witness = self._witness
        if witness is None or not (self._is_of_this_group() and witness.group_got(number)):
            self._process.send_signal(number)

    def _is_of_this_group(self) -> bool:
        try:
            return os.getpgid(self._process.pid) == os.getpgrp()
        except ProcessLookupError:  # it has ended
            return False


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
