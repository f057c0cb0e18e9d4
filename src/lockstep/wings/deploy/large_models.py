"""Models of over 2 GB, where a message of protobuf ends: their weights lie apart from the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lockstep.core.replacement import replacing
from lockstep.wings.deploy.engines import engine

MOST_IN_ONE = (1 << 31) - 1
"""The most bytes that one message may be (protobuf's own limit)."""

_LEAST_APART = 1 << 10
"""Smaller weights stay in the graph: shapes are among them."""

_PAGE = 4096
"""Where weights begin in a file of theirs, so that a runtime can map them (onnx's documentation of external data)."""

_EXTERNAL = 1
_WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def is_large(model: Any) -> bool:
    """Whether a model is over what one message may be."""
    return bool(model.ByteSize() > MOST_IN_ONE)


def graph_alone(model: Any) -> tuple[Any, list[Any]]:
    """A copy of a model without its weights, and those, not copied.

    Parameters
    ----------
    model
        An `onnx.ModelProto`; nothing is taken out of one that is not large.
    """
    alone = type(model)()
    if not is_large(model):
        alone.CopyFrom(model)
        return alone, []
    for field, value in model.ListFields():
        if field.name != "graph":
            alone.MergeFrom(type(model)(**{field.name: value}))
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            alone.graph.MergeFrom(type(model.graph)(**{field.name: value}))
    weights = []
    for one in model.graph.initializer:
        tensor = alone.graph.initializer.add()
        if len(one.raw_data) < _LEAST_APART or _element(one) is None:
            tensor.CopyFrom(one)
            continue
        tensor.name, tensor.data_type, tensor.data_location = one.name, one.data_type, _EXTERNAL
        tensor.dims.extend(one.dims)
        tensor.external_data.add(key="location", value="weights")
        weights.append(one)
    return alone, weights


def message_for(model: Any, options: Any) -> tuple[bytes, list[Any]]:
    """A model as the runtime is given it, and what must live as long as the session.

    Parameters
    ----------
    model
        An `onnx.ModelProto`.
    options
        Of the session; they get the weights of a large model.
    """
    alone, weights = graph_alone(model)
    make = engine("onnxruntime").OrtValue.ortvalue_from_numpy_with_onnx_type
    arrays = [_array(one) for one in weights]
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
        if one.data_location == _EXTERNAL:
            offset, length = places[one.name]
            del one.external_data[:]
            for key, value in (("location", name), ("offset", offset), ("length", length)):
                one.external_data.add(key=key, value=str(value))
    with replacing(path) as aside:
        aside.write_bytes(alone.SerializeToString(deterministic=True))


def _written(weights: list[Any], file: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    for one in weights:
        file.write(bytes(-file.tell() % _PAGE))
        yield one.name, (file.tell(), len(one.raw_data))
        file.write(one.raw_data)


def _element(tensor: Any) -> Any:
    """An unsigned dtype as wide as a tensor's elements; None where they are packed, or of no fixed size."""
    count = int(np.prod(tensor.dims, dtype=np.int64))
    return (
        _WIDTHS.get(len(tensor.raw_data) // count)
        if count and len(tensor.raw_data) % count == 0
        else None
    )


def _array(tensor: Any) -> Any:
    return np.frombuffer(tensor.raw_data, _element(tensor)).reshape(tensor.dims)
