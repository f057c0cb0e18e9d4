"""Bodies of JSON that are large are read and written by another process, and answered as small ones are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from serve_asgi import ECHO, asked, python_model, repository_of

from lockstep_serve.metrics import Metrics
from lockstep_serve.protocol.large_bodies import LARGE_BYTES
from lockstep_serve.protocol.rest import RestService

ROWS = LARGE_BYTES // 14


def request(rows: int, **more: Any) -> dict[str, Any]:
    numbers, texts = [[0.1 * row, -row] for row in range(rows)], [f"é{row}" for row in range(rows)]
    return {
        "id": "one",
        **more,
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [rows, 2], "data": numbers},
            {"name": "t", "datatype": "BYTES", "shape": [rows], "data": texts},
        ],
    }


GOOD = json.dumps(request(ROWS)).encode()


class Service:
    """The service over a model that gives back what it gets."""

    def __init__(self, folder: Any) -> None:
        python_model(folder, "echo", ECHO)
        self.loop = asyncio.new_event_loop()
        self.repository = self.loop.run_until_complete(repository_of(folder))
        self.rest = RestService(self.repository, Metrics(), most_bytes=1 << 28, patience_s=60)
        self.app = self.rest.application()

    def post(self, body: bytes) -> tuple[int, Any]:
        return self.loop.run_until_complete(asked(self.app, "/v2/models/echo/infer", [body]))

    @property
    def runs(self) -> int:
        """How many bodies the other process has made."""
        queue = self.rest._large._queue
        return 0 if queue is None else queue.runs

    def close(self) -> None:
        self.loop.run_until_complete(self.rest.close())
        self.loop.run_until_complete(self.repository.close())
        self.loop.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(tmp_path_factory.mktemp("echo"))
    yield one
    one.close()


def test_a_large_body_is_answered_as_a_small_one_by_another_process(service: Service) -> None:
    # Given a small request, which this process reads itself
    before = service.runs
    status, small = service.post(json.dumps(request(3)).encode())
    assert (status, service.runs - before) == (200, 0)
    # When one of some megabytes comes, then both it and its answer are made by the other
    status, large = service.post(GOOD)
    assert (status, service.runs - before) == (200, 2)
    # And both are as they would be here: texts too, and the numbers up to the last bit
    assert large["id"] == "one"
    for few, many in zip(small["outputs"], large["outputs"], strict=True):
        assert many["data"][: len(few["data"])] == few["data"]
        assert many.keys() == few.keys()
    assert large["outputs"][1]["data"][-1] == f"é{ROWS - 1}"
    # And one that asks for bytes has them from this process
    wanted = [{"name": "y", "parameters": {"binary_data": True}}]
    status, told = service.post(json.dumps(request(ROWS, outputs=wanted)).encode())
    assert told["outputs"][0]["parameters"]["binary_data_size"] == ROWS * 8
    assert service.runs - before == 3


def test_a_large_body_that_is_no_request_is_refused_and_the_next_is_answered(
    service: Service,
) -> None:
    for cut in (-1, LARGE_BYTES + 9):
        status, told = service.post(GOOD[:cut])
        assert status == 400
        assert told["error"].startswith("it is not JSON (")
    wrong = request(ROWS)
    wrong["inputs"][0]["data"][-1] = ["x", 1]
    status, told = service.post(json.dumps(wrong).encode())
    assert (status, told["error"]) == (400, "x: 'x' is no FP32")
    assert service.post(GOOD)[0] == 200


def test_a_process_that_is_killed_is_begun_again_and_its_request_is_answered(
    service: Service,
) -> None:
    assert service.post(GOOD)[0] == 200
    queue: Any = service.rest._large._queue
    runner = queue._runners[0]
    before = runner.process_id
    runner._running.process.kill()
    assert service.post(GOOD)[0] == 200
    assert runner.deaths == 1
    assert runner.process_id != before
