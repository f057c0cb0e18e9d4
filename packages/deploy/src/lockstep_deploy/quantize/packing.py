"""Weights of any width in an ONNX file, in so many bits a weight and in standard operators that every runtime has.

Codes are kept as bit planes: plane `k` holds bit `k` of each code, eight codes a byte. The graph puts them together
again, which a runtime does once, when it loads the model (constant folding), and not at each inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy.engines import engine
from lockstep_deploy.quantize.uniform import Quantized

COMMON = {
    "lockstep.shifts": np.arange(8, dtype=np.uint8),
    "lockstep.two": np.array(2, dtype=np.uint8),
    "lockstep.from": np.array([0], dtype=np.int64),
    "lockstep.axis": np.array([1], dtype=np.int64),
}
"""Initializers that all packed weights of a model share."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Nodes and initializers, each name once in a model, that give a weight in float32 under the name `output`."""

    nodes: tuple[Any, ...]
    initializers: tuple[Any, ...]
    output: str


def planes_of(codes: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint8]:
    """Bit planes of codes, of shape `[bits, ceil(codes / 8)]`; the first code is the lowest bit of the first byte.

    Examples
    --------
    >>> planes_of(np.array([1, 2, 3], dtype=np.uint16), 2).tolist()
    [[5], [6]]
    """
    flat = codes.reshape(-1)
    return np.stack(
        [
            np.packbits((flat >> plane & 1).astype(np.uint8), bitorder="little")
            for plane in range(bits)
        ]
    )


def stored(name: str, weight: Quantized, opset: int) -> StoredWeight:
    """A weight beside activations in float32: int8 or int16 where the width is one of these, else bit planes.

    name: What the names of all that is added begin with.
    weight: Its codes.
    opset: Version of the standard operators that the model is of.
    """
    if weight.bits in (8, 16):
        return _whole(name, weight, opset)
    return _planes(name, weight, (("Mul", ("centred", "step"), "restored", {}),))


def stored_as_codes(name: str, weight: Quantized, opset: int) -> StoredWeight:
    """The same beside activations that are quantised: it stays whole numbers as far as `DequantizeLinear`.

    Of a weight that is a constant in float32 onnxruntime makes 8 bits of its own accord there (its optimizer
    `WeightBiasQuantization`), whatever width it came from. Of codes of 8 bits and less it multiplies integers.
    """
    if weight.bits in (8, 16):
        return _whole(name, weight, opset)
    kinds = engine("onnx").TensorProto
    kind = kinds.INT8 if weight.bits < 8 else kinds.INT16
    return _planes(
        name, weight,
        (
            ("Cast", ("centred",), "whole", {"to": kind}),
            ("DequantizeLinear", ("whole", "step"), "restored",
             {"axis": _axis(weight), "domain": _domain(weight, opset)}),
        ),
    )  # fmt: skip


_Step = tuple[str, tuple[str, ...], str, dict[str, Any]]


def _axis(weight: Quantized) -> int:
    """Along which axis each index has a step."""
    return next((at for at, extent in enumerate(weight.scale.shape) if extent > 1), 0)


def _domain(weight: Quantized, opset: int) -> str:
    """Whose `DequantizeLinear`: the standard one reads int16 from opset 21 on, onnxruntime's own with every opset."""
    return "com.microsoft" if weight.bits > 8 and opset < 21 else ""


def _flat_step(weight: Quantized) -> Any:
    """The steps as `DequantizeLinear` takes them: one, or one each along an axis."""
    return weight.scale.reshape(-1) if weight.scale.size > 1 else weight.scale.reshape(())


def _whole(name: str, weight: Quantized, opset: int) -> StoredWeight:
    helper, numpy_helper = engine("onnx.helper"), engine("onnx.numpy_helper")
    signed = (weight.codes.astype(np.int32) - int(weight.offset)).astype(f"int{weight.bits}")
    initializers = (
        numpy_helper.from_array(signed, f"{name}.codes"),
        numpy_helper.from_array(_flat_step(weight), f"{name}.step"),
    )
    node = helper.make_node(
        "DequantizeLinear", [f"{name}.codes", f"{name}.step"], [f"{name}.restored"], f"{name}.restore",
        domain=_domain(weight, opset), axis=_axis(weight),
    )  # fmt: skip
    return StoredWeight((node,), initializers, f"{name}.restored")


def _planes(name: str, weight: Quantized, ending: tuple[_Step, ...]) -> StoredWeight:
    helper, numpy_helper = engine("onnx.helper"), engine("onnx.numpy_helper")
    planes = planes_of(weight.codes, weight.bits)
    ends_as_codes = ending[-1][0] == "DequantizeLinear"
    # Where no level lies at zero, codes and their offset are doubled to be whole, and the step is half of it.
    factor = 1 if weight.offset == int(weight.offset) else 2
    step = (_flat_step(weight) if ends_as_codes else weight.scale) / np.float32(factor)
    constants = {
        "planes": planes[:, :, None],
        "flat": np.array([weight.bits, -1], dtype=np.int64),
        "powers": (factor * 2.0 ** np.arange(weight.bits))[None].astype(np.float32),
        "count": np.array([weight.codes.size], dtype=np.int64),
        "shape": np.array(weight.codes.shape, dtype=np.int64),
        "offset": np.array(factor * weight.offset, dtype=np.float32),
        "step": np.asarray(step, dtype=np.float32),
    }
    initializers = tuple(
        numpy_helper.from_array(array, f"{name}.{key}") for key, array in constants.items()
    )
    common = tuple(numpy_helper.from_array(array, key) for key, array in COMMON.items())
    steps: tuple[_Step, ...] = (
        ("BitShift", ("planes", "lockstep.shifts"), "shifted", {"direction": "RIGHT"}),
        ("Mod", ("shifted", "lockstep.two"), "bits", {}),
        ("Cast", ("bits",), "digits", {"to": engine("onnx").TensorProto.FLOAT}),
        ("Reshape", ("digits", "flat"), "rows", {}),
        ("MatMul", ("powers", "rows"), "padded", {}),
        ("Slice", ("padded", "lockstep.from", "count", "lockstep.axis"), "codes", {}),
        ("Reshape", ("codes", "shape"), "shaped", {}),
        ("Sub", ("shaped", "offset"), "centred", {}),
        *ending,
    )  # fmt: skip
    nodes = tuple(
        helper.make_node(
            op, [one if one in COMMON else f"{name}.{one}" for one in inputs], [f"{name}.{output}"],
            f"{name}.{output}.node",
            **attributes,
        )
        for op, inputs, output, attributes in steps
    )  # fmt: skip
    return StoredWeight(nodes, (*initializers, *common), f"{name}.restored")
