"""What the tests of servers in a cluster ask, and how they wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from serve_process import Served

http = pytest.importorskip("tritonclient.http", reason="needs tritonclient, of the dev extra")
grpc = pytest.importorskip("tritonclient.grpc")

PATIENCE_S = 60.0


def ask(served: Served, model: str, value: float) -> Any:
    """`y`, the process, and the instances of its run; by HTTP or gRPC in turn."""
    transport, address = ((http, served.http), (grpc, served.grpc))[int(value) % 2]
    given = transport.InferInput("x", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), value, "float32"))
    client = transport.InferenceServerClient(
        address, **({"network_timeout": 120.0} if transport is http else {})
    )
    found = client.infer(model, [given])
    client.close()
    return (
        float(found.as_numpy("y")[0, 0]),
        int(found.as_numpy("by")[0]),
        int(found.as_numpy("ran")[0]),
    )


def until(what: Callable[[], Any], *, patience_s: float = PATIENCE_S) -> Any:
    """Wait for something that comes to be; a test that never sees it fails."""
    waiting = threading.Event()
    for _ in range(int(patience_s / 0.05)):
        if found := what():
            return found
        waiting.wait(0.05)
    raise AssertionError("it never came")
