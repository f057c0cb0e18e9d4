"""The table of ONNX operators and their effect on a batch axis.

After the operator specification of ONNX (opset 7 to 25) and that of ONNX Runtime's own domain, com.microsoft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep_serve.independence import layer_rules, rules
from lockstep_serve.independence.extents import Extent
from lockstep_serve.independence.values import Call, Mixes, NotListed, Rule, Value


@dataclass(frozen=True, slots=True)
class Operator:
    """How an operator is seen by its rule.

    rule: What it does with a batch axis; None where that is not known.
    attributes: By the attribute's name: the option's, and its default.
    options: Operands that are options, by their place.
    fixed: Options that are the same for each of its nodes.
    only: Operands that are data; others are left out. None for all.
    """

    rule: Rule | None = None
    attributes: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    options: Mapping[int, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Sequence[int] | None = None

    def prepared(
        self, call: Call, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
    ) -> Call:
        """The call with what only this kind of graph has. Raises Mixes if its options are not known."""
        if self.only is not None:
            picked = [inputs[at] if at < len(inputs) else None for at in self.only]
            others = [one for at, one in enumerate(call.tensors) if at not in self.only and one]
            call = replace(call, tensors=[*picked, *others])
        prepare = _PREPARED.get(self.rule)  # type: ignore[arg-type]
        return call if prepare is None else prepare(call, inputs, attributes)


def _table(*rows: tuple[str, Operator]) -> dict[str, Operator]:
    return {name: row for names, row in rows for name in names.split()}


_KEPT = {"keepdims": ("keep", 1)}

OPERATORS = _table(
    ("""Abs Acos Acosh And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu
        Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN
        LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Neg Not Or PRelu Pow Reciprocal Relu Round Selu
        Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
        BiasGelu FastGelu QuickGelu QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu""",
     Operator(rules.pointwise)),
    ("Add", Operator(rules.added)),
    ("Mul", Operator(rules.multiplied)),
    ("Cast CastLike Identity", Operator(rules.copied)),
    ("Dropout", Operator(rules.pointwise, options={1: "ratio", 2: "training"})),
    ("QuantizeLinear DequantizeLinear", Operator(rules.scaled, {"axis": ("axis", 1)})),
    ("Softmax LogSoftmax Hardmax LpNormalization", Operator(rules.along, {"axis": ("axes", -1)})),
    ("TopK", Operator(rules.along, {"axis": ("axes", -1)}, {1: "k"})),
    ("CumSum CumProd", Operator(rules.along, options={1: "axes"})),
    ("Trilu", Operator(rules.along, options={1: "k"}, fixed={"axes": [-1, -2]})),
    ("MeanVarianceNormalization", Operator(rules.along, {"axes": ("axes", [0, 2, 3])})),
    ("LayerNormalization SimplifiedLayerNormalization RMSNormalization",
     Operator(rules.along_from, {"axis": ("axis", -1)})),
    ("""ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare""", Operator(rules.reduced, {"axes": ("axes", None), **_KEPT}, {1: "axes"})),
    ("ArgMax ArgMin", Operator(rules.reduced, {"axis": ("axes", 0), **_KEPT})),
    ("MaxPool", Operator(rules.rows_alone)),
    ("""Conv ConvTranspose ConvInteger QLinearConv AveragePool LpPool GlobalAveragePool GlobalMaxPool
        GlobalLpPool InstanceNormalization GroupNormalization LRN DepthToSpace SpaceToDepth""",
     Operator(rules.rows)),
    ("BatchNormalization", Operator(rules.rows_alone, {"training_mode": ("training", 0)})),
    ("GridSample", Operator(rules.rows, fixed={"paired": (0, 1)})),
    ("DeformConv", Operator(rules.rows, fixed={"paired": (0, 2, 4)})),
    ("AffineGrid", Operator(rules.rows, options={1: "size"})),
    ("Resize", Operator(rules.rows, options={1: "roi", 2: "scales", 3: "sizes"})),
    ("Upsample", Operator(rules.rows, options={1: "scales"})),
    ("MatMul MatMulInteger", Operator(rules.product_of_matrices)),
    ("QLinearMatMul", Operator(rules.product_of_matrices, only=(0, 3))),
    ("MatMulNBits", Operator(rules.linear)),
    ("Gemm", Operator(rules.gemm, {"transA": ("transA", 0), "transB": ("transB", 0)})),
    ("Einsum", Operator(layer_rules.einsum, {"equation": ("equation", b"")})),
    ("Transpose", Operator(rules.permuted, {"perm": ("order", None)})),
    ("Reshape Flatten Squeeze Unsqueeze", Operator(rules.reshaped, options={1: "shape"})),
    ("Expand", Operator(rules.expanded, options={1: "shape"})),
    ("Tile", Operator(rules.tiled, options={1: "repeats"})),
    ("ConstantOfShape", Operator(rules.filled, options={0: "shape"})),
    ("Concat", Operator(rules.joined, {"axis": ("axis", 0)})),
    ("Split", Operator(rules.cut, {"axis": ("axes", 0)}, {1: "sizes"})),
    ("Slice", Operator(rules.cut, {"axes": ("axes", None)}, {1: "starts", 2: "ends", 3: "axes", 4: "steps"})),
    ("Pad", Operator(rules.cut, options={1: "pads", 2: "value", 3: "on"})),
    ("Gather", Operator(rules.picked, {"axis": ("axis", 0)})),
    ("GatherElements ScatterElements", Operator(rules.picked_elements, {"axis": ("axis", 0)})),
    ("GatherND", Operator(rules.picked_by_tuples, {"batch_dims": ("batch_dims", 0)})),
    ("OneHot", Operator(rules.one_hot, {"axis": ("axis", -1)}, {1: "depth"})),
    ("LSTM GRU RNN", Operator(layer_rules.recurrent)),
    ("Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial",
     Operator(rules.random)),
)  # fmt: skip
"""By the operator's name; what is not here brings instances together as far as anybody knows."""


