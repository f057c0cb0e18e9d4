"""Weights apart from their graph, in files that are mapped: each copy of a message has all weights in it, at most 2 GB.

In memory a model whose weights lie apart is an `onnx.ModelProto` whose large initializers say the absolute path of
their file. On disk ONNX knows names in the model's own folder alone; `whole` and `write_large` give it these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.files import replacing
from lockstep_deploy.engines import engine

MOST_IN_ONE = (1 << 31) - 1
"""The most bytes that one message may be (protobuf's own limit)."""

MOST_INSIDE = 64 << 20
"""Bytes of weights up to which they stay in the message: copies of so few cost less than a file. Chosen."""

_LEAST_APART = 1 << 10
"""Smaller weights stay in the graph: shapes are among them."""

_PAGE = 4096
"""Where weights begin in a file of theirs, so that a runtime can map them (onnx's documentation of external data)."""

_EXTERNAL = 1
_TAKEN_OUT = "weights"
"""Where the weights lie of a graph that is alone: nowhere."""


def is_apart(tensor: Any) -> bool:
    """Whether an initializer lies in a file."""
    return bool(tensor.data_location == _EXTERNAL)


def array_of_tensor(tensor: Any) -> Any:
    """The elements of an initializer; mapped, and not to be written to, where they lie in a file."""
    onnx = engine("onnx")
    if not is_apart(tensor):
        return onnx.numpy_helper.to_array(tensor)
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return _mapped(tensor).view(kind).reshape(tensor.dims)


def is_large(model: Any) -> bool:
    """Whether a model is over what one message may be."""
    beside = sum(_place(one)[2] for one in model.graph.initializer if is_apart(one))
    return bool(model.ByteSize() + beside > MOST_IN_ONE)


def message_of(graph_model: Any, folder: Path) -> Any:
    """The message of a model of onnx_ir; the weights of one that is not small lie in a file, each once.

    graph_model: An `onnx_ir.Model`; its large weights are moved to the file, and stay there when it is asked for again.
    folder: Where files are written; they are needed as long as the model is.
    """
    ir = engine("onnx_ir")
    values = [one for one in graph_model.graph.initializers.values() if one.const_value is not None]
    large = [one for one in values if one.const_value.nbytes >= _LEAST_APART]
    if sum(one.const_value.nbytes for one in values) > min(MOST_INSIDE, MOST_IN_ONE):
        inside = [one for one in large if not isinstance(one.const_value, ir.ExternalTensor)]
        name = f"weights-{len(list(folder.iterdir()))}.data"
        moved = ir.external_data.convert_tensors_to_external(
            [one.const_value for one in inside], folder, name, alignment=_PAGE, align_threshold=0
        )
        for value, tensor in zip(inside, moved, strict=True):
            value.const_value = tensor
    found = ir.serde.serialize_model(graph_model)
    resolved(found.graph.initializer, folder)
    return found


def opened(model: Any, folder: Path, tensors: list[Any]) -> Any:
    """A model that was read from a folder, in place: its external data loaded, or mapped if it is not small.

    model: As the file has it.
    folder: That it lies in.
    tensors: All that it holds: its initializers, then those of nodes.
    """
    held = [one for one in tensors if is_apart(one)]
    resolved(held, folder)
    is_small = sum(_place(one)[2] for one in held) <= min(MOST_INSIDE, MOST_IN_ONE)
    for at, one in enumerate(tensors):
        is_mapped = is_apart(one) and not is_small and at < len(model.graph.initializer)
        if not is_mapped or _element(one) is None or _place(one)[2] < _LEAST_APART:
            _load(one)
    return model


def resolved(tensors: Iterable[Any], folder: Path) -> None:
    """Let initializers say the absolute path of their file."""
    for one in tensors:
        for entry in one.external_data if is_apart(one) else ():
            if entry.key == "location":
                entry.value = str(folder.resolve() / entry.value)


def whole(model: Any) -> Any:
    """A copy of a model with all of its weights in its message."""
    found = type(model)()
    found.CopyFrom(model)
    for one in found.graph.initializer:
        _load(one)
    return found


def _load(tensor: Any) -> None:
    if is_apart(tensor):
        tensor.raw_data = _mapped(tensor).tobytes()
        del tensor.external_data[:]
        tensor.ClearField("data_location")


def pieces_of(model: Any) -> Iterator[Any]:
    """The bytes of a model with all of its weights inside, piece by piece: they are never all in memory.

    Together they are what `whole(model).SerializeToString(deterministic=True)` gives: fields in order of their numbers,
    each message as its tag, its length and its bytes (protobuf's documentation, "Encoding").
    """
    graph, weights, raw = (
        kind.DESCRIPTOR.fields_by_name[name].number
        for kind, name in ((model, "graph"), (model.graph, "initializer"), (engine("onnx").TensorProto, "raw_data"))
    )  # fmt: skip

    def parts(tensor: Any) -> list[Any]:
        if not is_apart(tensor):
            return [tensor.SerializeToString(deterministic=True)]
        inside = type(tensor)()
        inside.CopyFrom(tensor)
        del inside.external_data[:]
        inside.ClearField("data_location")
        low, high = _around(inside, raw)
        return [low, _head(raw, _place(tensor)[2]), _mapped(tensor), high]

    sizes = [sum(map(len, parts(one))) for one in model.graph.initializer]
    (low, high), (first, last) = _around(model, graph), _around(model.graph, weights)
    within = sum(len(_head(weights, size)) + size for size in sizes)
    yield low + _head(graph, len(first) + within + len(last)) + first
    for tensor, size in zip(model.graph.initializer, sizes, strict=True):
        yield from (_head(weights, size), *parts(tensor))
    yield last + high


def _around(message: Any, number: int) -> tuple[bytes, bytes]:
    """The bytes of what stands before and after a field of a message."""
    low, high = type(message)(), type(message)()
    for field, value in message.ListFields():
        if field.number != number:
            side = low if field.number < number else high
            side.MergeFrom(type(message)(**{field.name: value}))
    return low.SerializeToString(deterministic=True), high.SerializeToString(deterministic=True)


def _head(number: int, length: int) -> bytes:
    """Tag and length of a field below 16 whose bytes follow."""
    found = bytearray([number << 3 | 2])
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*found, length])


