"""An ONNX file on disk: opened without trusting it, and the facts that it carries about itself."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import replacing
from lockstep_deploy.engines import engine, first_line
from lockstep_deploy.large_models import (
    MOST_IN_ONE,
    inferred_shapes,
    is_large,
    opened,
    pieces_of,
    write_large,
)

MOST_BYTES = 8 << 30
"""What one tensor of a file may take by default: a bound on what a hostile file makes others allocate."""

_MOST_NESTED = 16
"""How deep graphs may lie in attributes of nodes of graphs."""

PREFIX = "lockstep."
"""What the names of our entries among a file's metadata begin with."""

_DIGEST = f"{PREFIX}digest"

Dimension = int | str | None
"""An extent; a name where it is free, None where nothing is said."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model: its name, dtype as NumPy spells it ("" for none), and shape."""

    name: str
    dtype: str
    shape: tuple[Dimension, ...] | None

    def __str__(self) -> str:
        """As `--inputs` takes it: `x:float32[1,3,32,32]`."""
        extents = ",".join("?" if one is None else str(one) for one in self.shape or ())
        return f"{self.name}:{self.dtype}[{extents}]"


@dataclass(frozen=True)
class ModelFile:
    """An ONNX model that was checked: external data lies in its folder, and every tensor is as long as its shape says.

    path: Where it lies.
    proto: The `onnx.ModelProto`; its external data is loaded, or lies where `large_models` maps it.
    """

    path: Path
    proto: Any

    @property
    def opset(self) -> int:
        """Version of the standard operators that the file is of."""
        return opset_of(self.proto)

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, without initializers that older files list among them."""
        held = {one.name for one in self.proto.graph.initializer}
        return tuple(_spec(one) for one in self.proto.graph.input if one.name not in held)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The model's outputs."""
        return tuple(_spec(one) for one in self.proto.graph.output)

    @cached_property
    def weight_bytes(self) -> int:
        """The size of its initializers, in bytes."""
        return sum(_tensor_bytes(one) for one in self.proto.graph.initializer)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that the model computes with: the file without the entry that states this digest."""
        return digest_of(self.proto)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Our entries among its metadata, by name without the prefix, decoded from JSON."""
        return {
            one.key.removeprefix(PREFIX): _decoded(one.value)
            for one in self.proto.metadata_props
            if one.key.startswith(PREFIX)
        }

    @property
    def was_changed(self) -> bool:
        """Whether it states a digest that is not the one of what it holds now."""
        return bool(self.facts.get("digest", self.digest) != self.digest)


def open_model(path: Path, *, most_bytes: int = MOST_BYTES) -> ModelFile:
    """Read an ONNX file, checking each size before anything of it is allocated.

    path: The file; its external data is read from its own folder only.
    most_bytes: What any single tensor of it may take, those between its nodes included.

    Raises UsageError if it is missing, is no ONNX model, or holds what it must not.
    """
    onnx = engine("onnx")
    try:
        if path.stat().st_size > MOST_IN_ONE:
            raise UsageError(
                f"{path}: over 2 GB, which no ONNX file is; keep its weights beside it as external data"
            )
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error}); give an ONNX file"
        ) from error
    try:
        proto = onnx.load_model_from_string(data)
    except Exception as error:
        raise UsageError(
            f"{path}: is not an ONNX model ({first_line(error)}); give another file"
        ) from error
    if not proto.graph.node or not proto.opset_import:
        raise UsageError(
            f"{path}: is not an ONNX model (no graph, or no opset, in it); give another file"
        )
    _check(proto, path, most_bytes)
    check_between(opened(proto, path.parent, [*_tensors(proto.graph, path)]), path, most_bytes)
    return ModelFile(path, proto)


