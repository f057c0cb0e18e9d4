"""The engine of a cluster: each version is an application of Ray Serve, with as many replicas as its requests need."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from lockstep_serve.cluster.connection import Connection, connected
from lockstep_serve.cluster.scale import Scale
from lockstep_serve.engine import OpenedRunner
from lockstep_serve.opening import Source

_OPENED_AT_ONCE = 4
"""Versions; a replica takes seconds to begin, most of which it loads its libraries."""


class ClusterEngine:
    """Runs versions in a cluster of Ray.

    address: Of the cluster, as `ray start` has told it; None begins one of this machine.
    scale: How many replicas a version has.
    """

    def __init__(self, address: str | None, scale: Scale) -> None:
        self._address, self._scale = address, scale
        self._connection: Connection | None = None
        self._numbers = itertools.count(1)
        self._opening = asyncio.Semaphore(_OPENED_AT_ONCE)

    async def begin(self) -> None:
        """Join the cluster; see `Engine`. It is done on the main thread, which Ray asks for."""
        self._connection = connected(self._address)

    async def open(self, name: str, number: int, source: Source) -> Sequence[OpenedRunner]:
        """Deploy a version; see `Engine`. There are as many runners as there may be replicas: what they are
        asked at once tells Ray how many there should be."""
        from lockstep_serve.cluster.application import Application
        from lockstep_serve.cluster.ray_runner import RayRunner

        assert self._connection is not None, "begin() comes first"
        # A cluster of this machine is nobody else's: there is nothing to be shared out.
        cpus = 0 if self._connection.is_own else source.settings.get("threads") or 1
        application = Application(
            f"{self._connection.prefix}-{next(self._numbers)}-{name}-{number}",
            source,
            self._scale,
            cpus=cpus,
        )
        async with self._opening:
            platform, signature = await application.deployed()
        runner = RayRunner(
            application.handle,
            platform,
            signature,
            timeout_s=self._scale.timeout_s,
            release=application.release,
        )
        return [runner] * self._scale.most

    async def close(self) -> None:
        """Leave the cluster, and nothing of this server in it."""
        if self._connection is not None:
            self._connection.leave()