def old(kind: str, opset: int, operator: Operator) -> Operator:
    """The operator of an older opset, where that meant something else by the same name."""
    if opset < 14 and kind == "BatchNormalization":
        return Operator(rules.batch_norm_by_outputs)
    if opset < 13 and kind in ("Softmax", "LogSoftmax", "Hardmax"):
        return Operator(rules.along_from, {"axis": ("axis", 1)})
    if opset < 10 and kind == "Dropout":
        return Operator(rules.copied)
    return operator


def _rows(call: Call, inputs: Any, attributes: Mapping[str, Any]) -> Call:
    """Refuse training, and sizes by which the batch axis is scaled."""
    if call.options.get("training"):
        raise Mixes("normalises by the whole batch, as in training")
    rank = call.first.rank
    axes = [rules.normal(one, rank) for one in attributes.get("axes", range(rank))]
    if not {"scales", "sizes"} & (call.options.keys() | attributes.keys()) or 0 not in axes:
        return call
    at = axes.index(0)
    scales, sizes = call.options.get("scales", attributes.get("scales")), call.options.get("sizes")
    options = {name: one for name, one in call.options.items() if name != "sizes"}
    if attributes.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
        raise NotListed("crops as it resizes, which is not followed")
    if isinstance(scales, list) and scales:
        if scales[at] != 1:
            raise Mixes("resizes the batch axis")
        return call
    if isinstance(sizes, Value) and sizes.numbers is not None and len(axes) == sizes.numbers.size:
        told = [*sizes.numbers.ravel()]
        if told[at] == call.first.extents[0] and "keep_aspect_ratio_policy" not in attributes:
            shape = [*call.first.extents]
            for axis, extent in zip(axes, told, strict=True):
                shape[axis] = extent
            return replace(call, options=options, shapes=[tuple(shape)])
    raise Mixes("resizes by what is not known")


def _dropout(call: Call, inputs: Any, attributes: Mapping[str, Any]) -> Call:
    training = call.options.get("training")
    if training is not None and not (
        isinstance(training, Value)
        and training.numbers is not None
        and training.numbers.ravel()[0] == Extent(0)
    ):
        raise Mixes("draws random numbers, as in training")
    return call


def _cut(call: Call, inputs: Any, attributes: Mapping[str, Any]) -> Call:
    """Which axes are cut, and which of these are left whole."""
    options = dict(call.options)
    rank = call.first.rank
    if "pads" in options or "pads" in attributes:
        pads = options.get("pads", attributes.get("pads"))
        widths = replace(call, options={"pads": pads}).several("pads")
        on = replace(call, options=options).several("on", range(rank))
        half = len(widths) // 2
        padded = [axis for at, axis in enumerate(on) if widths[at] or widths[at + half]]
        return replace(call, options={"axes": padded})
    if "starts" in options or "starts" in attributes:
        axes = options.get("axes")
        starts = options.get("starts", attributes.get("starts"))
        if axes is None and isinstance(starts, Value):
            axes = [*range(rank if starts.numbers is None else starts.numbers.size)]
        elif axes is None:
            axes = [*range(len(starts or ()))]
        told = replace(call, options={"axes": axes}).several("axes")
        whole = _whole(call, told, attributes)
        if len(whole) == len(told):
            options = {}
        return replace(call, options={**options, "axes": told, "whole": whole})
    return call


def _whole(call: Call, axes: Sequence[int], attributes: Mapping[str, Any]) -> list[int]:
    """Axes of which a slice takes everything."""

    def each(name: str) -> list[Any]:
        told = call.options.get(name, attributes.get(name))
        if isinstance(told, Value):
            return [None] * len(axes) if told.numbers is None else [*told.numbers.ravel()]
        return [Extent(1)] * len(axes) if told is None else [Extent(one) for one in told]

    found = []
    for axis, start, end, step in zip(
        axes, each("starts"), each("ends"), each("steps"), strict=True
    ):
        extent = call.first.extents[axis]
        everything = end == extent or (
            end is not None and not end.symbols and end.number >= 2**31 - 1
        )
        if start == Extent(0) and step == Extent(1) and everything:
            found.append(axis)
    return found


def _recurrent(call: Call, inputs: Any, attributes: Mapping[str, Any]) -> Call:
    if attributes.get("layout", 0):
        raise NotListed("has its layout by instances, which is not followed")
    options = {"axis": 1, "states": (5, 6), "lengths": (4,), "results": (2, 1, 1)}
    return replace(call, options=options)


def _einsum(call: Call, inputs: Any, attributes: Mapping[str, Any]) -> Call:
    return replace(call, options={"equation": attributes["equation"].decode()})


_PREPARED = {
    rules.rows: _rows,
    rules.rows_alone: _rows,
    rules.pointwise: _dropout,
    rules.cut: _cut,
    layer_rules.recurrent: _recurrent,
    layer_rules.einsum: _einsum,
}

SAME_SHAPE = frozenset(
    [
        "BiasGelu",
        "FastGelu",
        "QuickGelu",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "SimplifiedLayerNormalization",
    ]
)
"""Of com.microsoft: those whose result is as large as their first operand."""
