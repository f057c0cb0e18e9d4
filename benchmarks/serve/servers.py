"""The servers side by side: how each is installed, begun and asked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from loads import Connection

from lockstep_serve.servables.onnx import OnnxServable

HERE = Path(__file__).parent
WANTED = {
    "litserve": "litserve==0.2.19",
    "mlserver": "mlserver==1.7.1",
    "ray": "ray[serve]==2.60.0",
    "by hand": "fastapi==0.165.0 uvicorn[standard]==0.54.0",
}
X = np.linspace(-1, 1, 64, dtype="float32")
_START_S = 120.0


@dataclass
class Server:
    """A server that answers: its process, how long it took to answer first, and where it is asked."""

    process: subprocess.Popen[bytes]
    start_s: float
    port: int
    path: str
    body: bytes

    def connect(self) -> Connection:
        """A connection that asks for the model's answer to `X`."""
        return Connection(self.port, self.path, self.body)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        ticks = 0
        for one in _tree(self.process.pid):
            fields = _text(f"/proc/{one}/stat").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Memory of all its processes, what they share counted in each."""
        pages = [_text(f"/proc/{one}/statm").split() for one in _tree(self.process.pid)]
        return sum(int(one[1]) for one in pages if one) * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def serving(name: str, model: Path, environments: Path, scratch: Path) -> Iterator[Server]:
    """Begin a server, and end it and all of its processes."""
    port = _free_port()
    command, path, body, variables = _how(name, model, port, environments, scratch)
    began = time.perf_counter()
    log = scratch / f"{name}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            stdout=said,
            stderr=said,
            env={**os.environ, **variables},
            cwd=scratch,
            start_new_session=True,
        )
    wanted = OnnxServable(model, "cpu").infer({"x": X[None]})["y"][0]
    try:
        server = Server(process, 0.0, port, path, body)
        _answers(server, wanted, began, log)
        server.start_s = time.perf_counter() - began
        yield server
    finally:
        processes = [*_tree(process.pid)]
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
        for one in processes:  # what a server leaves behind would be measured with the next
            if _text(f"/proc/{one}/stat"):
                os.kill(one, signal.SIGKILL)
        process.wait()


def installed(name: str, environments: Path) -> Path:
    """The Python of a peer's own environment; it is made where it is not there."""
    environment = environments / name.replace(" ", "-")
    python, ready = environment.absolute() / "bin" / "python", environment / ".installed"
    if not ready.exists() or ready.read_text() != WANTED[name]:
        print(f"installing {WANTED[name]} into {environment}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        packages = [*WANTED[name].split(), f"onnxruntime=={onnxruntime.__version__}", "numpy"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        ready.write_text(WANTED[name])
    return python


def _how(
    name: str, model: Path, port: int, environments: Path, scratch: Path
) -> tuple[list[str], str, bytes, dict[str, str]]:
    """The command, the path that is asked, the body and variables of the environment."""
    one = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": X.tolist()}
    protocol = json.dumps({"inputs": [one]}).encode()
    own = json.dumps({"x": X.tolist()}).encode()
    if name.startswith("lockstep"):
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "serve",
            str(model),
            "--http",
            str(port),
            "--grpc",
            "off",
            "--threads",
            "1",
        ]
        extra = ["--runners", "1"] if "runners" in name else []
        return [*command, *extra], f"/v2/models/{model.stem}/infer", protocol, {}
    python = installed(name.partition(",")[0], environments)
    if name.startswith("by hand"):
        command = [str(python), str(HERE / "peer_by_hand.py"), str(model), str(port)]
        return command, f"/{name.rpartition(' ')[2]}", own, {}
    if name != "mlserver":
        return (
            [str(python), str(HERE / "peer_servers.py"), name, str(model), str(port)],
            "/predict",
            own,
            {},
        )
    folder = scratch / "mlserver"
    folder.mkdir(exist_ok=True)
    ports = {"http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    told = {"name": "mlp", "implementation": "peer_mlserver.Model"}
    (folder / "model-settings.json").write_text(json.dumps(told))
    command = [str(python.with_name("mlserver")), "start", str(folder)]
    return command, "/v2/models/mlp/infer", protocol, {"MODEL": str(model), "PYTHONPATH": str(HERE)}


def _answers(server: Server, wanted: Any, began: float, log: Path) -> None:
    """Wait for the first answer, which has to be the model's."""
    while True:
        try:
            connection = server.connect()
            told = json.loads(connection.ask())
            break
        except (OSError, RuntimeError) as error:
            if server.process.poll() is not None or time.perf_counter() - began > _START_S:
                raise RuntimeError(f"it did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
    connection.close()
    found = told["y"] if "y" in told else told["outputs"][0]["data"]
    if not np.allclose(found, wanted, rtol=1e-5, atol=1e-6):
        raise RuntimeError(f"it answers {found}, where the model gives {wanted}")


def _tree(process: int) -> Iterator[int]:
    yield process
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for one in _text(file).split():
            yield from _tree(int(one))


def _text(file: str | Path) -> str:
    try:
        return Path(file).read_text()
    except OSError:  # it ended meanwhile
        return ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
