"""Tasks on a Ray cluster."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import socket
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack, redirect_stdout
from typing import Any

from lockstep.core.errors import UsageError
from lockstep.core.known_results import Values, Work
from lockstep.core.text import message
from lockstep.engines.engine_pieces import Job, Piece, StateError, computed

_RETRIES = 3
"""How often Ray computes a piece again whose worker or node was lost."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

_ANSWERING_S = 5.0
"""How long an address may take to be reached."""

_PATIENCE_S = 30.0
"""How long a cluster may have no processor before that is told."""

_NOT_INSTALLED = "--engine ray: Ray is not installed here: pip install 'lockstep-numerics[cluster]'"


class RayTasks:
    """Computes pieces as tasks of Ray Core; an `Engine`.

    address: Of the cluster; "" starts one on this machine, which ends with the comparison.
    workers: Processors of a cluster that is started here.

    Raises UsageError if Ray is not installed, there is no cluster, or it has no processor for 30 seconds.
    """

    def __init__(self, address: str, workers: int) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not address or _answering(address) in _LOOPBACK:
            # By this Ray listens at the loopback address, as it does on systems that ask about every other.
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise UsageError(_NOT_INSTALLED) from error
        # Ray prints that a node is gone to standard output, where a program may read the answer.
        self._output = ExitStack()
        self._output.enter_context(redirect_stdout(sys.stderr))
        try:
            self._connect(address, workers)
            self._check_processors(address)
        except UsageError:
            self._output.close()
            raise
        self._task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(computed)

    @property
    def workers(self) -> int:
        """How many pieces the cluster computes at once."""
        return max(1, int(sum(self._processors())))

    @property
    def on_one_machine(self) -> int:
        """How many of these the node with the most processors computes."""
        return max(1, int(max(self._processors(), default=1)))

    def _processors(self) -> list[float]:
        """Processors of each node."""
        return [one["Resources"].get("CPU", 0) for one in self._ray.nodes() if one["Alive"]]

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """Return what will hold the results of a piece; Ray computes one again whose worker is lost."""
        told: Future[Values] = Future()

        def done(result: Future[Values]) -> None:
            error = result.exception()
            if error is None:
                told.set_result(result.result())
            else:
                told.set_exception(_as_told(error))

        self._task.remote(job, piece).future().add_done_callback(done)
        return told

    def close(self) -> None:
        """Leave the cluster; Ray ends the tasks of a comparison that has left."""
        self._ray.shutdown()
        self._output.close()

    def _connect(self, address: str, workers: int) -> None:
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False}
        try:
            self._ray.init(
                address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else own),
            )
        except Exception as error:  # Ray raises all kinds, some by no name of their own
            where = f"--cluster {address}: no cluster that Ray {self._ray.__version__} can join"
            raise UsageError(
                f"{where if address else '--engine ray: Ray cannot begin here'} ({message(str(error))})"
            ) from error

    def _check_processors(self, address: str) -> None:
        """Wait for a processor; a cluster that is busy has some, and is waited for."""
        pause, waited_s = threading.Event(), 0.0
        while not self._ray.cluster_resources().get("CPU", 0) >= 1:
            if waited_s >= _PATIENCE_S:
                has = ", ".join(sorted(self._ray.cluster_resources())) or "nothing"
                self._ray.shutdown()
                raise UsageError(
                    f"--engine ray: the cluster at {address or 'this machine'} has had no processor for"
                    f" {_PATIENCE_S:.0f} s, and a piece takes one (it has {has}); add a node with ray start --num-cpus"
                )
            pause.wait(0.5)
            waited_s += 0.5


def check_ray(address: str) -> None:
    """Check that Ray is installed, and that something answers at the address of a cluster, if one is given.

    Raises UsageError if not.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError(_NOT_INSTALLED)
    if address:
        _answering(address)


def _answering(address: str) -> str:
    """The host of an address, once something has answered there: Ray would try for minutes and end the process."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise UsageError(f"--cluster {address}: is no HOST:PORT, as in 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERING_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"--cluster {address}: nothing answers there ({error}); start a cluster with ray start --head, or leave out"
            " --cluster"
        ) from error
    return host


def _as_told(error: BaseException) -> BaseException:
    """What a task raised, without Ray's wrapping; a worker without Lockstep cannot take part."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, StateError):
        return cause
    if isinstance(error, StateError):  # Ray gives its wrapper the class of the cause
        return StateError(str(cause) if cause is not None else str(error).splitlines()[-1])
    if isinstance(cause, ModuleNotFoundError):
        return StateError(
            f"a worker cannot import {cause.name}; install the same version of lockstep-numerics on each node"
        )
    return error
