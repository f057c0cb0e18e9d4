"""Replicas and nodes that are killed while requests are on their way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes
from serve_cluster_clients import PATIENCE_S, ask, until
from serve_cluster_models import at_work, held
from serve_process import Served, serving

http = pytest.importorskip("tritonclient.http", reason="needs tritonclient, of the dev extra")
grpc = pytest.importorskip("tritonclient.grpc")

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
    words = ("--engine", "ray", "--address", nodes.address, "--replicas", "2", "--most", "3")
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
