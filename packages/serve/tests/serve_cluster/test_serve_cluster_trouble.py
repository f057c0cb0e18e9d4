"""Versions that are exchanged, requests at fault, nodes that lack a model, and the end of it all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import serve_models
from ray_nodes import Nodes
from serve_cluster_clients import ask, until
from serve_cluster_models import held
from serve_process import Served, serving

http = pytest.importorskip("tritonclient.http", reason="needs tritonclient, of the dev extra")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a cluster of its own, and a reference that its model leaves."""
    folder = tmp_path_factory.mktemp("own")
    held(folder, "held", folder.parent / "beside_own")
    serve_models.deep(folder / "deep" / "1" / "model.onnx", fault=3, factor=1.01)
    reference = serve_models.deep(folder.parent / "references" / "deep" / "1" / "model.onnx")
    with serving(
        folder, "--engine", "ray", "--share", "100%",
        "--shadow", reference.parents[2], "--record", folder.parent / "left",
    ) as served:  # fmt: skip
        yield served


def test_a_request_at_fault_is_told_and_the_others_answered(own: Served) -> None:
    for value, words in (
        (1.0, "the model raised ValueError: a one"),
        (2.0, "the replica that ran the model died"),
    ):
        # Given requests of which one makes the model raise, or end its process
        with ThreadPoolExecutor(3) as threads:
            asked = [threads.submit(ask, own, "held", one) for one in (8.0, value, 9.0)]
            # Then that one alone is told
            with pytest.raises(utils.InferenceServerException, match=words):
                asked[1].result()
            assert [asked[0].result()[0], asked[2].result()[0]] == [16.0, 18.0]


def test_a_replica_that_hangs_is_replaced(tmp_path: Path) -> None:
    held(tmp_path / "models", "held", tmp_path / "beside")
    with serving(tmp_path / "models", "--engine", "ray", "--timeout", "4") as served:
        # Given a request that hangs, which is told so in its time
        hung = ask(served, "held", 8.0)[1]
        with pytest.raises(utils.InferenceServerException, match="held did not answer within 4 s"):
            ask(served, "held", 3.0)

        def by_another() -> bool:
            with contextlib.suppress(utils.InferenceServerException):  # while the other begins
                return bool(ask(served, "held", 8.0)[1] != hung)
            return False

        # Then others are answered by another replica
        until(by_another)


def test_a_planted_fault_is_named_through_the_cluster(own: Served) -> None:
    x = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")
    given = http.InferInput("x", [4, 16], "FP32")
    given.set_data_from_numpy(x)
    client = http.InferenceServerClient(own.http)
    client.infer("deep", [given])
    told: dict[str, Any] = until(lambda: _parity(own, "deep"))
    assert told["verdict"] == "diverged"
    assert "lockstep compare" in told["first"]["compare"]


def _parity(served: Served, model: str) -> Any:
    with urlopen(f"http://{served.http}/v2/models/{model}/parity") as answer:
        told = json.load(answer)
    return told if told["compared"] else None


def test_versions_are_exchanged_under_load_without_losing_a_request(
    nodes: Nodes, tmp_path: Path
) -> None:
    weight = (np.arange(4)[:, None] - np.arange(3)[None]).astype("float32")
    x = np.arange(12, dtype="float32").reshape(3, 4)
    serve_models.linear(tmp_path / "linear" / "1" / "model.onnx")

    def answer(client: Any) -> float:
        given = http.InferInput("x", [3, 4], "FP32")
        given.set_data_from_numpy(x)
        found = client.infer("linear", [given]).as_numpy("y")
        scale = float(found[1, 0] / (x @ weight)[1, 0])
        assert np.array_equal(found, x @ weight * np.float32(scale))
        return scale

    stop = threading.Event()

    def hammer(served: Served) -> list[float]:
        client, found = http.InferenceServerClient(served.http), []
        while not stop.is_set():
            found.append(answer(client))
        return found

    with (
        serving(tmp_path, "--engine", "ray", "--cluster", nodes.address) as served,
        ThreadPoolExecutor(3) as threads,
    ):
        # Given clients that ask without pause, when a version is added, and then the newest exchanged in its place
        client = http.InferenceServerClient(served.http)
        hammering = [threads.submit(hammer, served) for _ in range(3)]
        try:
            for number, scale in ((2, 2.0), (2, 3.0)):
                serve_models.linear(tmp_path / "linear" / str(number) / "model.onnx", scale=scale)
                client.load_model("linear")
                assert answer(client) == scale
        finally:
            stop.set()
        # Then all are answered, by the old and then by the new
        for one in hammering:
            assert one.result() == sorted(one.result())
            assert len(one.result()) > 2
        # And one that is unloaded is not there
        client.unload_model("linear")
        with pytest.raises(utils.InferenceServerException, match="is not loaded: unloaded"):
            answer(client)


