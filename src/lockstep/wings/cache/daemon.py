"""The daemon: an event loop that takes control messages from trainings on this machine. Samples never pass here."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.wings.cache import messages as m
from lockstep.wings.cache.keeper import Keeper
from lockstep.wings.cache.leftovers import lock, sweep, sweep_others, unlock
from lockstep.wings.cache.places import Address, DaemonState, make_private, write_state
from lockstep.wings.cache.slabs import Tier


@dataclass(frozen=True, slots=True)
class Settings:
    """What a daemon may take.

    Parameters
    ----------
    memory_bytes
        Of memory, for slabs and tables.
    spill
        The folder for what has no room there; None for nowhere.
    spill_bytes
        Of that folder's disk.
    sessions
        How many there may be.
    """

    memory_bytes: int
    spill: Path | None
    spill_bytes: int
    sessions: int


def serve(address: Address, settings: Settings, ready: Callable[[], None]) -> None:
    """Serve until it is told to stop.

    Parameters
    ----------
    address, settings
        Where, and with what.
    ready
        Is called once whoever connects is answered.

    Raises
    ------
    UsageError
        If another daemon serves there, or a folder or the address cannot be used.
    """
    held = lock(address)
    try:
        sweep(address)
        sweep_others()
        tiers = _tiers(address, settings)
        token = secrets.token_hex(16) if address.port else ""
        listening = _listening(address)
        write_state(
            address, DaemonState(os.getpid(), token, tuple(str(one.folder) for one in tiers))
        )
        keeper = Keeper(tiers, settings.sessions)
        try:
            asyncio.run(_serve(listening, keeper, token, ready))
        finally:
            keeper.close()
            if not address.port:
                Path(address.text).unlink(missing_ok=True)
    finally:
        sweep(address)
        unlock(address.key, held)


def _tiers(address: Address, settings: Settings) -> list[Tier]:
    found = []
    if settings.memory_bytes and address.memory_folder.parent.is_dir():
        found.append(Tier("memory", make_private(address.memory_folder), settings.memory_bytes))
    if settings.spill is not None:
        folder = make_private(address.disk_folder(settings.spill))
        found.append(Tier("disk", folder, settings.spill_bytes))
    if not found:
        raise UsageError(
            "neither memory nor a folder to keep samples in; give --memory 1GB or --spill DIR"
        )
    return found


def _listening(address: Address) -> socket.socket:
    """The lock is ours, so what lies at a socket's path is a dead daemon's."""
    kind = socket.AF_INET if address.port else socket.AF_UNIX
    listening = socket.socket(kind, socket.SOCK_STREAM)
    try:
        if address.port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", address.port))
        else:
            if Path(address.text).is_socket():
                Path(address.text).unlink()
            before = os.umask(0o177)
            try:
                listening.bind(address.text)
            finally:
                os.umask(before)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"{address.text}: cannot be served at ({error.strerror or error}); give another --address"
        ) from error
    return listening


async def _serve(
    listening: socket.socket, keeper: Keeper, token: str, ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    count = iter(range(1, 1 << 62))
    create = loop.create_server if token else loop.create_unix_server
    server = await create(lambda: _Connection(next(count), keeper, token, ended), sock=listening)
    async with server:
        ready()
        await ended.wait()


class _Connection(asyncio.Protocol):
    """One process that uses the cache."""

    def __init__(self, number: int, keeper: Keeper, token: str, ended: asyncio.Event) -> None:
        self._number, self._keeper, self._token, self._ended = number, keeper, token, ended
        self._decoder = m.Decoder()
        self._known = False
        self._process = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._keeper.left(self._number)
        if self._process >= 0:  # readable once the process has ended (pidfd_open(2))
            asyncio.get_running_loop().add_reader(self._process, self._process_ended)

    def _process_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process)
        os.close(self._process)
        self._keeper.ended(self._number)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                answer = self._answer(message)
                if answer is not None:
                    self._transport.write(m.encode(answer))
        except m.MessageError as error:
            with suppress(m.MessageError):
                self._transport.write(m.encode(m.Refused(str(error))))
            self._transport.close()

    def _answer(self, message: m.Message) -> m.Message | None:
        if isinstance(message, m.Hello):
            return self._greeted(message)
        if not self._known:
            raise m.MessageError("the first message has to be Hello")
        if isinstance(message, m.Stop):
            self._ended.set()
            return m.Made("")
        return self._keeper.answer(self._number, message)

    def _greeted(self, hello: m.Hello) -> m.Message:
        if self._token:
            if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
                raise m.MessageError(
                    "the cache at this port is another user's, or another one than was asked for"
                )
        else:
            process, user = peer(self._transport.get_extra_info("socket"))
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
