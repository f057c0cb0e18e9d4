"""Weights of 8 bits, and activations whose ranges the runtime takes as it runs: onnxruntime's dynamic quantisation."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep_deploy.engines import as_sentence, engine, quiet
from lockstep_deploy.noted import module_of, source_of
from lockstep_deploy.quantize.calibration import Samples
from lockstep_deploy.quantize.errors import LayerError, Standing, doubles, sqnr
from lockstep_deploy.runtime import Level, Settings, every_value

_OPERATORS = ("Conv", "Gemm", "MatMul", "LSTM", "Gather")
"""Operators of float32 whose weights onnxruntime quantises dynamically."""

_INTEGER = ("MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM", "DequantizeLinear")


def dynamic_model(proto: Any, *, per_channel: bool, reduce_range: bool) -> Any:
    """A model with weights of 8 bits, its activations quantised as it runs.

    proto: An `onnx.ModelProto` of float32; it is left as it is.
    per_channel: Whether weights have a step for each output channel.
    reduce_range: Whether weights take 7 bits.

    Raises UsageError if onnxruntime cannot, or finds nothing to quantise.
    """
    onnx, quantization = engine("onnx"), engine("onnxruntime.quantization")
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-quantize-") as folder,
        as_sentence("the model cannot be quantised by onnxruntime", "try --weight-only"),
        quiet(),
    ):
        # It knows no linear layer as exporters write it (Gemm), only its parts.
        split = engine("onnxruntime.quantization.onnx_model").ONNXModel(bare)
        split.replace_gemm_with_matmul()
        del split.model.graph.value_info[:]  # shapes of weights that were turned
        written = Path(folder) / "quantized.onnx"
        quantization.quantize_dynamic(
            split.model, written, per_channel=per_channel, reduce_range=reduce_range,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )  # fmt: skip
        found = onnx.load(str(written))
    if not any(node.op_type in _INTEGER for node in found.graph.node):
        raise UsageError("onnxruntime found nothing to quantise in this model; try --weight-only")
    return found


def dynamic_errors(proto: Any, quantised: Any, samples: Samples) -> list[LayerError]:
    """Return the error of each layer in the quantised model: measured, and not judged.

    proto, quantised: As `dynamic_model` takes and gives them.
    samples: What both are run on.
    """
    kept = {name for node in quantised.graph.node for name in node.output}
    held = {one.name for one in proto.graph.initializer}
    layers = [
        node
        for node in proto.graph.node
        if node.op_type in _OPERATORS
        and held.intersection(_weights(node))
        and node.output[0] in kept
    ]
    names = [node.output[0] for node in layers]
    sums = {name: [0.0, 0.0] for name in names}
    for batch in samples.batches():
        before, after = (
            every_value(one, batch, names, Settings(Level.ALL)) for one in (proto, quantised)
        )
        others = dict(after)
        for name, value in before:
            if np.asarray(value).dtype.kind == "f" and name in others:
                exact = doubles(value)
                sums[name][0] += float(np.sum(exact**2))
                sums[name][1] += float(np.sum((doubles(others[name]) - exact) ** 2))
    return [_measured(node, sums[node.output[0]]) for node in layers]


def _weights(node: Any) -> Sequence[str]:
    """Inputs of a node that may be weights; the indices of a lookup are none."""
    inputs: Sequence[str] = node.input[:1] if node.op_type == "Gather" else node.input
    return inputs


def _measured(node: Any, sums: Sequence[float]) -> LayerError:
    carried = sqnr(*sums)
    return LayerError(
        node.name or node.output[0], node.op_type, module_of(node), source_of(node), 8, "dynamic",
        math.nan, math.nan, math.nan, carried, 0.0, Standing.MEASURED,
    )  # fmt: skip
