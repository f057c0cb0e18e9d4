"""A graph of ONNX, node by node: what its operators do with the batch axis, and what its shape arithmetic gives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

from lockstep_serve.independence import onnx_numbers, rules
from lockstep_serve.independence.extents import INSTANCES, Extent, dependent, named, symbol
from lockstep_serve.independence.flow import applied, verdict
from lockstep_serve.independence.onnx_operators import OPERATORS, SAME_SHAPE, Operator, old
from lockstep_serve.independence.values import (
    Call,
    Content,
    Mixes,
    Place,
    Shape,
    Value,
    placed,
)
from lockstep_serve.servable import Array

_FEW = 1024
"""Elements of a constant that may be sizes or axes."""
_UNKNOWN = "?"
_OLDEST = 7
"""Opset from which operators mean what they mean today, but for those that `old` knows."""


def mixing(path: Path, without: Collection[str] = ()) -> str:
    """Why the instances of a model's batch are not shown to be independent; empty where they are.

    path: Of the model.
    without: Inputs that have no batch axis.
    """
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    try:
        return _Graph(model, path.parent, without).verdict()
    except Mixes as error:
        return str(error)


class _Graph:
    def __init__(self, model: Any, folder: Path, without: Collection[str]) -> None:
        self._graph, self._imports = model.graph, model.opset_import
        self._opset = max(
            [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")], default=1
        )
        if self._opset < _OLDEST:
            raise Mixes(
                f"its graph is of opset {self._opset}, and those before {_OLDEST} are not looked into"
            )
        self._values: dict[str, Value] = {}
        self._constants: dict[str, Array] = {}
        self._types: dict[str, int] = {}
        for one in self._graph.initializer:
            self._holds(one.name, one, folder)
        for one in self._graph.sparse_initializer:
            self._values[one.values.name] = Value(tuple(map(Extent, one.dims)))
        self._begin(without)

    def _holds(self, name: str, tensor: Any, folder: Path) -> None:
        shape = tuple(Extent(one) for one in tensor.dims)
        self._types[name] = tensor.data_type
        self._values[name] = Value(shape)
        if int(np.prod(tensor.dims)) <= _FEW and tensor.data_type != onnx.TensorProto.STRING:
            array = numpy_helper.to_array(tensor, str(folder))
            self._constants[name] = array
            self._values[name] = Value(shape, numbers=onnx_numbers.from_array(array))

    def _begin(self, without: Collection[str]) -> None:
        given = [one for one in self._graph.input if one.name not in self._values]
        batches = {}
        for one in given:
            if one.name not in without:
                dims = one.type.tensor_type.shape.dim
                if not dims or dims[0].HasField("dim_value"):
                    extent = f"is {dims[0].dim_value} for ever" if dims else "is missing"
                    raise Mixes(f"the first axis of input {one.name} {extent}")
                batches[one.name] = dims[0].dim_param
        names = set(batches.values()) - {""}
        if len(names) > 1:
            raise Mixes(
                f"inputs call their first axes by several names: {', '.join(sorted(names))}"
            )
        for one in given:
            shape = []
            for at, dim in enumerate(one.type.tensor_type.shape.dim):
                if (one.name in batches and not at) or (dim.dim_param and dim.dim_param in names):
                    shape.append(INSTANCES)
                elif dim.HasField("dim_value"):
                    shape.append(Extent(dim.dim_value))
                else:
                    shape.append(named(dim.dim_param or f"{one.name}.{at}"))
            place = Place(0) if one.name in batches else None
            try:
                self._values[one.name] = placed(tuple(shape), place)
            except Mixes as error:
                raise Mixes(f"input {one.name} {error}") from error
            self._types[one.name] = one.type.tensor_type.elem_type

    def verdict(self) -> str:
        for number, node in enumerate(self._graph.node):
            for name, value in zip(node.output, self._results(number, node), strict=False):
                if name:
                    self._values[name] = value
        return verdict([(one.name, self._values[one.name]) for one in self._graph.output])

    def _results(self, number: int, node: Any) -> list[Value]:
        label = f"node {node.name or node.output[0] or number} ({node.op_type})"
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type == "Constant":
            return [self._constant(node.output[0], attributes)]
        unknown = [one for one in node.input if one and one not in self._values]
        if unknown:
            mixed = (
                f"{label} may mix the batch: it reads {unknown[0]}, which no node before it gives"
            )
            return [Value(None, mixed=mixed) for _ in node.output]
        inputs = [self._values[one] if one else None for one in node.input]
        if any(one.type in (one.GRAPH, one.GRAPHS) for one in node.attribute):
            mixed = (
                f"{label} may mix the batch: it runs a graph of its own, which is not looked into"
            )
            return [Value(None, mixed=mixed) for _ in node.output]
        operator = OPERATORS.get(node.op_type, Operator())
        if node.domain not in ("", "ai.onnx", "com.microsoft"):
            operator = Operator()
        operator = old(node.op_type, self._opset, operator)
        options = {
            **{
                name: attributes.get(one, default)
                for one, (name, default) in operator.attributes.items()
            },
            **operator.fixed,
            **{
                name: self._option(node.input[at])
                for at, name in operator.options.items()
                if at < len(inputs) and inputs[at] is not None
            },
        }
        tensors = [one for at, one in enumerate(inputs) if at not in operator.options]
        shapes = self._shapes(node, attributes, inputs)
        call = Call(tensors, options, shapes)
        try:
            call = operator.prepared(call, inputs, attributes)
            known = onnx_numbers.folded(node.op_type, inputs, attributes)
        except Mixes as error:
            return [Value(one, mixed=f"{label} {error.told()}") for one in shapes]
        if known is not None:
            mixed = next((one.mixed for one in inputs if one is not None and one.mixed), "")
            if node.op_type in ("Shape", "Size"):  # is known, whatever became of the elements
                mixed = ""
            return [replace(onnx_numbers.value_of(known), mixed=mixed)]
        if self._evaluated(node):
            return [self._values[node.output[0]]]
        if node.op_type == "Range":
            return [_range(label, inputs, shapes[0])]
        found = applied(label, call, operator.rule, len(node.output))
        return [_mixed_sizes(one) if one.mixed else one for one in found]

    def _evaluated(self, node: Any) -> bool:
        """Whether a node computes with small constants alone; its result is one then."""
        held = [self._known(one) for one in node.input]
        operator = OPERATORS.get(node.op_type)
        if operator is None or operator.rule is rules.random or len(node.output) > 1 or not held:
            return False
        if any(one is None for one in held) or node.domain not in ("", "ai.onnx"):
            return False
        from onnx.reference import ReferenceEvaluator  # loads all operators, which few models need

        try:
            run = ReferenceEvaluator(node, opsets={"": self._opset})
            (found,) = run.run(None, dict(zip(node.input, held, strict=True)))
        except Exception:  # it has no implementation there
            return False
        if not isinstance(found, np.ndarray) or found.size > _FEW:
            return False
        self._holds(node.output[0], numpy_helper.from_array(found), Path())
        return True

    def _known(self, name: str) -> Array | None:
        value = self._values.get(name)
        if name in self._constants or value is None or value.numbers is None:
            return self._constants.get(name)
        return onnx_numbers.plain(value.numbers)

    def _option(self, name: str) -> Any:
        """An operand that says how: fractions as they are, else what is known of it."""
        known = self._constants.get(name)
        return self._values[name] if known is None or known.dtype.kind != "f" else known.tolist()

    def _constant(self, name: str, attributes: dict[str, Any]) -> Value:
        tensor = attributes.get("value")
        if tensor is None:
            ((kind, value),) = attributes.items()
            if kind == "sparse_value" or "string" in kind:
                return Value(None)
            tensor = numpy_helper.from_array(
                np.array(value, "float32" if "float" in kind else "int64")
            )
        self._holds(name, tensor, Path())
        return self._values[name]

    def _shapes(
        self, node: Any, attributes: dict[str, Any], inputs: Sequence[Value | None]
    ) -> list[Shape | None]:
        """Of the results: by ONNX's own rule for the operator, and where that knows no products, by ours."""
        shapes = self._inferred(node, inputs)
        own = onnx_numbers.SHAPES.get(node.op_type)
        if own is not None:
            try:
                found = own(inputs, attributes)
            except Mixes:
                found = None
            shapes = [found, *shapes[1:]]
        return shapes

    def _inferred(self, node: Any, inputs: Sequence[Value | None]) -> list[Shape | None]:
        symbols: dict[str, Extent] = {}
        kinds, data = {}, {}
        for name, value in zip(node.input, inputs, strict=True):
            if value is None:
                continue
            shape = value.shape
            dims = None if shape is None else [_dim(one, symbols) for one in shape]
            kind = self._types.get(name, onnx.TensorProto.FLOAT)
            kinds[name] = onnx.helper.make_tensor_type_proto(kind, dims)
            known = self._known(name)
            if known is not None:
                data[name] = numpy_helper.from_array(known, name)
        first = inputs[0] if inputs else None
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opset, node.domain)
            found = shape_inference.infer_node_outputs(
                schema, node, kinds, data, opset_imports=list(self._imports)
            )
        except (
            Exception
        ):  # an operator without a schema: as large as its first operand, if it is of that kind
            found = {}
        shapes: list[Shape | None] = []
        for name in node.output:
            told = found.get(name)
            if told is None or not told.tensor_type.HasField("shape"):
                self._types[name] = self._types.get(node.input[0] if node.input else "", 1)
                if told is not None and told.tensor_type.elem_type:
                    self._types[name] = told.tensor_type.elem_type
                shapes.append(first.shape if node.op_type in SAME_SHAPE and first else None)
                continue
            self._types[name] = told.tensor_type.elem_type
            shapes.append(
                tuple(
                    _extent(one, symbols, f"{name}.{at}")
                    for at, one in enumerate(told.tensor_type.shape.dim)
                )
            )
        return shapes


