"""Recordings on disk."""

import signal
import threading

# polars takes over SIGINT when it is first imported, with a handler after which a blocking system
# call goes on: Ctrl-C would no longer end a script that waits for input. Here it comes first.
_handler = signal.getsignal(signal.SIGINT)

import polars  # noqa: E402, F401

if _handler is not None and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, _handler)
