"""Write the recording before a process ends in a way that skips Python's own end."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from lockstep.capture.patching.patches import Patch

_AT_ONCE = ("_exit", "abort", "execv", "execve")
"""Functions of `os` that end the process, or its program where there is another one to run."""

_NOT_FATAL = {
    getattr(signal, name, 0)
    for name in ("SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGWINCH")
}  # fmt: skip
"""Signals that do not end a process which does nothing about them; POSIX, `<signal.h>`."""


class Endings:
    """Hears of such an end just before it comes.

    Parameters
    ----------
    finish
        Closes the recording; is told what ends the process. Called in the main thread.
    save
        Writes what there is by now; called where another thread ends the process, in the midst of anything.
    """

    def __init__(self, finish: Callable[[str], None], save: Callable[[], None]) -> None:
        self._finish, self._save = finish, save
        self._patches = [
            *(Patch(os, name, functools.partial(self._before_end, name)) for name in _AT_ONCE),
            *(
                Patch(owner, name, functools.partial(self._before_signal, sent_to_us))
                for owner, name, sent_to_us in _SENDERS
            ),
        ]

    def listen(self) -> None:
        """Begin to listen."""
        for patch in self._patches:
            patch.put()

    def stop(self) -> None:
        """Listen no more."""
        for patch in self._patches:
            patch.take_back()

    def _before_end(self, name: str, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def end_process(*args: Any, **kwargs: Any) -> Any:
            if not name.startswith("exec") or _can_run(*args, **kwargs):
                self._ends(f"os.{name}" + _code_words(name, args, kwargs))
            return end(*args, **kwargs)

        return end_process

    def _before_signal(
        self, sent_to_us: Callable[..., int], send: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(send)
        def send_signal(*args: Any) -> Any:
            number = sent_to_us(*args)
            if _is_fatal(number):
                self._ends(f"{signal.Signals(number).name}, which it sent itself")
            return send(*args)

        return send_signal

    def _ends(self, how: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self._finish(how)
        else:
            self._save()


def uncaught() -> str:
    """Return what exception ended the main thread or passes through it, "" for none; for functions that run at exit.

    A child of multiprocessing runs them while its exception is on its way out, and notes none.
    """
    kind = getattr(sys, "last_type", None)
    return named(sys.exc_info()[1]) if kind is None else f"the exception {kind.__name__}"


def named(value: BaseException | None) -> str:
    """Return an exception by its kind alone, as its text may hold anything; "" for none and for an exit with code 0."""
    if isinstance(value, SystemExit):
        code = value.code if isinstance(value.code, int) else int(value.code is not None)
        return f"sys.exit({code})" if code else ""
    return "" if value is None else f"the exception {type(value).__name__}"


def _code_words(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the code that `os._exit` is called with, in parentheses; "" for other functions."""
    code = args[0] if args else kwargs.get("status")
    return f"({code})" if name == "_exit" and isinstance(code, int) else ""


def _can_run(path: Any = "", *_: Any, **__: Any) -> bool:
    """Whether a program can be run: what looks for one along PATH tries many that are not there."""
    return isinstance(path, int) or os.access(path, os.X_OK)


def _from_kill(process: int = 0, number: int = 0, *_: Any) -> int:
    return number if process in (-1, 0, os.getpid(), -os.getpgrp()) else 0


def _from_killpg(group: int = 0, number: int = 0, *_: Any) -> int:
    return number if group in (0, os.getpgrp()) else 0


_SENDERS: tuple[tuple[Any, str, Callable[..., int]], ...] = (
    (os, "kill", _from_kill),
    (os, "killpg", _from_killpg),
    (signal, "pthread_kill", lambda _thread=0, number=0, *_: number),
    (signal, "raise_signal", lambda number=0, *_: number),
)
"""Functions that send a signal, and what they send to this process, 0 where it goes elsewhere."""


def _is_fatal(number: int) -> bool:
    """Whether a signal ends this process: the default does, and nothing holds it back."""
    if number == signal.SIGKILL:
        return True
    if number not in signal.valid_signals() or number in _NOT_FATAL:
        return False
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return signal.getsignal(number) is signal.SIG_DFL and number not in held_back
