"""One version in the cluster: an application of Ray Serve, which places replicas and begins others for the dead."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_serve.cluster.contents import contents_of
from lockstep_serve.cluster.replica import MARK, Replica
from lockstep_serve.cluster.scale import Scale
from lockstep_serve.opening import Source
from lockstep_serve.servable import Signature

_DEPLOYMENT = "version"
_OPENING_S = 120.0
"""How long replicas may take to come, and then one to say what it runs."""

_LOOKING_S = 0.1
"""How often Ray is asked whether they have come."""

_BUILDING = threading.Lock()
"""Ray builds one deployment at a time: two threads that do so fail in its pickling."""

_TRIES = 3
"""Replicas in a row that may fail as they open a version."""

_ENDING_S = 5.0
"""How long what still runs may take once nobody asks any more."""


class Application:
    """A version that is deployed.

    name: In the cluster, where no other has it.
    source: What its replicas open.
    scale: How many of them there are.
    cpus: Of a node that each takes, as Ray counts them.
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
            The platform, and the signature with what was decided of batches.

        Raises
        ------
        UsageError
            If a node cannot open the version; it is named.
        """
        try:
            self.handle = await asyncio.to_thread(self._asked_for)
            await self._running()
            return await asyncio.wait_for(self._described(), _OPENING_S)
        except (asyncio.TimeoutError, RayError, RayServeException) as error:
            await self.release()
            raise UsageError(f"the cluster did not begin it ({_reason(str(error))})") from error
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

    async def _running(self) -> None:
        """Wait until the replicas are there."""
        told, loop = "", asyncio.get_running_loop()
        ends_s = loop.time() + _OPENING_S
        while loop.time() < ends_s:
            found = (await asyncio.to_thread(serve.status)).applications[self.name]
            if found.status == ApplicationStatus.RUNNING:
                return
            told = found.deployments[_DEPLOYMENT].message if found.deployments else found.message
            if found.status == ApplicationStatus.DEPLOY_FAILED or MARK in told:
                raise UsageError(_reason(told))
            await asyncio.sleep(_LOOKING_S)
        raise UsageError(f"its replicas did not come within {_OPENING_S:g} s ({_reason(told)})")

    def _asked_for(self) -> Any:
        source = self._source
        arguments = (
            str(source.path.absolute()),
            source.device,
            dict(source.settings),
            contents_of(source.path),
            self._scale.timeout_s,
        )
        with _BUILDING:
            target = serve.RunTarget(
                self._deployment().bind(*arguments), name=self.name, route_prefix=None
            )
            return serve.run_many([target], wait_for_applications_running=False)[0]

    def _deployment(self) -> Any:
        source, scale = self._source, self._scale
        return serve.deployment(
            Replica,
            name=_DEPLOYMENT,
            # A run that waits does so in front, where whichever replica is idle first is given it.
            max_ongoing_requests=1,
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


def _reason(told: str) -> str:
    """The sentence by which a replica has refused, out of what Ray says of it."""
    return message(told.rpartition(MARK)[2].partition("\n")[0] if MARK in told else told)
