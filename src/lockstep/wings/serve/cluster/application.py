"""One version in the cluster: an application of Ray Serve, which places replicas and begins others for the dead."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ray import serve

from lockstep.core.errors import UsageError
from lockstep.core.text import message
from lockstep.wings.serve.cluster.contents import contents_of
from lockstep.wings.serve.cluster.replica import MARK, Replica
from lockstep.wings.serve.cluster.scale import Scale
from lockstep.wings.serve.opening import Source
from lockstep.wings.serve.servable import Signature

_DEPLOYMENT = "version"
_OPENING_S = 120.0
"""How long a replica that is there may take to say what it runs."""

_TRIES = 3
"""Replicas in a row that may fail as they open a version."""

_ENDING_S = 5.0
"""How long what still runs may take once nobody asks any more."""


class Application:
    """A version that is deployed.

    Parameters
    ----------
    name
        In the cluster, where no other has it.
    source
        What its replicas open.
    scale
        How many of them there are.
    cpus
        Of a node that each takes, as Ray counts them.
    """

    def __init__(self, name: str, source: Source, scale: Scale, *, cpus: float) -> None:
        self.name = name
        self._source, self._scale, self._cpus = source, scale, cpus
        self.handle: Any = None
        self._released = False

    async def deployed(self) -> tuple[str, Signature]:
        """Have Ray begin the replicas, and ask the first of them what it runs.

        Returns
        -------
        tuple
            The platform, and the signature with what a trial has shown of batches.

        Raises
        ------
        UsageError
            If a node cannot open the version; it is named.
        """
        try:
            self.handle = await asyncio.to_thread(self._run)
            return await asyncio.wait_for(self._described(), _OPENING_S)
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """Have Ray end the replicas; does nothing the second time."""
        if self._released:
            return
        self._released = True
        with contextlib.suppress(Exception):  # a cluster that is gone has none of it any more
            if self.handle is not None:
                await asyncio.wait_for(self.handle.shutdown_async(), _ENDING_S)
            await asyncio.to_thread(serve.delete, self.name, _blocking=False)

    async def _described(self) -> tuple[str, Signature]:
        told: tuple[str, Signature] = await self.handle.describe.remote()
        return told

    def _run(self) -> Any:
        source, scale = self._source, self._scale
        deployment = serve.deployment(
            Replica,
            name=_DEPLOYMENT,
            # The second is on its way while the first runs.
            max_ongoing_requests=2,
            max_constructor_retry_count=_TRIES,
            graceful_shutdown_timeout_s=_ENDING_S,
            graceful_shutdown_wait_loop_s=0.1,
            health_check_period_s=2.0,
            ray_actor_options={
                "num_cpus": self._cpus,
                "num_gpus": int(source.device.partition(":")[0] == "cuda"),
            },
            autoscaling_config={
                "min_replicas": scale.least,
                "max_replicas": scale.most,
                "target_ongoing_requests": 1.0,
                "upscale_delay_s": 2.0,
                "downscale_delay_s": 60.0,
                "look_back_period_s": 4.0,
                "metrics_interval_s": 1.0,
            },
            logging_config={"log_level": "ERROR", "enable_access_log": False},
        )
        bound = deployment.bind(
            str(source.path.absolute()),
            source.device,
            dict(source.settings),
            contents_of(source.path),
            scale.timeout_s,
        )
        try:
            return serve.run(bound, name=self.name, route_prefix=None)
        except RuntimeError as error:
            raise UsageError(self._why(error)) from error

    def _why(self, error: RuntimeError) -> str:
        """The sentence by which a replica has refused, out of what Ray says of it."""
        found = serve.status().applications.get(self.name)
        told = found.deployments[_DEPLOYMENT].message if found else str(error)
        return message(told.rpartition(MARK)[2].partition("\n")[0] if MARK in told else told)
