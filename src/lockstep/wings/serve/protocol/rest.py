"""The protocol over HTTP: JSON, with tensors as raw bytes behind it where they are asked for so."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lockstep.core.errors import LockstepError
from lockstep.core.text import message
from lockstep.core.version import VERSION
from lockstep.wings.serve.failures import NotThereError, RequestError
from lockstep.wings.serve.metrics import Metrics
from lockstep.wings.serve.protocol.metadata import EXTENSIONS, NAME, properties_told, tensors_told
from lockstep.wings.serve.protocol.request import InferRequest, InferResponse, answered
from lockstep.wings.serve.protocol.tensors import (
    datatype_of,
    json_from_tensor,
    raw_from_tensor,
    shape_of,
    tensor_from_json,
    tensor_from_raw,
)
from lockstep.wings.serve.repository import READY, Repository
from lockstep.wings.serve.servable import Array

_JSON_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON; raw tensors follow."""


class _TooLargeError(RequestError):
    status = 413
    code = "RESOURCE_EXHAUSTED"


class _TooLateError(RequestError):
    status = 408


Handler = Callable[[Request], Awaitable[Response]]


class RestService:
    """Answers the protocol's addresses.

    Parameters
    ----------
    repository
        The models.
    metrics
        Counts what was asked.
    most_bytes
        How long a request may be.
    patience_s
        How long a client may take to send one.
    """

    def __init__(
        self, repository: Repository, metrics: Metrics, *, most_bytes: int, patience_s: float
    ) -> None:
        self._repository, self._metrics = repository, metrics
        self._most_bytes, self._patience_s = most_bytes, patience_s

    def application(self) -> Starlette:
        """All of it as an application."""
        routes = []
        for model in ("/v2/models/{model}/versions/{version}", "/v2/models/{model}"):
            routes += [
                Route(f"{model}/infer", _safe(self._infer), methods=["POST"]),
                Route(f"{model}/ready", _safe(self._model_ready)),
                Route(f"{model}/parity", _safe(self._parity)),
                Route(model, _safe(self._model)),
            ]
        routes += [
            Route("/v2/health/live", _safe(self._live)),
            Route("/v2/health/ready", _safe(self._ready)),
            Route("/v2", _safe(self._server)),
            Route("/v2/repository/index", _safe(self._index), methods=["POST"]),
            Route("/v2/repository/models/{model}/load", _safe(self._load), methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", _safe(self._unload), methods=["POST"]),
            Route("/metrics", _safe(self._told)),
        ]
        return Starlette(routes=routes)

    async def _live(self, request: Request) -> Response:
        return Response()

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._repository.ready else 503)

    async def _server(self, request: Request) -> Response:
        return JSONResponse({"name": NAME, "version": VERSION, "extensions": EXTENSIONS})

    async def _model_ready(self, request: Request) -> Response:
        self._repository.get(**_named(request))
        return Response()

    async def _model(self, request: Request) -> Response:
        version = self._repository.get(**_named(request))
        told = {
            "name": version.name,
            "versions": self._repository.versions(version.name),
            "platform": version.platform,
            "inputs": tensors_told(version.signature, version.signature.inputs),
            "outputs": tensors_told(version.signature, version.signature.outputs),
            "properties": properties_told(version.signature),
        }
        return JSONResponse(told)

    async def _parity(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._repository.shadows:
            raise NotThereError(
                f"{self._repository.known(name)} has no reference; --shadow gives one"
            )
        return JSONResponse(self._repository.shadows[name].parity.told())

    async def _index(self, request: Request) -> Response:
        body = await self._body(request)
        ready = bool(body) and _loaded(body).get("ready") is True
        found = [one for one in self._repository.index() if not ready or one.state == READY]
        return JSONResponse(
            [
                {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason}
                for one in found
            ]
        )

    async def _load(self, request: Request) -> Response:
        await self._repository.load(request.path_params["model"])
        return Response()

    async def _unload(self, request: Request) -> Response:
        await self._repository.unload(request.path_params["model"])
        return Response()

    async def _told(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _infer(self, request: Request) -> Response:
        with self._metrics.asked(self._repository.known(request.path_params["model"])):
            body = await self._body(request)
            length = request.headers.get(_JSON_LENGTH)
            told, raw = _parts(body, length)
            asked = InferRequest(
                request.path_params["model"], request.path_params.get("version", ""),
                _text(told.get("id", ""), "id"), _inputs(told, raw), _wanted(told),
            )  # fmt: skip
            response = await answered(self._repository, asked)
            return _response(response, told)

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self._most_bytes:
            raise _TooLargeError(f"it has {declared} bytes; at most {self._most_bytes} are taken")
        parts, size = [], 0

        async def read() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                if size > self._most_bytes:
                    raise _TooLargeError(f"at most {self._most_bytes} bytes are taken")
                parts.append(part)

        try:
            await asyncio.wait_for(read(), self._patience_s)
        except asyncio.TimeoutError as error:
            raise _TooLateError(f"it did not come within {self._patience_s:g} s") from error
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return _unpacked(body, request.headers.get("content-encoding", ""), self._most_bytes)


def _safe(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestError as error:
            return JSONResponse({"error": message(str(error))}, error.status)
        except LockstepError as error:  # a folder of models that came to be none
            return JSONResponse({"error": message(str(error))}, 400)
        except asyncio.CancelledError:  # uvicorn's patience has ended, and the server with it
            return JSONResponse({"error": "the server ends"}, 503)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it

    return answer


def _named(request: Request) -> dict[str, str]:
    return {"name": request.path_params["model"], "version": request.path_params.get("version", "")}


def _unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"content-encoding {encoding[:20]!r} is none of gzip, deflate")
    unpacking = zlib.decompressobj(47)  # finds either header by itself
    try:
        unpacked = unpacking.decompress(body, most_bytes)
    except zlib.error as error:
        raise RequestError(f"it cannot be decompressed ({error})") from error
    if unpacking.unconsumed_tail:
        raise _TooLargeError(f"at most {most_bytes} bytes are taken, decompressed")
    if not unpacking.eof:
        raise RequestError(f"it ends within its {encoding}")
    return unpacked


def _loaded(text: bytes) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"it is no JSON ({message(str(error))})") from error
    if not isinstance(told, dict):
        raise RequestError("its JSON is no object")
    return told


def _parts(body: bytes, length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request, and the bytes of tensors behind it."""
    if length is None:
        return _loaded(body), memoryview(b"")
    if not length.isdecimal() or int(length) > len(body):
        raise RequestError(
            f"{_JSON_LENGTH}: {length[:20]!r} is no length within its {len(body)} bytes"
        )
    return _loaded(body[: int(length)]), memoryview(body)[int(length) :]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is no text")
    return value


def _objects(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = told.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(f"{name} is no list of objects")
    return found


def _parameters(told: dict[str, Any]) -> dict[str, Any]:
    found = told.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError("parameters are no object")
    return found


def _inputs(told: dict[str, Any], raw: memoryview) -> dict[str, Array]:
    inputs: dict[str, Array] = {}
    at = 0
    for one in _objects(told, "inputs"):
        name, datatype = _text(one.get("name"), "name"), _text(one.get("datatype"), "datatype")
        shape = shape_of(one.get("shape"), name)
        if name in inputs:
            raise RequestError(f"it has two inputs of the name {name}")
        size = _parameters(one).get("binary_data_size")
        if size is None:
            inputs[name] = tensor_from_json(name, datatype, shape, one.get("data", []))
            continue
        if type(size) is not int or not 0 <= size <= len(raw) - at:
            raise RequestError(f"{name}: binary_data_size {str(size)[:20]} is beyond its bytes")
        inputs[name] = tensor_from_raw(name, datatype, shape, raw[at : at + size])
        at += size
    if at != len(raw):
        raise RequestError(f"it has {len(raw) - at} bytes that belong to no input")
    return inputs


def _wanted(told: dict[str, Any]) -> list[str]:
    return [_text(one.get("name"), "name") for one in _objects(told, "outputs")]


def _response(response: InferResponse, told: dict[str, Any]) -> Response:
    by_default = _parameters(told).get("binary_data_output") is True
    asked = {one["name"]: _parameters(one) for one in _objects(told, "outputs")}
    outputs, raw = [], []
    for name, value in response.outputs.items():
        entry: dict[str, Any] = {
            "name": name, "datatype": datatype_of(value.dtype), "shape": list(value.shape)
        }  # fmt: skip
        if asked.get(name, {}).get("binary_data", by_default) is True:
            raw.append(raw_from_tensor(value))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = json_from_tensor(value)
        outputs.append(entry)
    answer: dict[str, Any] = {
        "model_name": response.version.name,
        "model_version": str(response.version.number),
        "outputs": outputs,
    }
    if response.id:
        answer["id"] = response.id
    if response.not_a_number:
        answer["parameters"] = {"not_a_number": ",".join(response.not_a_number)}
    text = json.dumps(answer, separators=(",", ":")).encode()
    if not raw:
        return Response(text, media_type="application/json")
    headers = {_JSON_LENGTH: str(len(text))}
    return Response(b"".join([text, *raw]), headers=headers, media_type="application/octet-stream")