def _dim(extent: Extent, symbols: dict[str, Extent]) -> int | str:
    if not extent.symbols:
        return extent.number
    symbols[str(extent)] = extent
    return str(extent)


def _extent(dim: Any, symbols: dict[str, Extent], name: str) -> Extent:
    if dim.HasField("dim_value"):
        return Extent(dim.dim_value)
    return symbols.get(dim.dim_param, named(f"{_UNKNOWN}{name}"))


def _mixed_sizes(value: Value) -> Value:
    """Sizes of which nothing is known may depend on all instances, as the elements do."""
    shape = value.shape and tuple(
        dependent(str(one)) if any(_UNKNOWN in name for name in one.symbols) else one
        for one in value.shape
    )
    return replace(value, shape=shape)


def _range(label: str, inputs: Sequence[Value | None], shape: Shape | None) -> Value:
    """Whole numbers from a start to a limit; those of the instances, where the limit is their number."""
    parts = [
        None if one is None or one.numbers is None else one.numbers.ravel()[0] for one in inputs
    ]
    mixed = next((one.mixed for one in inputs if one is not None and one.mixed), "")
    start, limit, step = parts
    if start is None or limit is None or step is None:
        return Value(shape, mixed=mixed)
    if not any(one.of_instances for one in (start, limit, step)):
        counted = symbol("({}..{}/{})", start, limit, step)
        length = limit if start == Extent(0) and step.is_one else counted
        below = limit if start == Extent(0) else None
        return Value(shape if not limit.symbols else (length,), below=below, mixed=mixed)
    if start == Extent(0) and limit.divided_by(step) == INSTANCES:
        return Value((INSTANCES,), Place(0), content=Content.ROW_NUMBERS, stride=step, mixed=mixed)
    return Value(
        None, mixed=mixed or f"{label} mixes the batch: it counts by the number of instances"
    )
