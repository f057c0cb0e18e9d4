"""Making the quantised model: each layer at its width, by the engine that has this width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lockstep.errors import UsageError
from lockstep_deploy.engines import as_sentence, engine, quiet
from lockstep_deploy.model_file import opset_of
from lockstep_deploy.quantize.allowed import BLOCK
from lockstep_deploy.quantize.layers import LOOKUP, Layer, weights_of
from lockstep_deploy.quantize.packing import StoredWeight, stored, stored_as_codes
from lockstep_deploy.quantize.static import Calibration, quantize_static
from lockstep_deploy.quantize.uniform import quantized

FLOAT_BITS = 32
"""The width of a layer that is left as it is."""

STATIC_BITS = (8, 16)
"""Widths of weights that onnxruntime quantises together with activations."""

BLOCK_BITS = (2, 4, 8)
"""Widths of weights that onnxruntime multiplies in blocks (`MatMulNBits`)."""


_LEAST_OPSET = 13
"""Steps by channel came with opset 13 (ONNX, changelog of `DequantizeLinear`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers to quantise, and how.

    bits: Of the weights, by the layer's name; `FLOAT_BITS` for one that is left as it is.
    calibration: Where the ranges of activations come from; None where activations stay in float32.
    per_channel: Whether a weight has a step for each output channel.
    """

    bits: Mapping[str, int]
    calibration: Calibration | None
    per_channel: bool = True


def quantized_model(proto: Any, layers: tuple[Layer, ...], plan: Plan) -> Any:
    """A model of the same inputs and outputs, with its layers as the plan says.

    proto: An `onnx.ModelProto` of float32 with names on its nodes; it is left as it is.
    layers: What `layers_of` says of it.
    plan: A width for each layer.

    Raises UsageError if an engine cannot, or the model's opset has no such operators.
    """
    if opset_of(proto) < _LEAST_OPSET:
        raise UsageError(
            f"the model is of opset {opset_of(proto)}, which quantises no channels; export it with"
            f" --opset {_LEAST_OPSET} or newer"
        )
    if set(plan.bits.values()) == {FLOAT_BITS}:
        found = type(proto)()
        found.CopyFrom(proto)
        return found
    weights = weights_of(proto, layers)
    if plan.calibration is None:
        found = type(proto)()
        found.CopyFrom(proto)
        ours = [layer for layer in layers if plan.bits[layer.name] != FLOAT_BITS]
        blocks = [one for one in ours if _in_blocks(one, plan.bits[one.name])]
        found = _with_blocks(found, {one.name: plan.bits[one.name] for one in blocks})
        ours = [one for one in ours if one not in blocks]
    else:
        widths = set(plan.bits.values())
        base = 16 if 16 in widths and 8 not in widths else 8
        left = [name for name, bits in plan.bits.items() if bits == FLOAT_BITS]
        left += [layer.name for layer in layers if _shares_channels(layer)]
        found = quantize_static(proto, plan.calibration, weight_bits=base, left_out=left)
        ours = [
            layer
            for layer in layers
            if plan.bits[layer.name] not in (FLOAT_BITS, base)
            or (_shares_channels(layer) and plan.bits[layer.name] != FLOAT_BITS)
        ]
    keep = stored if plan.calibration is None else stored_as_codes
    kept: dict[tuple[str, int, int | None], StoredWeight] = {}
    for at, layer in enumerate(ours):
        axis = layer.channel_axis if plan.per_channel else None
        key = layer.weight, plan.bits[layer.name], axis
        is_new = key not in kept  # a weight that several layers read is kept once
        if is_new:
            codes = quantized(weights[layer.weight], plan.bits[layer.name], axis)
            kept[key] = keep(f"q{at}", codes, opset_of(found))
        _replace(found, layer, kept[key], is_new)
    found = _without_unread(found)
    _add_domain(found)
    return found


_MOST_NODES_BYTES = 4096
"""More than the operators of a packed weight take in a file (2 kB, 2026-11-30): larger weights are never larger so."""


def bytes_in_8_bits(proto: Any, layers: tuple[Layer, ...], plan: Plan) -> int | None:
    """Return the size of the model with 8 bits for each layer that has fewer, where that may be the smaller file.

    None where activations are quantised too, no layer is packed, or the weights are so large that it cannot be.
    """
    packed = [
        one
        for one in layers
        if plan.bits[one.name] < 8
        and engine_of(one, plan.bits[one.name], static=plan.calibration is not None) == "packed"
    ]
    spared = sum(math.prod(one.shape) * (8 - plan.bits[one.name]) // 8 for one in packed)
    if plan.calibration is not None or not packed or spared > _MOST_NODES_BYTES * len(packed):
        return None
    bits = {name: max(width, 8) for name, width in plan.bits.items()}
    return int(quantized_model(proto, layers, replace(plan, bits=bits)).ByteSize())


def engine_of(layer: Layer, bits: int, *, static: bool) -> str:
    """Return the engine that quantises a layer, in the words of reports."""
    if bits == FLOAT_BITS:
        return "float32"
    if static and bits in STATIC_BITS and not _shares_channels(layer):
        return "static"
    if not static and _in_blocks(layer, bits):
        return "blocks"
    return "integers" if bits in STATIC_BITS else "packed"


def _shares_channels(layer: Layer) -> bool:
    """Whether several groups of outputs have a weight's channels in common, for which onnxruntime has no steps."""
    return layer.op == "ConvTranspose" and layer.channel_axis is None


def _in_blocks(layer: Layer, bits: int) -> bool:
    if layer.op == LOOKUP:
        return bits == 4 and len(layer.shape) == 2 and layer.shape[1] % BLOCK == 0
    return (
        layer.op == "MatMul"
        and layer.weight_at == 1
        and len(layer.shape) == 2
        and bits in BLOCK_BITS
    )


def _replace(proto: Any, layer: Layer, weight: StoredWeight, is_new: bool) -> None:
    """Let a layer read its weight from what is stored, in front of all nodes so that their order holds."""
    (node,) = [one for one in proto.graph.node if one.name == layer.name]
    node.input[layer.weight_at] = weight.output
    if not is_new:
        return
    there = {one.name for one in proto.graph.initializer}
    proto.graph.initializer.extend(one for one in weight.initializers if one.name not in there)
    rest = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend((*weight.nodes, *rest))


def _with_blocks(proto: Any, bits: Mapping[str, int]) -> Any:
    """Weights of matrix products in blocks of 32 along the summed axis, of lookups along a row."""
    module = engine("onnxruntime.quantization.matmul_nbits_quantizer")
    names = {node.output[0]: node.name for node in proto.graph.node}
    several = [node for node in proto.graph.node if node.op_type in ("MatMul", LOOKUP)]
    kinds = {node.op_type for node in several if node.name in bits}
    for width in sorted(set(bits.values())):
        wanted = {name for name, one in bits.items() if one == width}
        with as_sentence(f"onnxruntime cannot keep weights in blocks of {width} bits"), quiet():
            quantizer = module.MatMulNBitsQuantizer(
                proto, bits=width, block_size=BLOCK, is_symmetric=False,
                nodes_to_exclude=[one.name for one in several if one.name not in wanted],
                op_types_to_quantize=tuple(kinds),
            )  # fmt: skip
            quantizer.process()
        proto = quantizer.model.model
        for node in proto.graph.node:
            node.name = names.get(node.output[0], node.name) if node.output else node.name
    return proto


def _without_unread(proto: Any) -> Any:
    """A model without nodes and initializers that nothing reads."""
    ir = engine("onnx_ir")
    return ir.to_proto(
        engine("onnx_ir.passes.common").RemoveUnusedNodesPass()(ir.from_proto(proto)).model
    )


def _add_domain(proto: Any) -> None:
    domains = {one.domain for one in proto.opset_import}
    if (
        any(node.domain == "com.microsoft" for node in proto.graph.node)
        and "com.microsoft" not in domains
    ):
        proto.opset_import.add(domain="com.microsoft", version=1)
