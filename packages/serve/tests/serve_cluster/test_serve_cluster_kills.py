"""Replicas and nodes that are killed while requests are on their way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes
from serve_cluster_clients import PATIENCE_S, ask, until
from serve_cluster_models import at_work, held
from serve_process import Served, serving

REQUESTS = 24


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beside")


@pytest.fixture(scope="module")
def two_replicas(
    nodes: Nodes, beside: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Two models, each in two replicas, which Ray puts on two nodes."""
    folder = tmp_path_factory.mktemp("held")
    for name in ("one", "other"):
        held(folder, name, beside / name)
    words = ("--engine", "ray", "--cluster", nodes.address, "--replicas", "2", "--most", "3")
    with serving(folder, *words) as served:
        yield served


def asked_and_held(
    threads: ThreadPoolExecutor, served: Served, model: str, beside: Path
) -> tuple[list[Future[Any]], dict[int, str]]:
    """Requests, of which two runs are held by two replicas and the rest waits."""
    (beside / "hold").touch()
    asked = [threads.submit(ask, served, model, 10.0 + one) for one in range(REQUESTS)]
    processes = until(lambda: len(found := at_work(beside)) == 2 and found)
    return asked, processes


def test_a_killed_replica_loses_no_request(two_replicas: Served, beside: Path) -> None:
    # Given two replicas on two nodes, each with a run, and requests that wait
    beside = beside / "one"
    with ThreadPoolExecutor(REQUESTS) as threads:
        asked, processes = asked_and_held(threads, two_replicas, "one", beside)
        assert len(set(processes.values())) == 2
        # When one is killed
        killed = next(iter(processes))
        os.kill(killed, signal.SIGKILL)
        (beside / "hold").unlink()
        found = [one.result(timeout=PATIENCE_S) for one in asked]
    # Then all are answered, each with its own, by the other, and requests that waited ran together
    assert [y for y, *_ in found] == [2 * (10.0 + one) for one in range(REQUESTS)]
    assert killed not in {by for _, by, _ in found}
    assert max(ran for *_, ran in found) == 3
    # And Ray begins another
    until(lambda: ask(two_replicas, "one", 10)[1] not in processes)


def test_a_killed_node_loses_no_request(nodes: Nodes, two_replicas: Served, beside: Path) -> None:
    beside = beside / "other"
    # Given two replicas on two nodes, each with a run, and requests that wait
    with ThreadPoolExecutor(REQUESTS) as threads:
        asked, processes = asked_and_held(threads, two_replicas, "other", beside)
        # When a whole node is killed
        killed = next(one for one in nodes.ids[1:] if one in processes.values())
        nodes.kill(killed)
        gone = {process for process, node in processes.items() if node == killed}
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in gone))
        (beside / "hold").unlink()
        found = [one.result(timeout=PATIENCE_S) for one in asked]
    # Then all are answered, each with its own, by what is left
    assert [y for y, *_ in found] == [2 * (10.0 + one) for one in range(REQUESTS)]
    assert not gone & {by for _, by, _ in found}
    nodes.add()


def test_a_replica_more_comes_while_requests_wait_and_none_stays_of_a_killed_server(
    nodes: Nodes, tmp_path: Path
) -> None:
    beside = held(tmp_path / "models", "held", tmp_path / "beside")
    words = (tmp_path / "models", "--engine", "ray", "--cluster", nodes.address)
    # Given a server that was killed, which leaves its version in the cluster
    command = [sys.executable, "-m", "lockstep", "serve", *map(str, words), "--http", "0"]
    with subprocess.Popen([*command, "--grpc", "off"], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline().startswith("http")
        left = replicas("held")
        killed.kill()
    assert len(left) == 1
    # When another joins, with one replica that may become two
    with serving(*words, "--replicas", "1..2") as served, ThreadPoolExecutor(4) as threads:
        # Then what was left ends
        until(lambda: not left & replicas("held"))
        # And while a run keeps the one replica busy and others wait, a second comes
        (beside / "hold").touch()
        asked = [threads.submit(ask, served, "held", 10.0 + one) for one in range(4)]
        until(lambda: len(at_work(beside)) == 2)
        (beside / "hold").unlink()
        assert [one.result()[0] for one in asked] == [20.0, 22.0, 24.0, 26.0]


def replicas(model: str) -> set[int]:
    """The processes of a model's replicas."""
    named = f"ray::ServeReplica:lockstep-[0-9a-f]+-[0-9]+-{model}-".encode()
    found = set()
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if re.match(named, (one / "cmdline").read_bytes()):
                found.add(int(one.name))
        except OSError:
            continue
    return found
