"""Clients over real connections: who sends no more and reads on, who leaves, what a model does meanwhile."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from serve_asgi import python_model
from serve_process import Served, serving

from lockstep_serve.protocol import messages

GATED = """
import os, sys
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

class Gated:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 1)),), (TensorSpec("y", np.dtype("float32"), (-1, 1)),), batches=True
    )

    def __init__(self, folder):
        self.folder = folder

    def infer(self, inputs):
        x = inputs["x"]
        if 3 in x:
            open(self.folder / "begun", "w").close()
            open(self.folder / "gate").close()
        if 4 in x:
            sys.exit(7)
        with open(self.folder / "ran", "a") as file:
            print(*x.ravel(), file=file)
        return {"y": x * 2}

def load(version_dir):
    return Gated(version_dir)
"""
HELD, GONE, STAYS = 3, 9, 8
LEFT = 'requests_total{ended="cancelled"'


class Gate:
    """The server, of one place in its queue, and the model whose run on `HELD` begins and ends as a test says."""

    def __init__(self, served: Served) -> None:
        self.served, self.folder = served, served.folder / "gated" / "1"

    def wait_until_begun(self) -> None:
        (self.folder / "begun").open().close()

    def open(self) -> None:
        (self.folder / "gate").open("w").close()

    def connect(self) -> socket.socket:
        host, port = self.served.http.split(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def ask(self, value: float) -> socket.socket:
        """A connection on which the whole of a request was sent."""
        connection = self.connect()
        connection.sendall(post(value))
        return connection

    def answer(self, value: float) -> tuple[int, Any]:
        return read(self.ask(value))

    def wait_until_asked(self, requests: int) -> None:
        """Until so many requests have come that are not answered."""
        self._wait("requests_in_flight ", requests)

    def wait_until_left(self, clients: int) -> None:
        """Until so many have left, as the server counts them."""
        self._wait(LEFT, clients)

    def _wait(self, name: str, wanted: int) -> None:
        found = [-1]
        while found[-1] != wanted and len(found) < 20_000:
            found.append(self.counted(name))
        assert found[-1] == wanted

    def counted(self, name: str) -> int:
        connection = self.connect()
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        lines = [one for one in everything(connection).decode().splitlines() if name in one]
        return round(sum(float(one.rpartition(" ")[2]) for one in lines if one[0] != "#"))

    def ran(self) -> list[float]:
        return [float(one) for one in (self.folder / "ran").read_text().split()]


def post(value: float, model: str = "gated") -> bytes:
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}
    ).encode()
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def everything(connection: socket.socket, found: bytes = b"") -> bytes:
    while part := connection.recv(65536):
        found += part
    connection.close()
    return found


def read(connection: socket.socket) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    file = connection.makefile("rb")
    status = int(file.readline().split()[1])
    length = 0
    while (line := file.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        length = int(value) if name == b"content-length" else length
    told = json.loads(file.read(length))
    file.close()
    connection.close()
    return status, told


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("gated")
    model = python_model(folder, "gated", GATED).parent
    for name in ("begun", "gate"):
        os.mkfifo(model / name)
    (model / "ran").touch()
    python_model(folder, "quits", "import sys\ndef load(version_dir):\n    sys.exit(5)")
    with serving(folder, "--waiting", "1") as served:
        yield Gate(served)


def test_half_a_request_of_a_client_that_sends_no_more_is_none(gate: Gate) -> None:
    connection = gate.connect()
    connection.sendall(post(STAYS)[:-3])
    connection.shutdown(socket.SHUT_WR)
    assert everything(connection) == b""


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send_no_more(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [close, reset, send_no_more])
def test_whoever_leaves_frees_the_one_place_in_the_queue_and_is_not_run(
    gate: Gate, leave: Any
) -> None:
    # Given a run that does not end, and a request that has the only place behind it
    before, held = gate.counted(LEFT), gate.ask(HELD)
    gate.wait_until_begun()
    gone = gate.ask(GONE)
    gate.wait_until_asked(2)
    assert gate.answer(STAYS)[0] == 429
    # When its client leaves
    leave(gone)
    gate.wait_until_left(before + 1)
    # Then the place is another's, who is answered, and the one who left was never run
    stays = gate.ask(STAYS)
    gate.open()
    assert read(held) == (200, answer_of(HELD))
    assert read(stays) == (200, answer_of(STAYS))
    assert GONE not in gate.ran()
    gone.close()


def answer_of(value: float) -> Any:
    output = {"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [2.0 * value]}
    return {"model_name": "gated", "model_version": "1", "outputs": [output]}


def test_a_call_of_grpc_that_is_cancelled_frees_its_place(gate: Gate) -> None:
    before, held = gate.counted(LEFT), gate.ask(HELD)
    gate.wait_until_begun()
    with grpc.insecure_channel(gate.served.grpc) as channel:
        gone = infer_by_grpc(channel, GONE)
        gate.wait_until_asked(2)
        assert gate.answer(STAYS)[0] == 429
        gone.cancel()
        gate.wait_until_left(before + 1)
        stays = infer_by_grpc(channel, STAYS)
        gate.open()
        assert read(held)[0] == 200
        told = np.frombuffer(stays.result(60).raw_output_contents[0], "float32")
    assert told.tolist() == [2 * STAYS]
    assert GONE not in gate.ran()


def infer_by_grpc(channel: grpc.Channel, value: float) -> Any:
    call = channel.unary_unary(
        f"/{messages.SERVICE}/ModelInfer",
        request_serializer=messages.message_class("ModelInferRequest").SerializeToString,
        response_deserializer=messages.message_class("ModelInferResponse").FromString,
    )
    one = {"name": "x", "datatype": "FP32", "shape": [1, 1]}
    asked = messages.message_class("ModelInferRequest")(
        model_name="gated", inputs=[one], raw_input_contents=[np.float32(value).tobytes()]
    )
    return call.future(asked, timeout=60)


def test_a_request_is_answered_in_its_time_by_both_transports(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # Given a server of little patience, whose model does not end its run
    folder = tmp_path_factory.mktemp("hangs")
    model = python_model(folder, "gated", GATED).parent
    for name in ("begun", "gate"):
        os.mkfifo(model / name)
    with serving(folder, "--timeout", "0.4") as served:
        gate = Gate(served)
        held = gate.ask(HELD)
        gate.wait_until_begun()
        # Then it is told so by HTTP, and another by gRPC
        words = "gated did not answer within 0.4 s"
        assert read(held) == (504, {"error": words})
        with grpc.insecure_channel(served.grpc) as channel:
            error = infer_by_grpc(channel, HELD).exception(60)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details().startswith(words)


def test_a_model_that_exits_as_it_runs_ends_its_request_alone(gate: Gate) -> None:
    status, told = gate.answer(4)
    assert (status, told["error"]) == (500, "the model raised SystemExit: 7")
    assert gate.answer(STAYS) == (200, answer_of(STAYS))


def test_a_model_that_exits_as_it_is_opened_is_told_as_that_and_the_rest_is_served(
    gate: Gate,
) -> None:
    connection = gate.connect()
    connection.sendall(post(STAYS, "quits"))
    status, told = read(connection)
    assert status == 503
    assert "servable.py: its load fails (SystemExit: 5)" in told["error"]
    assert gate.answer(STAYS)[0] == 200
