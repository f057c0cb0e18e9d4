"""What runs a model: a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lockstep.core.text import message
from lockstep.wings.serve.failures import ModelFailedError, RequestError, TooSlowError
from lockstep.wings.serve.servable import Array, Arrays, Servable


class ThreadRunner:
    """Runs a servable on a thread of its own.

    Parameters
    ----------
    servable
        What runs.
    reopen
        Opens it once more, where a run does not end: Python ends no thread, so that one is left behind.
    timeout_s
        How long a run may take.
    """

    def __init__(
        self, servable: Servable, reopen: Callable[[], Servable], *, timeout_s: float
    ) -> None:
        self._servable, self._reopen, self._timeout_s = servable, reopen, timeout_s
        self._thread = _one_thread()

    async def run(self, inputs: Arrays) -> dict[str, Array]:
        """Compute one batch; see `Runner`."""
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._thread, checked, self._servable, inputs)
        try:
            return await asyncio.wait_for(running, self._timeout_s)
        except asyncio.TimeoutError as error:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = _one_thread()
            self._servable = await loop.run_in_executor(self._thread, self._reopen)
            raise TooSlowError(
                f"the model did not answer within {self._timeout_s:g} s; it was opened anew"
            ) from error

    async def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def checked(servable: Servable, inputs: Arrays) -> dict[str, Array]:
    """What a servable gives, held against its signature.

    Raises
    ------
    ModelFailedError
        If it raises, or does not give every output.
    """
    try:
        results = servable.infer(inputs)
    except RequestError:
        raise
    except Exception as error:
        raise ModelFailedError(
            f"the model raised {type(error).__name__}: {message(str(error))}"
        ) from error
    for spec in servable.signature.outputs:
        if spec.name not in results:
            raise ModelFailedError(f"the model did not give its output {spec.name}")
        if results[spec.name].dtype != spec.dtype:
            raise ModelFailedError(
                f"the model gave {spec.name} as {results[spec.name].dtype}, not {spec.dtype}"
            )
    return results


def _one_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="lockstep-serve")
