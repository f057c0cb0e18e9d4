"""The connection to a machine: host keys are always checked, no password is ever asked for, a cut is mended."""

from __future__ import annotations

import asyncio
import errno
import json
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from lockstep.errors import LockstepError, UsageError
from lockstep.terminal import message, say
from lockstep_remote.machines import Machine, parsed_address

try:
    import asyncssh
except ModuleNotFoundError as error:  # the extra is not installed
    raise UsageError(
        f"{error.name} is not installed here: pip install 'lockstep-numerics[remote]'"
    ) from error

T = TypeVar("T")
Answer = dict[str, Any]

PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 60.0)
"""How long to wait before each try to connect again; in all three minutes, and anew after each that worked."""

_CONNECT_S = 30.0
_ALIVE_EVERY_S = 15.0
_METHODS = ("gssapi-with-mic", "hostbased", "publickey")
_BOOTSTRAP = (
    "import sys; sys.version_info < (3, 10) and sys.exit("
    "'is Python %d.%d, and Lockstep needs 3.10 or newer' % sys.version_info[:2]);"
    " source = sys.stdin.buffer.read(int(sys.argv[1]));"
    " exec(compile(source, 'lockstep-agent', 'exec'))"
)
_FLAGS = {True: [], False: ["-I", "-S"]}
"""Looking for packages needs what Python loads of a site; all else starts sooner without."""

_SHOWN = 300


class RemoteError(LockstepError):
    """A machine cannot do what was asked of it."""


class CutOffError(RemoteError):
    """The connection is lost, and trying again did not bring it back."""


class _LostError(Exception):
    """The connection is lost; another may do."""


@lru_cache(1)
def _agent() -> bytes:
    """The text that runs on the other machine."""
    return Path(__file__).with_name("agent.py").read_bytes()


class _HostKeys(asyncssh.SSHClient):
    """Trusts no key beyond `known_hosts`, and keeps what an unknown one was."""

    def __init__(self, known_hosts: Any) -> None:
        self._known_hosts = known_hosts
        self.refused = ""

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """Say why a key is refused that is not known."""
        files = self._known_hosts or _own_known_hosts()
        known: Sequence[Any] = ()
        with suppress(OSError, ValueError):
            known = asyncssh.match_known_hosts(files, host, addr, port if port != 22 else None)[0]
        at = host if port == 22 else f"[{host}]:{port}"
        print_of_key = f"{key.algorithm.decode()} {key.get_fingerprint()}"
        if known:
            self.refused = (
                f"the host key of {host} has changed: it is {print_of_key} now. Somebody may listen in; ask who runs"
                f" the machine, and if the new key is right: ssh-keygen -R {shlex.quote(at)}"
            )
        else:
            self.refused = (
                f"the host key of {host} is not known: {print_of_key}. Connect once by ssh, check that it shows the"
                " same, and accept it there"
            )
        return False