def write_model(proto: Any, path: Path, facts: Mapping[str, Any]) -> ModelFile:
    """Write a model with facts about it among its metadata, aside first; its digest is added.

    proto: An `onnx.ModelProto` with its weights in it.
    path: The file to write, weights inside; those of a model of over 2 GB lie in a file beside it.
    facts: JSON values by name; they stand in the file under `lockstep.NAME`.

    Raises OutputExistsError if it cannot be written.
    """
    ours = {f"{PREFIX}{name}": json.dumps(value, sort_keys=True) for name, value in facts.items()}
    _set_metadata(proto, ours, without=_DIGEST)
    _set_metadata(proto, {_DIGEST: json.dumps(digest_of(proto))})
    try:
        if is_large(proto):
            write_large(proto, path)
        else:
            with replacing(path) as aside, aside.open("xb") as file:
                file.writelines(pieces_of(proto))
    except OSError as error:
        raise OutputExistsError(
            f"{path}: cannot be written ({error.strerror or error}); give another place with -o"
        ) from error
    return ModelFile(path, proto)


def opset_of(proto: Any) -> int:
    """Version of the standard operators (domain "" or "ai.onnx") that a model is of; 0 for none."""
    versions = [one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def digest_of(proto: Any) -> str:
    """SHA-256 of a model, as hex digits, without the entry of its metadata that states it."""
    stated = {one.key: one.value for one in proto.metadata_props if one.key == _DIGEST}
    _set_metadata(proto, {}, without=_DIGEST)
    digest = hashlib.sha256()
    for one in pieces_of(proto):
        digest.update(one)
    _set_metadata(proto, stated)
    return digest.hexdigest()


def rename_values(graph: Any, spelled: Mapping[str, str]) -> None:
    """Rename values in all nodes of a graph, and of the graphs in them."""
    for node in graph.node:
        node.input[:] = [spelled.get(one, one) for one in node.input]
        node.output[:] = [spelled.get(one, one) for one in node.output]
        for one in node.attribute:
            if one.HasField("g"):
                rename_values(one.g, spelled)


def _set_metadata(proto: Any, entries: Mapping[str, str], without: str = "") -> None:
    kept = {one.key: one.value for one in proto.metadata_props if one.key != without} | dict(
        entries
    )
    del proto.metadata_props[:]
    for key in sorted(kept):
        proto.metadata_props.add(key=key, value=kept[key])


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _spec(value: Any) -> TensorSpec:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return TensorSpec(value.name, "", None)
    shape = None
    if kind.HasField("shape"):
        shape = tuple(_dimension(one) for one in kind.shape.dim)
    return TensorSpec(value.name, dtype_name(kind.elem_type), shape)


def _dimension(one: Any) -> Dimension:
    if one.HasField("dim_value"):
        return int(one.dim_value)
    return str(one.dim_param) or None


def dtype_name(code: int) -> str:
    """NumPy's name of an ONNX element type ("float32", "bfloat16"); "" for what it has none for."""
    onnx = engine("onnx")
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TypeError, ValueError):
        return ""


# ------------------------------------------------------------------------------------ what is hostile


def _check(proto: Any, path: Path, most_bytes: int) -> None:
    """Refuse a file whose own statements would make reading it allocate, or reach, what it must not."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        _check_extents(_spec(value), path, most_bytes)
    for tensor in _tensors(proto.graph, path):
        stated = _stated_bytes(tensor, path, most_bytes)
        if tensor.data_location == 1:
            _check_external(tensor, stated, path)
        elif tensor.HasField("raw_data") and len(tensor.raw_data) != stated:
            raise UsageError(
                f"{path}: tensor {tensor.name!r} holds {len(tensor.raw_data)} bytes where its shape"
                f" {list(tensor.dims)} asks for {stated}; export it again"
            )


def _tensors(graph: Any, path: Path, depth: int = 0) -> Iterator[Any]:
    """All tensors of a graph, those in attributes and in graphs of its nodes too."""
    if depth > _MOST_NESTED:
        raise UsageError(
            f"{path}: graphs lie more than {_MOST_NESTED} deep in each other; no exporter writes this"
        )
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(inner, path, depth + 1)


def _bits(code: int) -> int:
    """Bits of an element; 8 for what is of no fixed size, which is never long for its shape."""
    onnx = engine("onnx")
    types = onnx.TensorProto
    packed = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
    by_code = {getattr(types, name): bits for name, bits in packed.items() if hasattr(types, name)}
    if code in by_code:
        return by_code[code]
    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(code).itemsize) * 8
    except (KeyError, TypeError, ValueError):
        return 8


def _stated_bytes(tensor: Any, path: Path, most_bytes: int) -> int:
    """Bytes that a tensor's shape asks for."""
    if any(extent < 0 for extent in tensor.dims):
        raise UsageError(
            f"{path}: tensor {tensor.name!r} has the shape {list(tensor.dims)}; export it again"
        )
    stated = int(math.prod(tensor.dims) * _bits(tensor.data_type) + 7) // 8
    if stated > most_bytes:
        raise UsageError(
            _too_much(path, f"tensor {tensor.name!r}", tensor.dims, stated, most_bytes)
        )
    return stated


