"""A Ray cluster: one that is there, or one of this machine alone that lives as long as the server."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shutil
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.core.text import message

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_ANSWERING_S = 5.0
"""How long an address may take to be reached."""

_OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster of this machine: what is on its way to replicas and back lies there."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster that this process has joined.

    Parameters
    ----------
    folder
        Of the files of a cluster that was begun here; None of another.
    began_serve
        Whether Ray Serve was not there before.
    """

    folder: Path | None
    began_serve: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the cluster was begun here, and ends with this process."""
        return self.folder is not None

    def leave(self, prefix: str = "") -> None:
        """Leave the cluster; one that was begun here ends, and in another Ray Serve ends that was begun for us alone.

        Parameters
        ----------
        prefix
            Of the names of our applications.
        """
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # threads that find it gone
        if self.began_serve and not self.is_own:
            with contextlib.suppress(Exception):  # the cluster may be gone already
                others = [one for one in serve.status().applications if not one.startswith(prefix)]
                if not others:
                    serve.shutdown()
        ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def connected(address: str | None) -> Connection:
    """Join the cluster at an address, or begin one that this machine alone can reach.

    Raises
    ------
    UsageError
        If Ray is not installed, or no cluster of it answers at the address.
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
        from ray.exceptions import RayError
    except ImportError as error:
        raise UsageError(
            "--engine ray: Ray Serve is not installed here: pip install 'lockstep-numerics[serve-cluster]'"
        ) from error
    folder = None if address else Path(tempfile.mkdtemp(prefix="lockstep-ray-"))
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
        began_serve = not _has_serve()
        serve.start(proxy_location="Disabled")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, RayError) as error:
        Connection(folder).leave()
        raise UsageError(
            f"--address {address}: is no cluster that Ray {ray.__version__} of Python {platform.python_version()} can"
            f" join ({message(str(error))})"
            if address
            else f"--engine ray: Ray cannot begin here ({message(str(error))})"
        ) from error
    return Connection(folder, began_serve)


def _has_serve() -> bool:
    import ray

    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _answering(address: str) -> str:
    """The host of an address, once something has answered there: Ray would try for a minute and end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--address {address}: give HOST:PORT, as `ray start --head` has told it")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERING_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--address {address}: nobody answers there ({error}); `ray start --head` begins a cluster, and tells where"
        ) from error
    return host
