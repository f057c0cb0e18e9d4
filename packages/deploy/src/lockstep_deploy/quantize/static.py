"""Quantising weights and activations by onnxruntime, with ranges from samples."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep_deploy.engines import as_sentence, engine, quiet
from lockstep_deploy.quantize.calibration import Samples


class Method(str, Enum):
    """How the range of an activation is chosen."""

    MINMAX = "minmax"
    """All that was seen."""
    ENTROPY = "entropy"
    """The one that loses the least information, by the Kullback-Leibler divergence."""
    PERCENTILE = "percentile"
    """All but the outermost 0.001 %."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The samples that ranges of activations are taken from.

    samples: What the model is run on.
    method: How a range is chosen.
    bits: Of each activation: 8 or 16.
    per_channel: Whether a weight has a step for each output channel.
    reduce_range: Whether 8-bit weights take 7 bits, so that kernels that add pairs of products in 16 bits do not
        saturate.
    """

    samples: Samples
    method: Method = Method.MINMAX
    bits: int = 8
    per_channel: bool = True
    reduce_range: bool = False


def quantize_static(
    proto: Any, calibration: Calibration, *, weight_bits: int, left_out: Collection[str] = ()
) -> Any:
    """Quantise weights and activations.

    Parameters
    ----------
    proto
        An `onnx.ModelProto` of float32 whose nodes have names; it is left as it is.
    calibration
        What the ranges are taken from.
    weight_bits
        8 or 16.
    left_out
        Names of nodes that stay in float32.

    Returns
    -------
    Any
        Another `onnx.ModelProto`.

    Raises
    ------
    UsageError
        If onnxruntime cannot.
    """
    found = _quantized_once(proto, calibration, weight_bits, left_out)
    infinite = _of_infinite_range(found)
    if infinite:  # a mask of -inf, whose step would be infinite too
        beside = [node.name for node in proto.graph.node if infinite & {*node.input, *node.output}]
        return quantize_static(
            proto, calibration, weight_bits=weight_bits, left_out=[*left_out, *beside]
        )
    if not any(node.op_type == "QuantizeLinear" for node in found.graph.node):
        raise UsageError("onnxruntime found nothing to quantise in this model; try --weight-only")
    return found


def _of_infinite_range(quantised: Any) -> set[str]:
    """Names of the values whose step is no number."""
    to_array = engine("onnx").numpy_helper.to_array
    end = "_scale"
    return {
        one.name.removesuffix(end)
        for one in quantised.graph.initializer
        if one.name.endswith(end) and not np.isfinite(to_array(one)).all()
    }


def _quantized_once(
    proto: Any, calibration: Calibration, weight_bits: int, left_out: Collection[str]
) -> Any:
    onnx, quantization = engine("onnx"), engine("onnxruntime.quantization")
    kinds = quantization.QuantType
    methods = quantization.CalibrationMethod
    bare = _with_own_biases(proto)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-quantize-") as folder,
        as_sentence("the model cannot be quantised by onnxruntime", "try --weight-only"),
        quiet(),
    ):
        written = Path(folder) / "quantized.onnx"
        quantization.quantize_static(
            bare, written, _reader(calibration.samples),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=calibration.per_channel,
            reduce_range=calibration.reduce_range and weight_bits == 8,
            weight_type=kinds.QInt8 if weight_bits == 8 else kinds.QInt16,
            activation_type=kinds.QUInt8 if calibration.bits == 8 else kinds.QUInt16,
            nodes_to_exclude=list(left_out),
            calibrate_method={
                Method.MINMAX: methods.MinMax, Method.ENTROPY: methods.Entropy, Method.PERCENTILE: methods.Percentile
            }[calibration.method],
        )  # fmt: skip
        return onnx.load(str(written))


def _with_own_biases(proto: Any) -> Any:
    """A copy of a model in which no two nodes read one vector.

    onnxruntime makes such copies itself, and calls them what other values of the graph may be called already: those
    are then lost without a word.
    """
    found = type(proto)()
    found.CopyFrom(proto)
    vectors = {one.name: one for one in proto.graph.initializer if len(one.dims) == 1}
    read: set[str] = set()
    for node in found.graph.node:
        for at, name in enumerate(node.input):
            if name in vectors and name in read:
                copied = found.graph.initializer.add()
                copied.CopyFrom(vectors[name])
                copied.name = node.input[at] = f"{name}/{node.name}/{at}/own"
            read.add(name)
    return found


def _reader(samples: Samples) -> Any:
    batches = samples.batches()

    class Reader(engine("onnxruntime.quantization").CalibrationDataReader):  # type: ignore[misc]
        """The samples, as onnxruntime asks for them."""

        def get_next(self) -> Any:
            """The next batch, None behind the last."""
            return next(batches, None)

    return Reader()
