"""The console for text that rich lays out."""

from __future__ import annotations

import errno
import os

from rich.console import Console


class OutputConsole(Console):
    """A console whose closed pipe is an error as any other: rich would end with 1, which says that two runs differ."""

    def on_broken_pipe(self) -> None:
        """Pass the error on.

        Raises
        ------
        BrokenPipeError
            Always.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
