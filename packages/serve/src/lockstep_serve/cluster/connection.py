"""A Ray cluster: one that is there, or one of this machine alone that lives as long as the server."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.terminal import message

_LOG = logging.getLogger("lockstep.serve")
_FOLDER = "lockstep-ray-"
_PREFIX = "lockstep-"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_ANSWERING_S = 5.0
"""How long an address may take to be reached."""

_OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster of this machine: what is on its way to replicas and back lies there."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster that this process has joined.

    folder: Of the files of a cluster that was begun here; None of another.
    prefix: Of the names of this server's applications; it has the number by which Ray knows this process.
    began_serve: Whether Ray Serve was not there before.
    """

    folder: Path | None
    prefix: str = ""
    began_serve: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the cluster was begun here, and ends with this process."""
        return self.folder is not None

    def leave(self) -> None:
        """Leave the cluster; one that was begun here ends, and in another Ray Serve where it was begun for us alone."""
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # threads that find it gone
        if self.began_serve and not self.is_own:
            with contextlib.suppress(Exception):  # the cluster may be gone already
                if all(one.startswith(self.prefix) for one in serve.status().applications):
                    serve.shutdown()
        ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def connected(address: str | None) -> Connection:
    """Join the cluster at an address, or begin one that this machine alone can reach.

    Raises UsageError if Ray is not installed, or no cluster of it answers at the address.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # What still runs after the end would begin a cluster of its own.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    if address is None or _answering(address) in _LOOPBACK:
        # By this Ray listens at the loopback address, as it does on systems that ask about every other.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise UsageError(
            "--engine ray: Ray Serve is not installed here: pip install 'lockstep-numerics[serve-cluster]'"
        ) from error
    folder = None if address else _new_folder()
    begun = {
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_temp_dir": str(folder),
    }
    try:
        ray.init(
            address or "local", log_to_driver=False, logging_level=logging.ERROR, **(begun if folder else {})
        )  # fmt: skip
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        logging.getLogger("asyncio").addFilter(_is_not_of_ray)
        # Ray would print there what it hears of its nodes, among the addresses that are told.
        ray._private.worker.print_to_stdstream = _heard
        began_serve = not _has_serve()
        serve.start(proxy_location="Disabled")
        _clear_after_dead_servers()
    except Exception as error:  # Ray raises all kinds, some by no name of their own
        Connection(folder).leave()
        raise UsageError(
            f"--cluster {address}: is not a cluster that Ray {ray.__version__} of Python {platform.python_version()}"
            f" can join ({message(' '.join(str(error).split()))})"
            if address
            else f"--engine ray: Ray cannot begin here ({message(str(error))})"
        ) from error
    prefix = f"{_PREFIX}{ray.get_runtime_context().get_job_id()}"
    return Connection(folder, prefix, began_serve)


def _clear_after_dead_servers() -> None:
    """Delete what servers that were killed have left in a cluster: each version goes by the number of its server."""
    from ray import serve
    from ray._private import state

    alive = {one["JobID"] for one in state.jobs() if not one["IsDead"]}
    for name in serve.status().applications:
        server = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and server not in alive:
            _LOG.info("%s is deleted: its server is gone", name)
            serve.delete(name, _blocking=False)


def _is_not_of_ray(record: logging.LogRecord) -> bool:
    """Ray's router leaves behind what it has asked of replicas that died, and asyncio shows that as a fault."""
    error = record.exc_info[1] if record.exc_info else None
    return not type(error).__module__.startswith("ray.")


def _heard(told: Mapping[str, Any], **how: Any) -> None:
    for line in told["lines"]:
        _LOG.info("Ray: %s", line)


def _new_folder() -> Path:
    """One for the files of a cluster, under the number of this process; those of dead ones are cleared away."""
    for one in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        number = one.name.removeprefix(_FOLDER).partition("-")[0]
        if number.isdecimal() and one.owner() == Path.home().owner() and not _is_there(int(number)):
            shutil.rmtree(one, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-"))


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _has_serve() -> bool:
    import ray

    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _answering(address: str) -> str:
    """The host of an address, once something has answered there: Ray would try for a minute and end the process."""
    if "://" in address:
        raise UsageError(
            f"--cluster {address}: Ray's client cannot say whether a replica had begun a run; run this"
            " on a node of the cluster, and give HOST:PORT as `ray start --head` has told it"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--cluster {address}: give HOST:PORT, as `ray start --head` has told it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERING_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--cluster {address}: nobody answers there ({error}); `ray start --head` begins a cluster, and tells where"
        ) from error
    return host