def _too_much(path: Path, what: str, shape: Sequence[Any], asked: int, most_bytes: int) -> str:
    extents = ", ".join(str(one) for one in shape)
    return (
        f"{path}: {what} of shape [{extents}] asks for {asked:,} bytes, over the {most_bytes:,} that one tensor may"
        " take; nothing was allocated"
    )


def _check_external(tensor: Any, stated: int, path: Path) -> None:
    """External data is a plain file in the model's own folder, and as long as the tensor needs."""
    entries = {one.key: one.value for one in tensor.external_data}
    location = entries.get("location", "")
    where = f"{path}: tensor {tensor.name!r} keeps its data in {location!r}"
    folder = path.resolve().parent
    target = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not target.is_relative_to(folder):
        raise UsageError(f"{where}, outside of the model's folder; nothing of it was read")
    if not target.is_file():
        raise UsageError(f"{where}, which is not a file; put it beside the model")
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(stated)))
    except ValueError:
        raise UsageError(f"{where} at {entries.get('offset')!r}, which is not a number") from None
    size = target.stat().st_size
    if offset < 0 or length != stated or offset + length > size:
        raise UsageError(
            f"{where}, bytes {offset} to {offset + length} of {size}, where its shape {list(tensor.dims)} asks for"
            f" {stated}; export it again"
        )


def _check_extents(spec: TensorSpec, path: Path, most_bytes: int) -> None:
    known = [one for one in spec.shape or () if isinstance(one, int)]
    if any(one < 0 for one in known):
        raise UsageError(f"{path}: {spec} has a negative extent; export it again")
    asked = math.prod(known) * _item_bytes(spec.dtype)
    if asked > most_bytes:
        raise UsageError(
            _too_much(path, f"value {spec.name!r}", spec.shape or (), asked, most_bytes)
        )


def value_bytes(value: Any) -> int | None:
    """Bytes of a value of a graph (`onnx.ValueInfoProto`); None where its shape or its dtype is not known."""
    spec = _spec(value)
    if spec.shape is None or not spec.dtype or not all(isinstance(one, int) for one in spec.shape):
        return None
    return math.prod(one for one in spec.shape if isinstance(one, int)) * _item_bytes(spec.dtype)


def _item_bytes(dtype: str) -> int:
    digits = "".join(one for one in dtype if one.isdigit())
    return max(int(digits) // 8, 1) if digits else 1


def check_between(proto: Any, path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Refuse a graph that makes a huge tensor of a small one, as where a constant says its shape.

    Raises UsageError if a value whose shape can be followed is over the bound, in bytes.
    """
    try:
        inferred = inferred_shapes(proto)
    except Exception as error:
        raise UsageError(
            f"{path}: its shapes cannot be followed ({first_line(error)}); export it again"
        ) from error
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        _check_extents(_spec(value), path, most_bytes)


def _tensor_bytes(tensor: Any) -> int:
    return int(math.prod(tensor.dims) * _bits(tensor.data_type) + 7) // 8
