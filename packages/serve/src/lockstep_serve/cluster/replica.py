"""A replica: opens a version on a node of the cluster and runs it, as the server's process asks through Ray."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError
from lockstep.terminal import message
from lockstep_serve.cluster.contents import refuse_other
from lockstep_serve.failures import RequestError, TooSlowError
from lockstep_serve.opening import Source
from lockstep_serve.runners import ThreadRunner
from lockstep_serve.servable import Array, Signature

MARK = "lockstep refuses: "
"""Stands before the sentence by which a replica says why it cannot be; Ray gives that as the end of a traceback."""


class RefusedError(Exception):
    """A replica cannot be on its node."""


class Replica:
    """The class that Ray runs, once for each replica.

    path, device, settings: Of the version's `Source`; strings and plain numbers, as they come by the network.
    contents: What `contents_of` gave of the version where the server is: two nodes are not to answer by two models.
    timeout_s: How long a run may take.

    Raises RefusedError if the version cannot be opened on this node.
    """

    def __init__(
        self,
        path: str,
        device: str,
        settings: dict[str, Any],
        contents: dict[str, str],
        timeout_s: float,
    ) -> None:
        _listen_as_the_node_does()
        source = Source(Path(path), device, settings)
        try:
            refuse_other(source.path, contents)
            servable = source.open()
        except (LockstepError, OSError, ImportError) as error:
            raise RefusedError(f"{MARK}node {_node()}: {message(str(error))}") from None
        again = source.like(servable.signature).open
        self._runner = ThreadRunner(servable, again, timeout_s=timeout_s)
        self._hung = False

    async def describe(self) -> tuple[str, Signature]:
        """The platform and the signature, with what was decided of batches here."""
        return self._runner.platform, self._runner.signature

    async def run(self, inputs: dict[str, Array]) -> dict[str, Array] | RequestError:
        """Compute one batch. What a request is refused with is given, not raised: Ray would wrap it in a traceback."""
        try:
            results = await self._runner.run(inputs)
        except RequestError as error:
            self._hung |= isinstance(error, TooSlowError)
            return error
        return {one.name: results[one.name] for one in self._runner.signature.outputs}

    async def check_health(self) -> None:
        """Asked by Ray, which begins another replica in the place of one that has a thread that hangs."""
        if self._hung:
            raise RefusedError("a run did not end")


def _listen_as_the_node_does() -> None:
    """Have Ray's own server in this process listen where the node is reached, and not at every address.

    It unpickles what it is sent. Ray begins it once this object is there, and tells it by the node's address anyway.
    """
    import ray
    from ray.serve._private import replica

    host, add = ray.util.get_node_ip_address(), replica.add_port_to_grpc_server
    written = f"[{host}]" if ":" in host else host
    replica.add_port_to_grpc_server = lambda server, address: add(
        server, address.replace("[::]", written)
    )


def _node() -> str:
    import ray

    number = ray.get_runtime_context().get_node_id()[:8]
    return f"{ray.util.get_node_ip_address()} ({socket.gethostname()}, {number})"
