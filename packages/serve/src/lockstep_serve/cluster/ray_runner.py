"""A runner that asks the replicas of a Ray deployment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException

from lockstep.terminal import message
from lockstep_serve.failures import (
    ModelFailedError,
    NotReadyError,
    RequestError,
    RunnerDiedError,
    TooSlowError,
)
from lockstep_serve.servable import Array, Arrays, Signature

_LOG = logging.getLogger("lockstep.serve")

_BEGINNING_S = 60.0
"""How long a run may wait for a replica to come, beside its own time."""


class RayRunner:
    """Has runs of a deployment's replicas; it holds nothing of a run, so it may stand for several runners.

    handle: Of the deployment.
    platform, signature: As a replica has told them.
    timeout_s: How long a run may take, which the replica sees to.
    release: Lets go of the deployment; may be called more than once.
    """

    def __init__(
        self,
        handle: Any,
        platform: str,
        signature: Signature,
        *,
        timeout_s: float,
        release: Callable[[], Awaitable[None]],
    ) -> None:
        self.platform, self.signature = platform, signature
        self._handle, self._timeout_s, self._release = handle, timeout_s, release

    async def run(self, inputs: Arrays, *, alone: bool = False) -> dict[str, Array]:
        """Compute one batch; see `Runner`."""
        allowed_s = self._timeout_s + _BEGINNING_S
        try:
            told = await asyncio.wait_for(self._asked(inputs), allowed_s)
        except asyncio.TimeoutError as error:
            raise TooSlowError(f"no replica answered within {allowed_s:g} s") from error
        except RayActorError as error:
            died = RunnerDiedError("the replica that ran the model died")
            _LOG.warning("%s; Ray begins another", died)
            raise died from error
        except RayServeException as error:
            raise NotReadyError(f"its deployment cannot be asked: {message(str(error))}") from error
        except RayError as error:
            raise ModelFailedError(message(str(error))) from error
        if isinstance(told, RequestError):
            raise told
        return told

    async def close(self) -> None:
        """Let go of the deployment."""
        await self._release()

    async def _asked(self, inputs: Arrays) -> dict[str, Array] | RequestError:
        told: dict[str, Array] | RequestError = await self._handle.run.remote(dict(inputs))
        return told
