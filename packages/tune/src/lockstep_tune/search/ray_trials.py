"""Trials on a Ray cluster: each is a task that takes what the search file says, and runs where that is free."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep_tune.search.plan import Resources
from lockstep_tune.search.study import end_processes, trial_folder
from lockstep_tune.search.trial import Came

_ANSWERING_S = 5.0
"""How long an address may take to be reached."""

_PATIENCE_S = 30.0
"""How long no node may be large enough before that is told."""

_ENDING_S = 20.0
"""How long a node may take to end what a lost trial has left there."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")

NODE = "node"
"""The attribute of a trial that names the node of the cluster on which it runs."""


class LostTrialError(Exception):
    """The node or the process of a trial is gone; the message says how Ray puts it."""


class RayTrials:
    """Runs trials as tasks of Ray.

    address: Of the cluster; "" starts one on this machine, which ends with the search.
    resources: The processors and accelerators that one trial takes.
    at_once: How many trials run at a time, on a cluster that is started here.
    task: Runs one trial, on a node.

    Raises UsageError if Ray is not installed, there is no cluster, or no node of it is large enough for 30 seconds.
    """

    def __init__(
        self, address: str, resources: Resources, at_once: int, task: Callable[..., Came]
    ) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not address or _answering(address) in _LOOPBACK:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # at the loopback address alone
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise UsageError(
                "--engine ray: Ray is not installed here: pip install 'lockstep-numerics[cluster]'"
            ) from error
        # Ray prints that a node is gone to standard output, where a program may read the answer.
        self._output = ExitStack()
        self._output.enter_context(redirect_stdout(sys.stderr))
        try:
            self._connect(address, resources, at_once)
            self._check_size(address, resources)
        except UsageError:
            self._output.close()
            raise
        chosen = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": 0}
        self._task = self._ray.remote(**chosen)(task)
        self._end = self._ray.remote(num_cpus=0, max_retries=0)(_ended)

    def run(self, *arguments: object) -> Came:
        """Run one trial to its end, where there is room for it; `arguments` are those of the task.

        Raises LostTrialError if its node or its process is gone. Raises LockstepError if no trial could be run so.
        """
        try:
            came: Came = self._ray.get(self._task.remote(*arguments))
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, LockstepError):
                raise cause from None
            if isinstance(cause, ModuleNotFoundError):
                raise UsageError(
                    f"a node cannot import {cause.name}; install the same version of lockstep-numerics[tune] on each"
                ) from error
            raise LostTrialError(str(cause)) from error
        except self._ray.exceptions.RayError as error:
            raise LostTrialError(str(error).strip().partition("\n")[0]) from error
        return came

    def end(self, folder: Path, number: int, node: str) -> None:
        """End what a lost trial has left on its node, if that is still there."""
        if node not in {one["NodeID"] for one in self._ray.nodes() if one["Alive"]}:
            return
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        asked = self._end.options(scheduling_strategy=there).remote(trial_folder(folder, number))
        self._ray.wait([asked], timeout=_ENDING_S)

    def close(self) -> None:
        """Leave the cluster; Ray ends the trials of a search that has left."""
        self._ray.shutdown()
        self._output.close()

    def _connect(self, address: str, resources: Resources, at_once: int) -> None:
        own = {"num_cpus": max(1, resources.cpus * at_once), "include_dashboard": False}
        try:
            self._ray.init(
                address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else own),
            )
        except Exception as error:  # Ray raises all kinds, some by no name of their own
            where = f"--cluster {address}: no cluster that Ray {self._ray.__version__} can join"
            why = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"{where if address else '--engine ray: Ray cannot begin here'} ({why})"
            ) from error

    def _check_size(self, address: str, resources: Resources) -> None:
        """Wait for a node that is large enough; one that is busy is, and is waited for."""
        pause, waited_s = threading.Event(), 0.0
        while not any(map(resources.fit, self._sizes())):
            if waited_s >= _PATIENCE_S:
                has = "; ".join(f"{one.cpus:g} CPU, {one.gpus:g} GPU" for one in self._sizes())
                self._ray.shutdown()
                raise UsageError(
                    f"--engine ray: no node of the cluster at {address or 'this machine'} has had"
                    f" {resources.cpus} CPU and {resources.gpus} GPU for {_PATIENCE_S:.0f} s, and a trial takes them"
                    f" (nodes have {has or 'nothing'}); add a node, or give less under `resources:`"
                )
            pause.wait(0.5)
            waited_s += 0.5

    def _sizes(self) -> list[Resources]:
        alive = [one["Resources"] for one in self._ray.nodes() if one["Alive"]]
        return [Resources(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in alive]


def node_here() -> str:
    """Return the id of the node on which a task calls this."""
    return str(importlib.import_module("ray").get_runtime_context().get_node_id())


def _ended(folder: Path) -> None:
    end_processes(folder)


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
