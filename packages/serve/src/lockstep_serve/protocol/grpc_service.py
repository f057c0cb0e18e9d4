"""The protocol over gRPC: the service `inference.GRPCInferenceService`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from lockstep.errors import LockstepError
from lockstep.plugin import VERSION
from lockstep.terminal import message
from lockstep_serve.access import Gate
from lockstep_serve.failures import RequestError
from lockstep_serve.metrics import Metrics
from lockstep_serve.protocol import messages
from lockstep_serve.protocol.metadata import EXTENSIONS, NAME, properties_told, tensors_told
from lockstep_serve.protocol.request import InferRequest, answered
from lockstep_serve.protocol.tensors import (
    datatype_of,
    dtype_of,
    raw_from_tensor,
    shape_of,
    tensor_from_json,
    tensor_from_raw,
)
from lockstep_serve.repository import READY, Repository
from lockstep_serve.servable import Array

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
    "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Where a request that has no raw bytes holds the elements of a datatype. FP16 has no such place."""


class InferenceService:
    """Answers the calls of the service, each by the method of its name.

    repository: The models.
    metrics: Counts what was asked.
    """

    def __init__(self, repository: Repository, metrics: Metrics) -> None:
        self._repository, self._metrics = repository, metrics

    async def ServerLive(self, request: Any) -> dict[str, Any]:  # noqa: N802 - the protocol's names
        return {"live": True}

    async def ServerReady(self, request: Any) -> dict[str, Any]:  # noqa: N802
        return {"ready": self._repository.ready}

    async def ModelReady(self, request: Any) -> dict[str, Any]:  # noqa: N802
        try:
            self._repository.get(request.name, request.version)
        except RequestError:
            return {"ready": False}
        return {"ready": True}

    async def ServerMetadata(self, request: Any) -> dict[str, Any]:  # noqa: N802
        return {"name": NAME, "version": VERSION, "extensions": EXTENSIONS}

    async def ModelMetadata(self, request: Any) -> dict[str, Any]:  # noqa: N802
        version = self._repository.get(request.name, request.version)
        return {
            "name": version.name,
            "versions": self._repository.versions(version.name),
            "platform": version.platform,
            "inputs": tensors_told(version.signature, version.signature.inputs),
            "outputs": tensors_told(version.signature, version.signature.outputs),
            "properties": properties_told(version.signature),
        }

    async def RepositoryIndex(self, request: Any) -> dict[str, Any]:  # noqa: N802
        found = [one for one in self._repository.index() if not request.ready or one.state == READY]
        return {
            "models": [
                {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason}
                for one in found
            ]
        }

    async def RepositoryModelLoad(self, request: Any) -> dict[str, Any]:  # noqa: N802
        await self._repository.load(request.model_name)
        return {}

    async def RepositoryModelUnload(self, request: Any) -> dict[str, Any]:  # noqa: N802
        await self._repository.unload(request.model_name)
        return {}

    async def ModelInfer(self, request: Any) -> dict[str, Any]:  # noqa: N802
        arrived_s = asyncio.get_running_loop().time()
        with self._metrics.asked(self._repository.known(request.model_name)):
            asked = InferRequest(
                request.model_name, request.model_version, request.id, _inputs(request),
                [one.name for one in request.outputs], arrived_s,
            )  # fmt: skip
            response = await answered(self._repository, asked)
        told: dict[str, Any] = {
            "model_name": response.version.name,
            "model_version": str(response.version.number),
            "id": response.id,
            "outputs": [
                {"name": name, "datatype": datatype_of(value.dtype), "shape": value.shape}
                for name, value in response.outputs.items()
            ],
            "raw_output_contents": [raw_from_tensor(one) for one in response.outputs.values()],
        }
        if response.not_a_number:
            told["parameters"] = {"not_a_number": {"string_param": ",".join(response.not_a_number)}}
        return told


def _inputs(request: Any) -> dict[str, Array]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(f"it has {len(request.inputs)} inputs and raw contents of {len(raw)}")
    inputs = {}
    for number, one in enumerate(request.inputs):
        shape = shape_of(list(one.shape), one.name)
        if raw:
            inputs[one.name] = tensor_from_raw(one.name, one.datatype, shape, raw[number])
            continue
        dtype_of(one.datatype, one.name)
        place = _CONTENTS.get(one.datatype)
        if place is None:
            raise RequestError(f"{one.name}: {one.datatype[:20]!r} is sent as raw contents only")
        data = list(getattr(one.contents, place))
        inputs[one.name] = tensor_from_json(one.name, one.datatype, shape, data)
    if len(inputs) != len(request.inputs):
        raise RequestError("it has two inputs of one name")
    return inputs


def add_inference_service(service: InferenceService, server: Any, gate: Gate) -> None:
    """Have a gRPC server answer the calls of the service, for whom the gate lets in."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _handler(getattr(service, name), messages.message_class(f"{name}Response"), gate),
            request_deserializer=messages.message_class(f"{name}Request").FromString,
            response_serializer=messages.message_class(f"{name}Response").SerializeToString,
        )
        for name in messages.METHODS
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(messages.SERVICE, handlers),)
    )


def _handler(
    method: Callable[[Any], Awaitable[dict[str, Any]]], response: Any, gate: Gate
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: Any) -> Any:
        try:
            gate.check(context.invocation_metadata() or ())
            return response(**await method(request))
        except RequestError as error:
            await context.abort(grpc.StatusCode[error.code], message(str(error)))
        except LockstepError as error:  # a folder of models that came to be none
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message(str(error)))

    return answer
