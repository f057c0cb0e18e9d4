"""Keep the pages that a library prints when it panics, before it raises, from the terminal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import RLock
from typing import BinaryIO

_STANDARD_ERROR = 2
_LOCK = RLock()
"""There is one standard error for all threads."""


@contextmanager
def unprinted_panics() -> Iterator[None]:
    """Hold back the output on standard error, and print it afterwards unless a panic was raised.

    What other threads print meanwhile comes a moment later; in a panic it goes down with the library's.
    """
    with _LOCK, ExitStack() as stack:
        held = _redirected(stack)
        try:
            yield
        except BaseException as error:  # a panic is no Exception
            if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
                _pass_on(held)
            raise
        _pass_on(held)


def _redirected(stack: ExitStack) -> tuple[BinaryIO, int] | None:
    """A file in the place of standard error until the end, and where that is meanwhile; None where it cannot be."""
    with suppress(OSError):
        file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        real = os.dup(_STANDARD_ERROR)
        stack.callback(os.close, real)
        stack.callback(os.dup2, real, _STANDARD_ERROR)
        os.dup2(file.fileno(), _STANDARD_ERROR)
        return file, real
    return None


def _pass_on(held: tuple[BinaryIO, int] | None) -> None:
    if held is None:
        return
    file, real = held
    file.seek(0)
    if text := file.read():
        os.write(real, text)
