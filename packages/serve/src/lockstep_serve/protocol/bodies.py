"""The JSON of requests and responses, with tensors in it or as raw bytes after it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from lockstep.terminal import message
from lockstep_serve.failures import RequestError
from lockstep_serve.protocol.tensors import (
    datatype_of,
    json_from_tensor,
    raw_from_tensor,
    shape_of,
    tensor_from_json,
    tensor_from_raw,
)
from lockstep_serve.servable import Array

JSON_LENGTH = "inference-header-content-length"
"""The header that says how many bytes of a body are JSON; raw tensors follow."""

_AS_JSON = "written_as_json"
"""In a response whose tensors are all raw: the names of those that are to be written as JSON."""


class TooLargeError(RequestError):
    """A body has more bytes than are taken."""

    status = 413
    code = "RESOURCE_EXHAUSTED"


def unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """A body without its compression. Raises RequestError if it is of another encoding, or too large."""
    if encoding not in ("gzip", "deflate"):
        raise RequestError(f"content-encoding {encoding[:20]!r} is none of gzip, deflate")
    unpacking = zlib.decompressobj(47)  # finds either header by itself
    try:
        whole = unpacking.decompress(body, most_bytes)
    except zlib.error as error:
        raise RequestError(f"it cannot be decompressed ({error})") from error
    if unpacking.unconsumed_tail:
        raise TooLargeError(f"at most {most_bytes} bytes are taken, decompressed")
    if not unpacking.eof:
        raise RequestError(f"it ends within its {encoding}")
    return whole


def parts_of(body: bytes, length: str | None) -> tuple[memoryview, memoryview]:
    """Return the JSON of a request, and the bytes of tensors after it."""
    whole = memoryview(body)
    if length is None:
        return whole, memoryview(b"")
    if not length.isdecimal() or int(length) > len(body):
        raise RequestError(
            f"{JSON_LENGTH}: {length[:20]!r} is not a length within its {len(body)} bytes"
        )
    return whole[: int(length)], whole[int(length) :]


def loaded(text: bytes | memoryview) -> dict[str, Any]:
    """The object that a text of JSON is. Raises RequestError if it is none."""
    try:
        told = orjson.loads(text)
    except (
        orjson.JSONDecodeError
    ):  # it takes no NaN, and no half of a character, which Python writes
        try:
            told = json.loads(bytes(text))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"it is not JSON ({message(str(error))})") from error
    if not isinstance(told, dict):
        raise RequestError("its JSON is not an object")
    return told


def dumped(told: dict[str, Any]) -> bytes:
    """An object as JSON."""
    try:
        return orjson.dumps(told)
    except TypeError:  # half of a character, in the id of a request
        return json.dumps(told, separators=(",", ":")).encode()


def text_of(value: Any, name: str) -> str:
    """A text out of a request. Raises RequestError if it is none."""
    if not isinstance(value, str):
        raise RequestError(f"{name} is not a text")
    return value


def inputs_of(told: dict[str, Any], raw: memoryview) -> dict[str, Array]:
    """The tensors of a request, by name. Raises RequestError if one is not as its datatype and shape have it."""
    inputs: dict[str, Array] = {}
    at = 0
    for one in _objects(told, "inputs"):
        name = text_of(one.get("name"), "name")
        datatype, shape = text_of(one.get("datatype"), "datatype"), shape_of(one.get("shape"), name)
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


def wanted_of(told: dict[str, Any]) -> list[str]:
    """The outputs that a request names."""
    return [text_of(one.get("name"), "name") for one in _objects(told, "outputs")]


def raw_names(told: dict[str, Any], names: Mapping[str, Any]) -> set[str]:
    """Which outputs a request asks for as raw bytes."""
    by_default = _parameters(told).get("binary_data_output") is True
    asked = {one["name"]: _parameters(one) for one in _objects(told, "outputs")}
    return {name for name in names if asked.get(name, {}).get("binary_data", by_default) is True}


def written(
    answer: dict[str, Any], outputs: Mapping[str, Array], raw_ones: set[str]
) -> tuple[bytes, list[bytes]]:
    """Return a response as its JSON and the bytes after it."""
    entries, raw = [], []
    for name, value in outputs.items():
        entry: dict[str, Any] = {
            "name": name, "datatype": datatype_of(value.dtype), "shape": list(value.shape)
        }  # fmt: skip
        if name in raw_ones:
            raw.append(raw_from_tensor(value))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = json_from_tensor(value)
        entries.append(entry)
    return dumped({**answer, "outputs": entries}), raw


def request_as_raw(text: memoryview, raw: memoryview) -> tuple[bytes, list[bytes]]:
    """A request with all of its tensors as raw bytes."""
    told = loaded(text)
    inputs = inputs_of(told, raw)
    behind = [raw_from_tensor(one) for one in inputs.values()]
    entries = [
        {
            "name": name, "datatype": datatype_of(one.dtype), "shape": one.shape,
            "parameters": {"binary_data_size": len(size)},
        }
        for (name, one), size in zip(inputs.items(), behind, strict=True)
    ]  # fmt: skip
    return dumped({**told, "inputs": entries}), behind


def response_as_raw(
    answer: dict[str, Any], outputs: Mapping[str, Array], raw_ones: set[str]
) -> tuple[bytes, list[bytes]]:
    """A response with all of its tensors as raw bytes, which `response_from_raw` makes what was asked for."""
    as_json = [name for name in outputs if name not in raw_ones]
    return written({**answer, _AS_JSON: as_json}, outputs, set(outputs))


def response_from_raw(text: memoryview, raw: memoryview) -> tuple[bytes, list[bytes]]:
    """A response as it was asked for."""
    told = loaded(text)
    raw_ones = {one["name"] for one in told["outputs"]} - set(told.pop(_AS_JSON))
    outputs = inputs_of({"inputs": told.pop("outputs")}, raw)
    return written(told, outputs, raw_ones)


def octets(parts: bytes | memoryview | list[bytes]) -> Array:
    """Bytes as an array, by which they go to another process."""
    return np.frombuffer(b"".join(parts) if isinstance(parts, list) else parts, "u1")


def _objects(told: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = told.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RequestError(f"{name} is not a list of objects")
    return found


def _parameters(told: dict[str, Any]) -> dict[str, Any]:
    found = told.get("parameters", {})
    if not isinstance(found, dict):
        raise RequestError("parameters are no object")
    return found
