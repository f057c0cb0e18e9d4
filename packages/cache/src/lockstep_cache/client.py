"""This process's connection to a daemon: one for each address, made anew after a fork."""

from __future__ import annotations

import atexit
import os
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import TypeVar

from lockstep.errors import LockstepError, UsageError
from lockstep_cache import messages as m
from lockstep_cache.daemon import peer
from lockstep_cache.places import Address

_PATIENCE_S = 10.0
"""A daemon that does not answer for so long counts as gone."""

AGAIN_S = 5.0
"""A daemon that is gone is looked for again after so long, and after twice as long each time that is in vain: one that
does not answer would cost a training its patience again and again."""

_MOST_TIMES = 128

M = TypeVar("M", bound=m.Message)


class DaemonGoneError(LockstepError):
    """Nobody answers there (any more)."""


class RefusedError(LockstepError):
    """The daemon says no.

    refused: Its answer.
    """

    def __init__(self, refused: m.Refused) -> None:
        super().__init__(refused.why)
        self.description, self.later = refused.description, bool(refused.later)


class Client:
    """A connection. A process that ends, however, ends it: the daemon then takes back what it held.

    Raises DaemonGoneError if nobody answers at the address.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.alive = True
        if sys.platform != "linux":
            raise DaemonGoneError("the cache needs Linux")
        self._lock = threading.Lock()
        self._decoder = m.Decoder()
        self._files: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_PATIENCE_S)
        try:
            self._socket.connect(address.socket)
            if (user := peer(self._socket)[1]) != os.getuid():
                self._socket.close()
                raise DaemonGoneError(
                    f"{address.text}: is served by user {user}; start an own cache"
                )
        except OSError as error:
            self._socket.close()
            raise DaemonGoneError(
                f"{address.text}: no cache runs there ({error.strerror or error}); start one with lockstep cache start"
            ) from error
        try:
            self.ask(m.Hello(os.getpid()), m.Welcome)
        except LockstepError:
            self.close()
            raise

    def ask(self, message: m.Message, kind: type[M]) -> M:
        """Send a message and wait for its answer.

        Raises DaemonGoneError if the daemon is. Raises RefusedError if it says no.
        """
        answer, file = self.ask_for_file(message, kind)
        if file >= 0:
            os.close(file)
        return answer

    def ask_for_file(self, message: m.Message, kind: type[M]) -> tuple[M, int]:
        """Send a message and wait for its answer, and the descriptor that comes with it; -1 if none does.

        Nothing is opened by a name: what the daemon has passed has to be a file of this user's.

        Raises DaemonGoneError if the daemon is, or passes something else. Raises RefusedError if it says no.
        """
        with self._lock:
            self._send(message)
            answer, file = self._receive(), self._passed()
        if isinstance(answer, m.Refused):
            raise RefusedError(answer)
        if not isinstance(answer, kind):
            raise self._lost(f"it answered {type(answer).__name__}")
        if file < 0 and (
            isinstance(answer, m.Attached) or (isinstance(answer, m.Leased) and answer.file)
        ):
            raise self._lost(
                "no file came with its answer; are as many open as may be (ulimit -n)?"
            )
        return answer, file

    def tell(self, message: m.Message) -> None:
        """Send a message that is not answered. Raises DaemonGoneError if the daemon is."""
        with self._lock:
            self._send(message)

    def _send(self, message: m.Message) -> None:
        if not self.alive:
            raise DaemonGoneError(f"{self.address.text}: the cache is gone")
        try:
            self._socket.sendall(m.encode(message))
        except OSError as error:
            raise self._lost(str(error)) from error

    def _receive(self) -> m.Message:
        try:
            while True:
                data, files, _, _ = socket.recv_fds(self._socket, 1 << 16, 4)
                self._files += files
                if not data:
                    raise self._lost("it hung up")
                if found := self._decoder.feed(data):
                    return found[0]
        except (OSError, m.MessageError) as error:
            raise self._lost(str(error)) from error

    def _passed(self) -> int:
        """The descriptor that has come."""
        files, self._files = self._files, []
        if not files:
            return -1
        known = os.fstat(files[0])
        if len(files) == 1 and stat.S_ISREG(known.st_mode) and known.st_uid == os.getuid():
            return files[0]
        for file in files:
            os.close(file)
        raise self._lost("it passed a file that is not this user's")

    def _lost(self, why: str) -> DaemonGoneError:
        self.close()
        return DaemonGoneError(f"{self.address.text}: the cache is gone ({why})")

    def close(self) -> None:
        """End the connection."""
        self.alive = False
        with suppress(OSError):
            self._socket.close()


class _Connections:
    """Those of this process."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.failed: dict[str, tuple[float, int]] = {}
        self.lock = threading.Lock()

    def client_of(self, address: Address) -> Client:
        with self.lock:
            known = self.clients.get(address.text)
            if known is not None and known.alive:
                return known
            again_s, times = self.failed.get(address.text, (0.0, 1))
            if time.monotonic() < again_s:
                raise DaemonGoneError(f"{address.text}: no cache runs there")
            try:
                self.clients[address.text] = client = Client(address)
            except LockstepError:
                after = time.monotonic() + AGAIN_S * times
                self.failed[address.text] = after, min(2 * times, _MOST_TIMES)
                raise
            self.failed.pop(address.text, None)
            return client


_connections = _Connections()


def client_of(address: Address) -> Client:
    """This process's connection to a daemon; one that could not be made is not tried again at once.

    Raises DaemonGoneError if nobody answers.
    """
    return _connections.client_of(address)


def _forget_after_fork() -> None:
    """The child's copies are closed: the parent's end is to be the last one, so that its death is seen."""
    global _connections
    for client in _connections.clients.values():
        client.close()
    _connections = _Connections()


@atexit.register
def _close_all() -> None:
    for client in _connections.clients.values():
        client.close()


os.register_at_fork(after_in_child=_forget_after_fork)


def asked(address: Address, message: m.Message, kind: type[M]) -> M:
    """Ask a daemon one thing. Raises UsageError if it says no, or is not there."""
    try:
        client = Client(address)
    except DaemonGoneError as error:
        raise UsageError(str(error)) from error
    try:
        return client.ask(message, kind)
    except LockstepError as error:
        raise UsageError(str(error)) from error
    finally:
        client.close()
