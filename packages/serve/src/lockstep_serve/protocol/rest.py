"""The protocol over HTTP: JSON, with tensors as raw bytes after it if the client asks for that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lockstep.errors import LockstepError
from lockstep.plugin import VERSION
from lockstep.terminal import message
from lockstep_serve.failures import NotThereError, RequestError
from lockstep_serve.metrics import Metrics
from lockstep_serve.protocol.bodies import (
    JSON_LENGTH,
    TooLargeError,
    inputs_of,
    loaded,
    parts_of,
    raw_names,
    response_as_raw,
    text_of,
    unpacked,
    wanted_of,
    written,
)
from lockstep_serve.protocol.bounded_http import LEAVING
from lockstep_serve.protocol.large_bodies import LARGE_BYTES, LargeBodies
from lockstep_serve.protocol.metadata import EXTENSIONS, NAME, properties_told, tensors_told
from lockstep_serve.protocol.request import InferRequest, answered
from lockstep_serve.repository import READY, Repository

_INFER = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")


class _TooLateError(RequestError):
    status = 408


Handler = Callable[[Request], Awaitable[Response]]


class RestService:
    """Answers the protocol's addresses.

    repository: The models.
    metrics: Counts what was asked.
    most_bytes: How long a request may be.
    patience_s: How long a client may take to send one.
    """

    def __init__(
        self, repository: Repository, metrics: Metrics, *, most_bytes: int, patience_s: float
    ) -> None:
        self._repository, self._metrics = repository, metrics
        self._most_bytes, self._patience_s = most_bytes, patience_s
        self._large = LargeBodies(timeout_s=repository.limits.timeout_s)

    async def close(self) -> None:
        """End the process that reads large bodies."""
        await self._large.close()

    def application(self) -> ASGIApp:
        """All of it as an application."""
        routes = []
        for model in ("/v2/models/{model}/versions/{version}", "/v2/models/{model}"):
            routes += [
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
        others = Starlette(routes=routes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            path = _INFER.fullmatch(scope["path"])
            if path is None or scope["method"] != "POST":
                await others(scope, receive, send)
            else:
                await self._inferred(scope, receive, send, path)

        return answer

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
        body = await self._body(request.receive, dict(request.scope["headers"]))
        ready = bool(body) and loaded(body).get("ready") is True
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

    async def _inferred(
        self, scope: Scope, receive: Receive, send: Send, path: re.Match[str]
    ) -> None:
        """Answer a request for inference; Starlette's own way to a handler takes as long as a small model."""
        leaving: set[asyncio.Task[Any]] = scope.get(LEAVING, set())
        task = asyncio.current_task()
        assert task is not None
        leaving.add(task)
        try:
            with self._metrics.asked(self._repository.known(path["model"])):
                text, raw = await self._infer(dict(scope["headers"]), receive, path)
        except Exception as error:
            response = _refusal(error)
            if response is None:
                raise
            await response(scope, receive, send)
            return
        except asyncio.CancelledError:
            await _ENDING(scope, receive, send)
            return
        finally:
            leaving.discard(task)
        kind = b"application/octet-stream" if raw else b"application/json"
        body = b"".join([text, *raw]) if raw else text
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", kind)]
        if raw:
            headers.append((JSON_LENGTH.encode(), b"%d" % len(text)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _infer(
        self, headers: dict[bytes, bytes], receive: Receive, path: re.Match[str]
    ) -> tuple[bytes | memoryview, Sequence[bytes | memoryview]]:
        body = await self._body(receive, headers)
        arrived_s = asyncio.get_running_loop().time()
        length = headers.get(JSON_LENGTH.encode())
        text, raw = parts_of(body, None if length is None else length.decode("latin-1"))
        if len(text) > LARGE_BYTES:
            text, raw = await self._large.rewritten(text, raw, is_request=True, arrived_s=arrived_s)
        told = loaded(text)
        asked = InferRequest(
            path["model"], path["version"] or "", text_of(told.get("id", ""), "id"),
            inputs_of(told, raw), wanted_of(told), arrived_s,
        )  # fmt: skip
        response = await answered(self._repository, asked)
        answer: dict[str, Any] = {
            "model_name": response.version.name, "model_version": str(response.version.number)
        }  # fmt: skip
        if response.id:
            answer["id"] = response.id
        if response.not_a_number:
            answer["parameters"] = {"not_a_number": ",".join(response.not_a_number)}
        outputs, raw_ones = response.outputs, raw_names(told, response.outputs)
        if sum(one.nbytes for name, one in outputs.items() if name not in raw_ones) < LARGE_BYTES:
            return written(answer, outputs, raw_ones)
        plain = response_as_raw(answer, outputs, raw_ones)
        text, raw = await self._large.rewritten(*plain, is_request=False, arrived_s=arrived_s)
        return text, [raw] if raw else []

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._most_bytes:
            raise TooLargeError(
                f"it has {int(declared)} bytes; at most {self._most_bytes} are taken"
            )
        patience = _Patience(self._patience_s)
        with patience:
            parts, size, more = [], 0, True
            while more:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(part.get("body", b""))
                size, more = size + len(parts[-1]), part.get("more_body", False)
                if size > self._most_bytes:
                    raise TooLargeError(f"at most {self._most_bytes} bytes are taken")
        if size > LARGE_BYTES:  # memory that is touched for the first time takes 100 ms for 40 MB
            body = await asyncio.to_thread(b"".join, parts)
        else:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
        encoding = headers.get(b"content-encoding", b"").decode("latin-1")
        if encoding in ("", "identity"):
            return body
        return await asyncio.to_thread(unpacked, body, encoding, self._most_bytes)


class _Patience:
    """A block that ends in time, or by the error that says so; `asyncio.wait_for` would begin a task for it."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._over = seconds, False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up)

    def _give_up(self) -> None:
        assert self._task is not None
        self._over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._timer.cancel()
        if self._over and kind is asyncio.CancelledError:
            raise _TooLateError(f"it did not come within {self._seconds:g} s")


def _refusal(error: Exception) -> Response | None:
    """The answer to a request that is refused; None where that is a fault of the server's own."""
    if isinstance(error, RequestError):
        return JSONResponse({"error": message(str(error))}, error.status)
    if isinstance(error, LockstepError):  # a folder of models that came to be none
        return JSONResponse({"error": message(str(error))}, 400)
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    return None


_ENDING = JSONResponse({"error": "the server ends"}, 503)


def _safe(handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except asyncio.CancelledError:  # uvicorn's patience has ended, and the server with it
            return _ENDING
        except Exception as error:
            response = _refusal(error)
            if response is None:
                raise
            return response

    return answer


def _named(request: Request) -> dict[str, str]:
    return {"name": request.path_params["model"], "version": request.path_params.get("version", "")}
