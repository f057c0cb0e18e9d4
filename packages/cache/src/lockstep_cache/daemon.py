"""The daemon: an event loop that takes control messages from trainings on this machine. Samples never pass here."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError
from lockstep_cache import messages as m
from lockstep_cache.keeper import Keeper
from lockstep_cache.leftovers import lock, sweep, unlock
from lockstep_cache.places import Address
from lockstep_cache.slabs import Tier


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits of a daemon.

    memory_bytes: Of memory, for slabs and tables.
    spill: The folder for what has no room there; None for nowhere.
    spill_bytes: Of that folder's disk.
    sessions: How many there may be.
    """

    memory_bytes: int
    spill: Path | None
    spill_bytes: int
    sessions: int


def serve(address: Address, settings: Settings, ready: Callable[[], None]) -> None:
    """Serve until it is told to stop.

    address, settings: Where, and with what.
    ready: Is called once whoever connects is answered.

    Raises UsageError if another daemon serves there, or a folder or the address cannot be used.
    """
    held = lock(address)
    try:
        sweep()
        _raise_limit_of_files()
        keeper = Keeper(_tiers(settings), settings.sessions)
        listening = _listening(address)
        try:
            asyncio.run(_serve(listening, keeper, ready))
        finally:
            keeper.close()
            Path(address.socket).unlink(missing_ok=True)
    finally:
        unlock(address.key, held)


def _raise_limit_of_files() -> None:
    """Each slab is an open file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _tiers(settings: Settings) -> list[Tier]:
    found = [Tier("memory", None, settings.memory_bytes)] if settings.memory_bytes else []
    if settings.spill is not None:
        try:
            settings.spill.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=settings.spill):
                pass
        except OSError as error:
            raise UsageError(
                f"{settings.spill}: nothing can be written there ({error.strerror or error}); give another --spill"
            ) from error
        found.append(Tier("disk", settings.spill, settings.spill_bytes))
    if not found:
        raise UsageError(
            "neither memory nor a folder to keep samples in; give --memory 1GB or --spill DIR"
        )
    return found


def _listening(address: Address) -> socket.socket:
    """The lock is ours, so what lies at a socket's path is a dead daemon's."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if Path(address.socket).is_socket():
            Path(address.socket).unlink()
        before = os.umask(0o177)
        try:
            listening.bind(address.socket)
        finally:
            os.umask(before)
        listening.listen(128)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"{address.text}: cannot be served at ({error.strerror or error}); give another --address"
        ) from error
    return listening


async def _serve(listening: socket.socket, keeper: Keeper, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    accepting = asyncio.create_task(_accept(listening, keeper, ended))
    ready()
    await ended.wait()
    accepting.cancel()
    with suppress(asyncio.CancelledError):
        await accepting


async def _accept(listening: socket.socket, keeper: Keeper, ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    talking: set[asyncio.Task[None]] = set()
    for number in itertools.count(1):
        connected, _ = await loop.sock_accept(listening)
        task = loop.create_task(_Connection(number, connected, keeper, ended).talk())
        talking.add(task)
        task.add_done_callback(talking.discard)


class _Connection:
    """One process that uses the cache."""

    def __init__(
        self, number: int, connected: socket.socket, keeper: Keeper, ended: asyncio.Event
    ) -> None:
        self._number, self._socket, self._keeper, self._ended = number, connected, keeper, ended
        self._known = False
        self._process = -1

    async def talk(self) -> None:
        """Answer until it hangs up, or sends what is no message."""
        decoder, loop = m.Decoder(), asyncio.get_running_loop()
        with self._socket:
            self._socket.setblocking(False)
            try:
                while data := await loop.sock_recv(self._socket, 1 << 16):
                    for message in decoder.feed(data):
                        await self._send(self._answer(message))
            except m.MessageError as error:
                with suppress(m.MessageError, OSError):
                    await self._send(m.Refused(str(error)))
            except OSError:  # it has ended
                pass
            finally:
                self._left()

    async def _send(self, answer: m.Message | None) -> None:
        if answer is None:
            return
        data, file = m.encode(answer), self._keeper.descriptor_of(answer)
        if (
            file is not None
        ):  # with the first byte, for which there is room, since it waits for an answer
            socket.send_fds(self._socket, [data[:1]], [file])
            data = data[1:]
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def _left(self) -> None:
        self._keeper.left(self._number)
        if self._process >= 0:  # readable once the process has ended (pidfd_open(2))
            asyncio.get_running_loop().add_reader(self._process, self._process_ended)

    def _process_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process)
        os.close(self._process)
        self._keeper.ended(self._number)

    def _answer(self, message: m.Message) -> m.Message | None:
        if isinstance(message, m.Hello):
            return self._greeted()
        if not self._known:
            raise m.MessageError("the first message has to be Hello")
        if isinstance(message, m.Stop):
            self._ended.set()
            return m.Made("")
        return self._keeper.answer(self._number, message)

    def _greeted(self) -> m.Message:
        process, user = peer(self._socket)
        if user != os.getuid():
            raise m.MessageError(
                f"this cache is of user {os.getuid()}, and user {user} has to start an own one"
            )
        if not self._known:
            with suppress(OSError):  # one that has ended by now
                self._process = os.pidfd_open(process)
        self._known = True
        return m.Welcome()


def peer(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a unix socket."""
    size = struct.calcsize("3i")
    process, user, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return process, user
