"""The stock clients of the protocol against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from serve_process import Served

from lockstep.core.errors import UsageError
from lockstep_serve.command import serve

http = pytest.importorskip("tritonclient.http", reason="needs tritonclient, of the dev extra")
grpc = pytest.importorskip("tritonclient.grpc")
InferenceServerException = pytest.importorskip("tritonclient.utils").InferenceServerException

WEIGHT = (np.arange(4)[:, None] - np.arange(3)[None]).astype("float32")
X = np.arange(12, dtype="float32").reshape(3, 4)


class Client:
    """A stock client of either transport, by the same words."""

    def __init__(self, transport: ModuleType, address: str) -> None:
        self.transport, self.asked = transport, transport.InferenceServerClient(address)

    def given(self, name: str, value: Any, datatype: str, **how: Any) -> Any:
        one = self.transport.InferInput(name, list(value.shape), datatype)
        one.set_data_from_numpy(value, **how)
        return one

    def linear(self, x: Any, model: str = "linear", version: str = "") -> Any:
        found = self.asked.infer(model, [self.given("x", x, "FP32")], model_version=version)
        return found.as_numpy("y")


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[Client]:
    one = Client(http, served.http) if request.param == "http" else Client(grpc, served.grpc)
    yield one
    one.asked.close()


def test_health_and_metadata_are_told(client: Client) -> None:
    # Given a repository with one broken model
    # Then the server lives, is not wholly ready, and each model answers for itself
    assert client.asked.is_server_live()
    assert not client.asked.is_server_ready()
    assert client.asked.is_model_ready("linear")
    assert client.asked.is_model_ready("linear", "1")
    assert not client.asked.is_model_ready("linear", "2")
    assert not client.asked.is_model_ready("broken")
    told = client.asked.get_model_metadata("linear")
    if client.transport is grpc:
        shape, versions = list(told.inputs[0].shape), list(told.versions)
    else:
        shape, versions = told["inputs"][0]["shape"], told["versions"]
    assert (shape, versions) == ([-1, 4], ["1", "3"])


def test_a_broken_entry_says_why_and_the_rest_is_served(client: Client) -> None:
    index = client.asked.get_model_repository_index()
    entries = index.models if client.transport is grpc else index
    found = {}
    for one in entries:
        entry = one if isinstance(one, dict) else {
            "name": one.name, "version": one.version, "state": one.state, "reason": one.reason
        }  # fmt: skip
        found[entry["name"], entry["version"]] = entry
    assert found["linear", "3"]["state"] == "READY"
    assert found["broken", "1"]["state"] == "UNAVAILABLE"
    assert "is not a model for ONNX Runtime" in found["broken", "1"]["reason"]


def test_the_highest_version_answers_unless_one_is_named(client: Client) -> None:
    assert np.array_equal(client.linear(X), X @ WEIGHT * 2)
    assert np.array_equal(client.linear(X, version="1"), X @ WEIGHT)


def test_every_datatype_goes_there_and_back(client: Client) -> None:
    names = {"bool": "BOOL", "float16": "FLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
    dtypes = [
        "bool",
        "float16",
        "float32",
        "float64",
        *(f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64)),
    ]
    given = {
        names.get(one, one.upper()): np.array([[0, 1], [1, 0], [1, 1]]).astype(one)
        for one in dtypes
    }
    kinds = {"FLOAT16": "FP16", "FLOAT": "FP32", "DOUBLE": "FP64"}
    inputs = [client.given(f"in_{one}", value, kinds.get(one, one)) for one, value in given.items()]
    found = client.asked.infer("every_kind", inputs)
    for one, value in given.items():
        back = found.as_numpy(f"out_{one}")
        assert (back.dtype, back.tolist()) == (value.dtype, value.tolist())


def test_texts_go_there_and_back(client: Client) -> None:
    given = np.array([b"", "žluť 入力".encode(), b"a" * 300], object)
    found = client.asked.infer("words", [client.given("x", given, "BYTES")])
    assert found.as_numpy("y").tolist() == given.tolist()


def test_tensors_may_be_json(served: Served) -> None:
    client = Client(http, served.http)
    asked = client.given("x", X, "FP32", binary_data=False)
    wanted = http.InferRequestedOutput("y", binary_data=False)
    found = client.asked.infer("linear", [asked], outputs=[wanted], request_id="seven")
    assert found.get_response()["id"] == "seven"
    assert found.get_response()["outputs"][0]["data"] == (X @ WEIGHT * 2).ravel().tolist()


@pytest.mark.parametrize(
    ("model", "name", "value", "datatype", "words"),
    [
        ("linear", "z", X, "FP32", "has no input z; it takes x"),
        ("linear", "x", X.astype("float64"), "FP64", "is FP64, where linear takes FP32"),
        ("linear", "x", X[:, :3], "FP32", "has shape [3, 3], where linear takes [-1, 4]"),
        ("linear", "x", X[0], "FP32", "has shape [4], where linear takes [-1, 4]"),
        ("linear", "x", X[:0], "FP32", "it has no instance"),
        ("nothing", "x", X, "FP32", "there is no model nothing"),
        ("broken", "x", X, "FP32", "is not loaded"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    client: Client, model: str, name: str, value: Any, datatype: str, words: str
) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.asked.infer(model, [client.given(name, value, datatype)])
    assert words in str(raised.value)
    # and the next one is answered
    assert client.linear(X).shape == (3, 3)


def test_nan_is_said_and_the_service_lives(client: Client) -> None:
    found = client.asked.infer("logarithm", [client.given("x", -X[:, :2] - 1, "FP32")])
    assert np.isnan(found.as_numpy("y")).all()
    told = found.get_response()
    if client.transport is grpc:
        assert told.parameters["not_a_number"].string_param == "y"
    else:
        assert told["parameters"] == {"not_a_number": "y"}


def test_metadata_tell_whether_requests_are_run_together(served: Served) -> None:
    client = Client(http, served.http).asked
    told = {
        name: client.get_model_metadata(name)["properties"]["batching"]
        for name in ("linear", "by_two", "over_the_batch")
    }
    assert told == {
        "linear": "batched: proven",
        "by_two": "batched: asked for, though the first axis of input x is 2 for ever",
        "over_the_batch": "not batched: node mean (ReduceMean) mixes the batch: it works along the batch axis",
    }


def test_a_model_of_two_instances_takes_three(client: Client) -> None:
    # Given a model whose batch is two, which serve.yaml says are instances,
    # when three come, then it runs twice and three come back
    assert np.array_equal(client.linear(X, "by_two"), X @ WEIGHT)


def test_instances_that_know_of_each_other_are_never_put_together(client: Client) -> None:
    # Given a model that takes the mean over its batch, when many ask at once
    with ThreadPoolExecutor(8) as threads:
        address = client.asked

        def ask(number: int) -> Any:
            value = np.full((2, 4), number, "float32") + np.array([[0], [1]], "float32")
            return address.infer("over_the_batch", [client.given("x", value, "FP32")]).as_numpy("y")

        found = (
            list(threads.map(ask, range(16)))
            if client.transport is grpc
            else list(map(ask, range(16)))
        )
    # Then each is held against its own instances alone
    for value in found:
        assert value.tolist() == [[-0.5] * 4, [0.5] * 4]


def test_many_at_once_each_get_their_own(served: Served) -> None:
    def ask(number: int) -> bool:
        client = Client(grpc if number % 2 else http, served.grpc if number % 2 else served.http)
        random = np.random.default_rng(number)
        for _ in range(20):
            x = random.integers(-9, 9, (int(random.integers(1, 5)), 4)).astype("float32")
            if not np.array_equal(client.linear(x), x @ WEIGHT * 2):
                return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(ask, range(6)))


def test_the_asynchronous_clients_are_answered(served: Served) -> None:
    from tritonclient.grpc import aio as grpc_aio
    from tritonclient.http import aio as http_aio

    async def ask() -> list[Any]:
        found = []
        for transport, address in ((http_aio, served.http), (grpc_aio, served.grpc)):
            async with transport.InferenceServerClient(address) as client:
                given = transport.InferInput("x", [3, 4], "FP32")
                given.set_data_from_numpy(X)
                found.append((await client.infer("linear", [given])).as_numpy("y"))
        return found

    assert all(np.array_equal(one, X @ WEIGHT * 2) for one in asyncio.run(ask()))


def test_exchanging_a_model_under_load_loses_no_request(served: Served) -> None:
    # Given clients of both transports that ask without pause, when the model is loaded anew twenty times
    stop = Event()

    def hammer(transport: ModuleType, address: str) -> int:
        client, count = Client(transport, address), 0
        while not stop.is_set():
            assert np.array_equal(client.linear(X), X @ WEIGHT * 2)
            count += 1
        return count

    with ThreadPoolExecutor(4) as threads:
        sides = [(http, served.http), (grpc, served.grpc)] * 2
        hammering = [threads.submit(hammer, *side) for side in sides]
        loading = http.InferenceServerClient(served.http)
        try:
            for _ in range(20):
                loading.load_model("linear")
        finally:
            stop.set()
        # Then every one of them was answered, rightly
        assert all(one.result() for one in hammering)


def test_a_taken_port_is_said(served: Served) -> None:
    for transport, address in (("http", served.http), ("grpc", served.grpc)):
        port = address.rpartition(":")[2]
        ports = {"http": "0", "grpc": "0", transport: port}
        words = [str(served.folder / "linear"), "--http", ports["http"], "--grpc", ports["grpc"]]
        result = CliRunner().invoke(serve, words, standalone_mode=False)
        assert isinstance(result.exception, UsageError)
        assert f"--{transport} {port}: cannot be listened at" in str(result.exception)
