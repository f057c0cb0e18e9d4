"""Run a model in this process: on a thread, or on the event loop's thread if the model is quick."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from lockstep.errors import LockstepError
from lockstep.terminal import message
from lockstep_serve.failures import ModelFailedError, RequestError, TooSlowError
from lockstep_serve.in_place import QUICK_ALONE_S, QUICK_S, InPlace
from lockstep_serve.servable import Array, Arrays, Servable


class ThreadRunner:
    """Runs a servable on a thread of its own.

    servable: What runs.
    reopen: Opens it once more, where a run does not end: Python ends no thread, so that one is left behind.
    timeout_s: How long a run may take.
    """

    def __init__(
        self, servable: Servable, reopen: Callable[[], Servable], *, timeout_s: float
    ) -> None:
        self.platform, self.signature = servable.platform, servable.signature
        self._servable: Servable | None = servable
        self._reopen, self._timeout_s = reopen, timeout_s
        self._worker = Worker()
        self.in_place = _in_place(servable)

    async def run(self, inputs: Arrays, *, alone: bool = False) -> dict[str, Array]:
        """Compute one batch; see `Runner`."""
        if self._servable is None:
            self._servable = await self._opened()
        found = self.made_in(QUICK_ALONE_S if alone else QUICK_S, inputs)
        if found is not None:
            return found
        switch = None if self.in_place is None else self._servable.switch()  # type: ignore[attr-defined]
        called = self._worker.call(_timed, self._servable, inputs, switch)
        timer = asyncio.get_running_loop().call_later(self._timeout_s, _give_up, called)
        try:
            seconds, results = await called
            if self.in_place is not None:
                self.in_place.took(inputs, seconds)
            return results  # type: ignore[no-any-return]
        except asyncio.TimeoutError as error:
            if switch is not None:
                switch.terminate = True
            self._let_go()
            self._worker, self._servable = Worker(), None
            self._servable = await self._opened()
            self.in_place = _in_place(self._servable)
            raise TooSlowError(
                f"the model did not answer within {self._timeout_s:g} s; it was opened anew"
            ) from error
        finally:
            timer.cancel()

    def made_in(self, seconds: float, inputs: Arrays) -> dict[str, Array] | None:
        """Compute one batch at once, where that took no longer before; None where not."""
        if self.in_place is None or not self.in_place.within(seconds, inputs):
            return None
        return self.in_place.run(inputs)

    async def close(self) -> None:
        """Let the thread end."""
        self._let_go()

    def _let_go(self) -> None:
        self._worker.end()
        if self.in_place is not None:
            self.in_place.end()
            self.in_place = None

    async def _opened(self) -> Servable:
        """The model once more; where that fails, the next request tries it again."""
        try:
            servable: Servable = await self._worker.call(self._reopen)
        except LockstepError as error:
            raise ModelFailedError(f"it cannot be opened anew: {error}") from error
        return servable


class Worker:
    """A thread that makes calls one after the other, and that an interpreter does not wait for when it ends."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="lockstep-serve", daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Make a call, and get what it returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(put: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                put(value)

        def make() -> None:
            put: Callable[[Any], None] = future.set_result
            try:
                value = function(*arguments)
            except BaseException as error:  # SystemExit would end the thread, and nobody would know
                put, value = future.set_exception, error
            with suppress(RuntimeError):  # the loop has ended; nobody waits
                loop.call_soon_threadsafe(settle, put, value)

        self._calls.put(make)
        return future

    def end(self) -> None:
        """End after all calls that were made."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _give_up(called: asyncio.Future[Any]) -> None:
    if not called.done():
        called.set_exception(asyncio.TimeoutError())


def _in_place(servable: Servable) -> InPlace | None:
    """Where a run can be ended from another thread, quick ones may be made on the thread that answers."""
    switch = servable.switch() if hasattr(servable, "switch") else None
    if switch is None:
        return None
    return InPlace(lambda inputs, switch: _apart(servable, inputs, switch), switch)


def _timed(servable: Servable, inputs: Arrays, switch: Any) -> tuple[float, dict[str, Array]]:
    began_s = time.thread_time()
    results = _apart(servable, inputs, switch)
    return time.thread_time() - began_s, results


def _apart(servable: Servable, inputs: Arrays, switch: Any = None) -> dict[str, Array]:
    """What a servable gives that may write into its inputs, and give the same buffer each time: both are copied.

    What was asked is still to be held against a reference, and an answer is sent while the next run is at work.
    """
    if getattr(servable, "leaves_arrays_alone", False):
        return checked(servable, inputs, switch)
    results = checked(servable, {name: one.copy() for name, one in inputs.items()})
    return {name: results[name].copy() for name in (one.name for one in servable.signature.outputs)}


def raised(error: BaseException) -> str:
    """Return the error that the user's own code raised, in words; `sys.exit(3)` is "SystemExit: 3"."""
    return f"{type(error).__name__}: {message(str(error))}"


def checked(servable: Servable, inputs: Arrays, switch: Any = None) -> dict[str, Array]:
    """Return a servable's outputs, checked against its signature; `switch` goes to one that has such.

    Raises ModelFailedError if it raises, or does not give every output as its signature has it.
    """
    try:
        results = servable.infer(*([inputs] if switch is None else [inputs, switch]))
    except RequestError:
        raise
    except BaseException as error:  # sys.exit() of a model ends the request, not the server
        raise ModelFailedError(f"the model raised {raised(error)}") from error
    if not isinstance(results, dict):
        raise ModelFailedError(f"the model gave a {type(results).__name__}, and no dict of arrays")
    for spec in servable.signature.outputs:
        value = results.get(spec.name)
        if not isinstance(value, np.ndarray):
            raise ModelFailedError(f"the model did not give its output {spec.name} as an array")
        if value.dtype != spec.dtype:
            raise ModelFailedError(f"the model gave {spec.name} as {value.dtype}, not {spec.dtype}")
    return results