def test_a_node_that_cannot_open_a_model_is_named(nodes: Nodes, tmp_path: Path) -> None:
    # Given a model that opens on the head alone
    head = nodes.ids[0]
    file = tmp_path / "picky" / "1" / "servable.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import ray\n"
        "from lockstep_serve.servable import Signature\n"
        "class Nothing:\n    platform, signature = 'python', Signature((), ())\n"
        "def load(version_dir):\n"
        f"    if ray.get_runtime_context().get_node_id() != {head!r}:\n"
        "        raise FileNotFoundError('no weights here')\n"
        "    return Nothing()\n"
    )
    serve_models.linear(tmp_path / "linear" / "1" / "model.onnx")
    words = ("--engine", "ray", "--cluster", nodes.address, "--replicas", "2")
    with serving(tmp_path, *words) as served:
        index = http.InferenceServerClient(served.http).get_model_repository_index()
    # Then it is not served, and says which node is at fault; the rest is served
    found = {one["name"]: one for one in index}
    assert found["linear"]["state"] == "READY"
    other = nodes.ids[1]
    assert f"node 127.0.0.1 ({os.uname().nodename}, {other[:8]})" in found["picky"]["reason"]
    assert "no weights here" in found["picky"]["reason"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_a_cluster_of_its_own_outlives_the_server(
    tmp_path: Path, ending: signal.Signals
) -> None:
    # Given a server with a cluster of its own
    model = serve_models.linear(tmp_path / "model.onnx")
    command = [sys.executable, "-m", "lockstep", "serve", str(model), "--engine", "ray"]
    process = subprocess.Popen(
        [*command, "--http", "0", "--grpc", "off"], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http http://127.0.0.1:")
        children = _descendants(process.pid)
        assert len(children) > 5
        # whom this machine alone can reach, as its replicas unpickle what they are sent
        assert _listening({process.pid, *children}) == LOOPBACK
        # When it is ended
        process.send_signal(ending)
        process.wait(60)
    # Then all that it has begun end too
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in children), patience_s=120)


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 in /proc/net/tcp, and as tcp6 has it."""


def _listening(processes: set[int]) -> set[str]:
    """The addresses at which any of them listens."""
    sockets = set()
    for one in processes:
        for opened in Path(f"/proc/{one}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets.add(str(opened.readlink()))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                found.add(local.partition(":")[0])
    return found


def _descendants(process: int) -> set[int]:
    parents = {}
    for one in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(one.name)] = int((one / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {process}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {process}


OF_ANOTHER_RAY = """
import os, sys
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
import ray
ray.__version__ = "2.1.0"
from lockstep.cli.main import main
sys.exit(main())
"""


def test_a_cluster_of_another_ray_is_said(nodes: Nodes, tmp_path: Path) -> None:
    # Given a program whose Ray is older than that of the cluster
    model = serve_models.linear(tmp_path / "model.onnx")
    words = ["serve", str(model), "--http", "0", "--engine", "ray", "--cluster", nodes.address]
    command = [sys.executable, "-c", OF_ANOTHER_RAY, *words]
    found = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    # Then it is one sentence
    assert found.returncode == 2
    assert "is not a cluster that Ray 2.1.0 of Python" in found.stderr
    assert "Version mismatch" in found.stderr
    assert "Traceback" not in found.stderr
