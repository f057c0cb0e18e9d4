"""A machine to connect to: an SSH server in this process, on loopback, that cuts its connections where a test says."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncssh

Cut = Callable[[str, bytes], int | None]
"""Is asked with each command (with `<` before it for its input) and each piece of its output whether the connection is
lost there: behind so many bytes, None for not at all."""


class SshHost:
    """The server.

    Parameters
    ----------
    home
        The home of its user, in which commands run.
    trusted
        The public key that it lets in.
    programs
        What stands in front of the path of its commands.
    """

    def __init__(self, home: Path, trusted: Path, programs: Path | None = None) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.trusted = trusted
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("LOCKSTEP", "XDG"))
        } | {"HOME": str(home)}
        if programs is not None:
            self.environment["PATH"] = f"{programs}:{self.environment['PATH']}"
        self.cut: Cut = lambda command, data: None
        self.cuts = 0
        self.connections: list[Any] = []
        self.commands: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()

    @property
    def known_hosts_line(self) -> str:
        """What a `known_hosts` has of it."""
        return f"[127.0.0.1]:{self.port} {self.key.export_public_key().decode()}"

    @contextmanager
    def listening(self, port: int = 0) -> Iterator[SshHost]:
        """Serve while the block runs."""
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        try:
            acceptor = self._run(self._listen(port))
            self.port = acceptor.get_port()
            try:
                yield self
            finally:
                self._run(self._end(acceptor))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self, port: int) -> Any:
        host = self

        class Server(asyncssh.SSHServer):
            def connection_made(self, conn: Any) -> None:
                host.connections.append(conn)

            def connection_requested(self, *_: Any) -> bool:
                return True

        return await asyncssh.listen(
            "127.0.0.1", port, server_factory=Server, server_host_keys=[self.key],
            authorized_client_keys=str(self.trusted), process_factory=self._serve, encoding=None,
        )  # fmt: skip

    async def _end(self, acceptor: Any) -> None:
        acceptor.close()
        for one in self.connections:
            one.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _serve(self, process: Any) -> None:
        self.commands.append(process.command)
        child = await asyncio.create_subprocess_shell(
            process.command, cwd=self.home, env=self.environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        reading = asyncio.create_task(self._feed(process, child))
        try:
            await self._answer(process, child.stdout, process.stdout)
            await self._answer(process, child.stderr, process.stderr)
            process.exit(await child.wait())
        except (OSError, asyncssh.Error):
            pass  # the connection was cut
        finally:
            reading.cancel()
            child._transport.close()
            await asyncio.shield(child.wait())
            await asyncio.sleep(0)

    async def _feed(self, process: Any, child: Any) -> None:
        with suppress(OSError, asyncssh.Error):
            while data := await process.stdin.read(65536):
                await self._pass_on(process, "<" + process.command, data, child.stdin)
            child.stdin.close()

    async def _answer(self, process: Any, source: Any, to: Any) -> None:
        while data := await source.read(65536):
            await self._pass_on(process, process.command, data, to)

    async def _pass_on(self, process: Any, command: str, data: bytes, to: Any) -> None:
        behind = self.cut(command, data)
        to.write(data[:behind])
        await to.drain()
        if behind is not None:
            self.cuts += 1
            connection = process.channel.get_connection()
            connection.close() if behind else connection.abort()  # which drops what is on its way
            raise ConnectionResetError


class Client:
    """The home of whoever connects: keys, `~/.ssh/config` and `known_hosts`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.ssh.mkdir(parents=True, mode=0o700)
        self.key = self.ssh / "id_ed25519"
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(str(self.key))
        key.write_public_key(str(self.public_key))
        self._config = ""

    @property
    def public_key(self) -> Path:
        """What hosts are to trust."""
        return self.key.with_suffix(".pub")

    def knows(self, name: str, host: SshHost, *lines: str) -> None:
        """Write a host into the configuration, and its key into `known_hosts`."""
        self.config(name, host, *lines)
        with (self.ssh / "known_hosts").open("a") as file:
            file.write(host.known_hosts_line)

    def config(self, name: str, host: SshHost, *lines: str) -> None:
        """Write a host into the configuration alone."""
        self._config += f"Host {name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User me\n"
        self._config += "".join(f"  {line}\n" for line in lines)
        (self.ssh / "config").write_text(self._config)