def graph_alone(model: Any) -> tuple[Any, list[Any]]:
    """A copy of a model without the weights that lie apart, and those, not copied.

    model: An `onnx.ModelProto`; of one that is large, all large weights are taken out.
    """
    alone, weights, are_out = type(model)(), [], is_large(model)
    for field, value in model.ListFields():
        if field.name != "graph":
            alone.MergeFrom(type(model)(**{field.name: value}))
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            alone.graph.MergeFrom(type(model.graph)(**{field.name: value}))
    for one in model.graph.initializer:
        tensor = alone.graph.initializer.add()
        is_out = is_apart(one) or (
            are_out and len(one.raw_data) >= _LEAST_APART and _element(one) is not None
        )
        if not is_out:
            tensor.CopyFrom(one)
            continue
        tensor.name, tensor.data_type, tensor.data_location = one.name, one.data_type, _EXTERNAL
        tensor.dims.extend(one.dims)
        tensor.external_data.add(key="location", value=_TAKEN_OUT)
        weights.append(one)
    return alone, weights


def message_for(model: Any, options: Any) -> tuple[bytes, list[Any]]:
    """A model as the runtime is given it, and what must live as long as the session.

    model: An `onnx.ModelProto`.
    options: Of the session; they get the weights that lie apart.
    """
    alone, weights = graph_alone(model)
    make = engine("onnxruntime").OrtValue.ortvalue_from_numpy_with_onnx_type
    arrays = [_bytes_in(one).view(_element(one)).reshape(one.dims) for one in weights]
    values = [make(one, tensor.data_type) for one, tensor in zip(arrays, weights, strict=True)]
    if values:
        options.add_external_initializers([one.name for one in weights], values)
    return alone.SerializeToString(), [arrays, values]


def inferred_shapes(model: Any) -> Any:
    """A model with the shapes of its values, as far as they can be followed; of a large one, without its weights."""
    found: Any = engine("onnx").shape_inference.infer_shapes(graph_alone(model)[0], data_prop=True)
    return found


def write_large(model: Any, path: Path) -> None:
    """Write a large model, its weights in a file beside it, whose name is that of the model and `.data`."""
    alone, weights = graph_alone(model)
    name = f"{path.name}.data"
    with replacing(path.with_name(name)) as aside, aside.open("xb") as file:
        places = dict(_written(weights, file))
    for one in alone.graph.initializer:
        if is_apart(one):
            offset, length = places[one.name]
            del one.external_data[:]
            for key, value in (("location", name), ("offset", offset), ("length", length)):
                one.external_data.add(key=key, value=str(value))
    with replacing(path) as aside:
        aside.write_bytes(alone.SerializeToString(deterministic=True))


def _written(weights: list[Any], file: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    for one in weights:
        file.write(bytes(-file.tell() % _PAGE))
        data = _bytes_in(one)
        yield one.name, (file.tell(), data.nbytes)
        file.write(data)


def _bytes_in(tensor: Any) -> Any:
    return _mapped(tensor) if is_apart(tensor) else np.frombuffer(tensor.raw_data, np.uint8)


def _mapped(tensor: Any) -> Any:
    path, offset, length = _place(tensor)
    return np.memmap(path, np.uint8, "r", offset, length) if length else np.zeros(0, np.uint8)


def _place(tensor: Any) -> tuple[str, int, int]:
    """File, offset and length, both in bytes, of an initializer that lies apart."""
    entries = {one.key: one.value for one in tensor.external_data}
    if entries["location"] == _TAKEN_OUT:
        return _TAKEN_OUT, 0, 0
    offset = int(entries.get("offset", 0))
    left = Path(entries["location"]).stat().st_size - offset if "length" not in entries else 0
    return entries["location"], offset, int(entries.get("length", left))


def _element(tensor: Any) -> Any:
    """An unsigned dtype as wide as a tensor's elements; None where they are packed, or of no fixed size."""
    count = math.prod(tensor.dims)
    size = _place(tensor)[2] if is_apart(tensor) else len(tensor.raw_data)
    is_whole = count and size % count == 0 and size // count in (1, 2, 4, 8)
    return np.dtype(f"u{size // count}") if is_whole else None
