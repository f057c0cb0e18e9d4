"""Quantisers of weights, and weights of any width in an ONNX file."""

import numpy as np
import onnx_models
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from onnx import helper

from lockstep_deploy.quantize.packing import planes_of, stored, stored_as_codes
from lockstep_deploy.quantize.uniform import quantized
from lockstep_deploy.runtime import Level, Session, Settings

WIDTHS = range(1, 17)


def decibels(weight, values):
    return 10 * np.log10(np.square(weight).sum() / np.square(values - weight).sum())


@pytest.mark.parametrize("bits", WIDTHS)
def test_each_bit_halves_the_step(bits):
    weight = np.random.default_rng(0).standard_normal((64, 512)).astype("f4")
    ratio = decibels(weight, quantized(weight, bits, 0).values())
    # One bit: 2 / pi of the energy stays. Two: Max (1960), table II. Above: 6.02 dB a bit, less the peak's share.
    peak = 20 * np.log10(np.abs(weight).max(axis=1).mean())
    least = {1: 4.3, 2: 9.2}.get(bits, 6.02 * bits + 4.77 - peak - 0.5)
    assert ratio >= least
    if bits > 7:
        assert ratio == pytest.approx(6.02 * bits + 4.77 - peak, abs=0.5)


@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=4, max_side=7), elements=st.floats(-100, 100, width=32)),
    st.sampled_from(WIDTHS), st.sampled_from([None, 0, 1, -1]),
)  # fmt: skip
def test_no_weight_is_off_by_more_than_the_width_says(weight, bits, axis):
    found = quantized(weight, bits, axis)
    assert found.codes.max() < 1 << bits
    axes = (
        None if axis is None else tuple(at for at in range(weight.ndim) if at != axis % weight.ndim)
    )
    largest = np.abs(weight).max(axis=axes, keepdims=True)
    error = np.abs(found.values() - weight)
    if bits > 7:
        assert (error <= largest / ((1 << bits) - 2) * 1.01 + 1e-30).all()
    else:
        step = largest if bits == 1 else 2 * largest / ((1 << bits) - (1 if bits == 2 else 2))
        assert (
            np.square(error, dtype="f8").sum()
            <= np.square(np.broadcast_to(step, weight.shape), dtype="f8").sum() + 1e-30
        )


@given(st.integers(1, 16), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_bit_planes_hold_each_code(bits, count, seed):
    codes = np.random.default_rng(seed).integers(0, 1 << bits, count).astype(np.uint16)
    planes = planes_of(codes, bits)
    assert planes.shape == (bits, -(-count // 8))
    back = sum(
        np.unpackbits(plane, bitorder="little", count=count).astype(np.uint16) << at
        for at, plane in enumerate(planes)
    )
    assert (back == codes).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("keep", [stored, stored_as_codes])
def test_the_runtime_restores_a_weight_as_it_was_quantised(bits, opset, axis, keep):
    weight = np.random.default_rng(bits).standard_normal((5, 3, 3)).astype("f4")
    codes = quantized(weight, bits, axis)
    kept = keep("w", codes, opset)
    nodes = [*kept.nodes, helper.make_node("Add", ["x", kept.output], ["y"])]
    model = onnx_models.made(
        nodes, [("x", [1])], [("y", [5, 3, 3])], kept.initializers, opset=opset
    )
    model.opset_import.add(domain="com.microsoft", version=1)
    for level in (Level.NONE, Level.ALL):
        found = Session(model, Settings(level)).run({"x": np.zeros(1, "f4")})["y"]
        assert (found == codes.values()).all()
    if bits not in (8, 16):
        planes = next(one for one in kept.initializers if one.name == "w.planes")
        assert len(planes.raw_data) == bits * -(-weight.size // 8)