class Link:
    """A connection that is made again when it is lost.

    machine: Where to.
    pauses_s: How long to wait before each further try, in seconds.
    """

    def __init__(self, machine: Machine, pauses_s: Sequence[float] | None = None) -> None:
        self.machine = machine
        self._pauses_s = PAUSES_S if pauses_s is None else pauses_s
        self._connection: asyncssh.SSHClientConnection | None = None
        self._was_there = False
        self._failures = 0

    async def ask(self, verb: str, **asked: Any) -> Answer:
        """Ask the agent one thing, however often the connection is lost; returns its answer.

        Raises RemoteError if it cannot do it.
        """

        async def once() -> Answer:
            async for answer, _ in self.stream(verb, asked):
                return answer
            raise _LostError

        return await self.try_again(once)

    async def send(self, verb: str, asked: Answer, pieces: Iterable[bytes]) -> Answer:
        """As `ask`, once and with bytes after the question."""
        async for answer, _ in self.stream(verb, asked, pieces):
            return answer
        raise _LostError

    async def try_again(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, again if the connection is lost on the way. Raises CutOffError if it is not to be had again."""
        while True:
            try:
                return await work()
            except _LostError as error:
                self.close()
                if not self._was_there or self._failures >= len(self._pauses_s):
                    raise CutOffError(
                        f"{self.machine.name}: the connection is lost ({error})"
                    ) from error
                if self._failures == 0:
                    say(f"{self.machine.name}: the connection is lost; connecting again")
                await asyncio.sleep(self._pauses_s[self._failures])
                self._failures += 1

    async def stream(
        self, verb: str, asked: Answer, pieces: Iterable[bytes] = ()
    ) -> AsyncIterator[tuple[Answer, bytes]]:
        """Ask the agent, and give each of its answers with the bytes that belong to it.

        Raises RemoteError if the machine or its Python cannot do it.
        """
        try:
            connection = await self._connected()
            command = [
                self.machine.python,
                *_FLAGS[verb == "hello"],
                "-c",
                _BOOTSTRAP,
                str(len(_agent())),
                verb,
            ]
            process = await connection.create_process(
                shlex.join(command), encoding=None, stdin=asyncssh.PIPE
            )
            async with process:
                writing = asyncio.create_task(_write(process, asked, pieces))
                try:
                    async for answer in self._answers(process):
                        self._failures = 0
                        yield answer
                finally:
                    writing.cancel()
                    process.close()
        except (asyncssh.DisconnectError, asyncssh.ChannelOpenError, OSError, EOFError) as error:
            raise _LostError(message(str(error) or "it was closed")) from error

    async def _answers(self, process: Any) -> AsyncIterator[tuple[Answer, bytes]]:
        count = 0
        while line := await process.stdout.readline():
            if not line.endswith(b"\n"):
                raise EOFError("in the middle of an answer")
            try:
                answer = json.loads(line)
                data = await process.stdout.readexactly(answer.pop("size"))
            except (ValueError, KeyError, AttributeError):
                # A start-up file of the shell there that prints.
                if count == 0:
                    continue
                raise RemoteError(f"{self.machine.name}: answers {line[:_SHOWN]!r}") from None
            count += 1
            if "error" in answer:
                raise RemoteError(self._in_words(answer))
            yield answer, data
        if count == 0 or process.exit_status != 0:
            await self._say_why_nothing(process)

    def _in_words(self, answer: Answer) -> str:
        name, path = self.machine.name, answer.get("path", "")
        if answer.get("full"):
            return f"{name}: the disk is full at {path}; make room there, or give another --workdir"
        return f"{name}: {path}: {answer['error']}"

    async def _say_why_nothing(self, process: Any) -> None:
        """Raise what the machine printed instead of an answer, if it ended by itself."""
        errors = (await process.stderr.read()).decode(errors="replace")
        if process.exit_status is None:
            raise EOFError("before its end")
        python = self.machine.python
        if process.exit_status in (126, 127):
            raise RemoteError(
                f"{self.machine.name}: there is no {python}; name the Python that trains there:"
                f" lockstep remote add {self.machine.name} {self.machine.address} --python PATH --force"
            )
        last = (errors.strip().splitlines() or [f"exit code {process.exit_status}"])[-1]
        if "No space left" in errors:
            raise RemoteError(f"{self.machine.name}: the disk is full; make room there")
        if last.startswith("is Python"):
            raise RemoteError(
                f"{self.machine.name}: {python} {last}; name another with lockstep remote add --python"
            )
        raise RemoteError(f"{self.machine.name}: {python} fails there: {last[:_SHOWN]}")

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
            if self._failures:
                say(f"{self.machine.name}: connected again")
            self._was_there = True
        return self._connection

    async def _connect(self) -> asyncssh.SSHClientConnection:
        """Connect, or say in a sentence why not."""
        address, name = parsed_address(self.machine.address), self.machine.name
        given: dict[str, Any] = {"username": address.user} if address.user else {}
        given |= {"port": address.port} if address.port else {}
        client: list[_HostKeys] = []
        try:
            options = _checking_options(
                host=address.host, preferred_auth=_METHODS, connect_timeout=_CONNECT_S,
                login_timeout=_CONNECT_S, keepalive_interval=_ALIVE_EVERY_S, **given,
            )  # fmt: skip

            def factory() -> _HostKeys:
                client.append(_HostKeys(options.known_hosts))
                return client[-1]

            connection, _ = await asyncssh.create_connection(factory, address.host, options=options)
        except asyncssh.HostKeyNotVerifiable as error:
            refused = next((one.refused for one in client if one.refused), "")
            raise RemoteError(
                f"{name}: {refused or f'a host key cannot be verified ({error})'}"
            ) from error
        except asyncssh.KeyExchangeFailed as error:
            raise RemoteError(
                f"{name}: no host key of the kind that known_hosts has of it ({error}); it may have changed: connect"
                " once by ssh and look what that says"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise RemoteError(
                f"{name}: {self.machine.address} does not let you in ({error.reason}); load a key that it knows with"
                " ssh-add: Lockstep asks for no password"
            ) from error
        except asyncssh.ConfigParseError as error:
            raise UsageError(f"~/.ssh/config: {error}") from error
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
            raise RemoteError(
                f"{name}: a key cannot be read ({error}); load it with ssh-add"
            ) from error
        except (TimeoutError, asyncio.TimeoutError, OSError, asyncssh.DisconnectError) as error:
            if self._was_there:
                raise _LostError(_why(error)) from error
            raise RemoteError(
                f"{name}: {self.machine.address} cannot be reached ({_why(error)})"
            ) from error
        return connection

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


def _checking_options(**given: Any) -> asyncssh.SSHClientConnectionOptions:
    """Return what a connection is made by: with host keys checked whatever `~/.ssh/config` says.

    Raises UsageError if it would trust any key of a machine on the way.
    """
    options = asyncssh.SSHClientConnectionOptions(config=(), **given)
    if options.known_hosts is None:  # `UserKnownHostsFile none`
        options = asyncssh.SSHClientConnectionOptions(options, known_hosts=_own_known_hosts())
    on_the_way = options.tunnel.split(",") if isinstance(options.tunnel, str) else ()
    for jump in on_the_way:
        address = parsed_address(jump)
        inner = asyncssh.SSHClientConnectionOptions(config=(), host=address.host)
        if inner.known_hosts is None:
            raise UsageError(
                f"~/.ssh/config: UserKnownHostsFile none would trust any key of {address.host}, through which"
                f" {options.host} is reached; name a file there"
            )
    return options


def _own_known_hosts() -> list[str] | bytes:
    path = Path("~/.ssh/known_hosts").expanduser()
    return [str(path)] if path.is_file() else b""


async def _write(process: Any, asked: Answer, pieces: Iterable[bytes]) -> None:
    """Write the agent, the question and what belongs to it; what ends the process early is told by its answer."""
    with suppress(OSError, asyncssh.Error):
        process.stdin.write(_agent() + json.dumps(asked).encode() + b"\n")
        for piece in pieces:
            process.stdin.write(piece)
            await process.stdin.drain()
        process.stdin.write_eof()
        await process.stdin.drain()


def _why(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
        return "nothing listens there"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return f"no answer in {_CONNECT_S:g} s"
    reason = getattr(error, "reason", "") or getattr(error, "strerror", "")
    return message(str(reason) or str(error) or type(error).__name__)
