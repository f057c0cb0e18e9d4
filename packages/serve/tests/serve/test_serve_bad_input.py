"""Whatever is sent to the REST application is answered in one sentence, and the next request as ever."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from serve_asgi import ECHO, application, asked, python_model, repository_of

INFER = "/v2/models/echo/infer"
GOOD: dict[str, Any] = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    ]
}


class Service:
    """An application over one model, on an event loop of its own."""

    def __init__(self, folder: Path) -> None:
        python_model(folder, "echo", ECHO)
        self.loop = asyncio.new_event_loop()
        self.repository = self.loop.run_until_complete(repository_of(folder))
        self.app = application(self.repository)

    def post(self, *parts: bytes | None, app: Any = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.loop.run_until_complete(asked(app or self.app, INFER, parts, named))

    def is_well(self) -> bool:
        status, told = self.post(json.dumps(GOOD).encode())
        return status == 200 and told["outputs"][0]["data"] == [1.0, 2.0]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(tmp_path_factory.mktemp("echo"))
    yield one
    one.loop.run_until_complete(one.repository.close())
    one.loop.close()


def changed(path: list[Any], value: Any) -> bytes:
    """The good request with something else at one place."""
    told = json.loads(json.dumps(GOOD))
    place = told
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(told).encode()


PLACES: list[list[Any]] = [
    ["inputs"], ["id"], ["outputs"], ["parameters"], ["inputs", 0],
    *(["inputs", n, key] for n in (0, 1) for key in ("name", "datatype", "shape", "data", "parameters")),
    ["inputs", 0, "shape", 0], ["inputs", 0, "data", 1], ["inputs", 1, "data", 0],
]  # fmt: skip
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text("a\0é\ud800\U0001f600", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.sampled_from(PLACES), value=VALUES)
@example(place=["inputs", 1, "data", 0], value="\ud800")
@example(place=["inputs", 0, "name"], value="\ud800")
@example(place=["id"], value="\ud800")
@example(place=["inputs", 0, "shape"], value=[2**63, 0])
@example(place=["inputs", 0, "shape"], value=[2**40, 2**40, 0])
@example(place=["inputs", 0, "data", 1], value=1e39)
@example(place=["inputs", 0, "data", 1], value=10**400)
@example(place=["inputs", 0, "parameters"], value={"binary_data_size": -1})
@example(place=["outputs"], value=[{"name": "y", "parameters": []}])
def test_any_json_is_answered(service: Service, place: list[Any], value: Any) -> None:
    status, told = service.post(changed(place, value))
    assert status in (200, 400, 413)
    assert status == 200 or isinstance(told["error"], str)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    body=st.binary(max_size=300),
    length=st.none() | st.integers(-3, 400).map(str) | st.text("0٣x", max_size=3),
)
def test_any_bytes_are_answered(service: Service, body: bytes, length: str | None) -> None:
    headers = {} if length is None else {"inference_header_content_length": length}
    status, told = service.post(body, **headers)
    assert status == 400
    assert isinstance(told["error"], str)


def binary(
    size: Any, raw: bytes, datatype: str = "FP32", shape: tuple[int, ...] = (1, 2)
) -> tuple[bytes, str]:
    one = {
        "name": "x",
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": size},
    }
    text = json.dumps({"inputs": [one, GOOD["inputs"][1]]}).encode()
    return text + raw, str(len(text))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (binary(4, b"1234"), "has 4 bytes, where FP32 of [1, 2] takes 8"),
        (binary(8, b"1234"), "binary_data_size 8 is beyond its bytes"),
        (binary(True, b"1234"), "binary_data_size True is beyond its bytes"),
        (binary(8, b"123456789"), "has 1 bytes that belong to no input"),
        (binary(8, b"\x09\0\0\0abcd", "BYTES", (1,)), "its bytes end within an element"),
        (binary(2, b"\x01\x02", "BOOL"), "a BOOL is neither 0 nor 1"),
        (binary(4, b"1234", "BF16"), "datatype 'BF16' is none of"),
    ],
)
def test_wrong_binary_tensors_are_one_sentence(
    service: Service, request_: tuple[bytes, str], words: str
) -> None:
    body, length = request_
    status, told = service.post(body, inference_header_content_length=length)
    assert (status, words in told["error"]) == (400, True), told
    assert service.is_well()


def test_a_body_of_five_gigabytes_is_refused_by_its_header(service: Service) -> None:
    # Given a client that announces 5 GB and sends none of it, when the header is seen, then it is refused
    status, told = service.post(None, content_length=str(5 << 30))
    assert (status, "at most 4096 are taken" in told["error"]) == (413, True)


def test_a_body_without_a_length_is_refused_where_it_grows_too_long(service: Service) -> None:
    # Given 5 GB in parts, then no more than the bound is taken of them
    taken = []

    def parts() -> Iterator[bytes]:
        for number in range(5 << 20):
            taken.append(number)
            yield b" " * 1024

    status, _ = service.loop.run_until_complete(asked(service.app, INFER, parts()))
    assert (status, len(taken)) == (413, 5)


def test_what_unpacks_to_too_much_is_refused(service: Service) -> None:
    packed = gzip.compress(b" " * (1 << 20))
    assert service.post(packed, content_encoding="gzip")[0] == 413
    assert service.post(packed[:-9], content_encoding="gzip")[0] == 413
    assert (
        "ends within its gzip"
        in service.post(gzip.compress(json.dumps(GOOD).encode())[:-9], content_encoding="gzip")[1][
            "error"
        ]
    )
    assert service.post(b"no gzip", content_encoding="gzip")[0] == 400
    assert service.post(b"", content_encoding="br")[0] == 400
    assert service.is_well()


def test_a_client_that_falls_silent_is_given_up(service: Service) -> None:
    app = application(service.repository, patience_s=0.01)
    status, told = service.post(b'{"inputs"', None, app=app)
    assert (status, "did not come within 0.01 s" in told["error"]) == (408, True)
