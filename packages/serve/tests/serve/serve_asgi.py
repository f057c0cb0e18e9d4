"""Requests given to the REST application itself, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockstep_serve.metrics import Metrics
from lockstep_serve.protocol.rest import RestService
from lockstep_serve.repository import Limits, Repository

ECHO = """
import numpy as np
from lockstep_serve.servable import BYTES, Signature, TensorSpec

class Echo:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 2)), TensorSpec("t", BYTES, (-1,))),
        (TensorSpec("y", np.dtype("float32"), (-1, 2)), TensorSpec("u", BYTES, (-1,))),
        batches=True,
    )

    def infer(self, inputs):
        return {"y": inputs["x"], "u": inputs["t"]}

def load(version_dir):
    return Echo()
"""


def python_model(folder: Path, name: str, text: str) -> Path:
    file = folder / name / "1" / "servable.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


async def repository_of(folder: Path, **limits: Any) -> Repository:
    repository = Repository([folder], Limits(**limits))
    await repository.load_all()
    return repository


def application(repository: Repository, *, most_bytes: int = 4096, patience_s: float = 60.0) -> Any:
    service = RestService(repository, Metrics(), most_bytes=most_bytes, patience_s=patience_s)
    return service.application()


async def asked(
    app: Any, path: str, parts: Iterable[bytes | None], headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """The status and the JSON that a POST of the parts is answered with; None is a client that falls silent."""
    messages = iter(parts)
    sent: list[dict[str, Any]] = []
    silent = asyncio.Event()

    async def receive() -> dict[str, Any]:
        part = next(messages, b"")
        if part is None:
            await silent.wait()
        return {"type": "http.request", "body": part, "more_body": part != b""}

    async def send(one: Any) -> None:
        sent.append(one)

    given = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode("utf-8", "replace"), "root_path": "",
        "query_string": b"", "headers": given, "asgi": {"version": "3.0"}, "http_version": "1.1",
        "scheme": "http", "server": ("localhost", 80), "client": ("localhost", 1),
    }  # fmt: skip
    await app(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in sent[1:])
    length = dict(sent[0]["headers"]).get(b"inference-header-content-length")
    told = body[: int(length)] if length else body
    return sent[0]["status"], json.loads(told) if told else None
