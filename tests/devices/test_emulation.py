"""Emulated devices: what each profile does to single operators, in forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.devices.emulation.arithmetic import rounded_to
from lockstep.devices.emulation.mode import emulate

MANTISSA_BITS = {"npu-fp16": 10, "npu-bf16": 7, "tf32": 10, "hf32": 11}
ROUNDING = sorted(MANTISSA_BITS)

Array = npt.NDArray[np.float64]


def narrowed(value: Tensor, profile: str) -> Array:
    """A tensor rounded to the format of a profile, by NumPy alone: half to even."""
    array = value.detach().numpy()
    if profile == "npu-fp16":
        return array.astype(np.float16).astype(np.float64)
    mantissa, exponent = np.frexp(array.astype(np.float64))
    scale = 2.0 ** (MANTISSA_BITS[profile] + 1)
    return np.ldexp(np.rint(mantissa * scale) / scale, exponent)


def close(result: Tensor | None, expected: Any, *, relative: float = 2e-6) -> bool:
    """Whether a tensor is what double precision gives, up to the rounding of its own dtype."""
    assert result is not None
    got = result.detach().double().numpy()
    error = np.linalg.norm(got - np.asarray(expected)) / np.linalg.norm(expected)
    return bool(error < relative)


def leaf(*shape: int) -> Tensor:
    """A tensor of random numbers that wants a gradient."""
    return torch.randn(*shape).requires_grad_()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


# --- inputs of products are rounded -------------------------------------------------------------


@given(
    st.floats(width=32, allow_subnormal=False, min_value=-(2.0**100), max_value=2.0**100),
    st.sampled_from(["npu-bf16", "tf32", "hf32"]),
)
def test_numbers_round_to_the_nearest_of_the_format(number: float, profile: str) -> None:
    value = torch.tensor([number])
    assert rounded_to(value, MANTISSA_BITS[profile]).item() == narrowed(value, profile).item()


def test_rounding_keeps_what_is_not_finite() -> None:
    odd = torch.tensor([math.inf, -math.inf, math.nan])
    assert rounded_to(odd, 7).tolist()[:2] == [math.inf, -math.inf]
    assert rounded_to(odd, 7)[2].isnan()


@pytest.mark.parametrize("profile", ROUNDING)
def test_a_linear_layer_multiplies_rounded_numbers_in_both_directions(profile: str) -> None:
    # given a linear layer with a bias
    value, weight, bias, gradient = leaf(5, 12), leaf(7, 12), leaf(7), torch.randn(5, 7)
    # when it runs on the device
    with emulate(profile):
        output = F.linear(value, weight, bias)
        output.backward(gradient)
    # then every product is that of rounded numbers, and the bias, a sum, is not
    x, w, g = (narrowed(item, profile) for item in (value, weight, gradient))
    assert close(output, x @ w.T + bias.detach().double().numpy())
    assert close(value.grad, g @ w)
    assert close(weight.grad, g.T @ x)
    assert close(bias.grad, gradient.double().sum(0))
    # and that is not what the CPU gives
    assert not close(output, F.linear(value.double(), weight.double(), bias.double()).detach())


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: torch.mm(a, b),
        lambda a, b: torch.bmm(a[None], b[None])[0],
        lambda a, b: torch.addmm(torch.ones(b.shape[1]), a, b, beta=0.5, alpha=2.0) / 2 - 0.25,
        lambda a, b: torch.baddbmm(torch.zeros(1, 1, 1), a[None], b[None])[0],
        lambda a, b: torch.addbmm(torch.zeros(1), a[None], b[None]),
        lambda a, b: torch.stack([torch.mv(a, column) for column in b.T], 1),
        lambda a, b: torch.stack(
            [torch.addmv(torch.zeros(len(a)), a, column) for column in b.T], 1
        ),
        lambda a, b: torch.stack([torch.stack([torch.dot(r, c) for c in b.T]) for r in a]),
        lambda a, b: torch.einsum("ik,kj->ij", a, b),
        lambda a, b: torch.mm(a, b, out=torch.empty(len(a), b.shape[1])),
        lambda a, b: torch.zeros(len(a), b.shape[1]).addmm_(a, b),
    ],
)
@pytest.mark.parametrize("profile", ["npu-fp16", "reorder", "fp16-accumulate", "reorder+hf32"])
def test_every_way_to_multiply_matrices(
    product: Callable[[Tensor, Tensor], Tensor], profile: str
) -> None:
    # given a product of 40 terms, and what a device makes of it
    left, right = torch.randn(3, 40), torch.randn(40, 4)
    with emulate(profile):
        result = product(left, right)
    # then it is right for the formats of the device, and not what the CPU gives
    formats = {"npu-fp16": "npu-fp16", "reorder+hf32": "hf32"}
    a, b = left.double().numpy(), right.double().numpy()
    if profile in formats:
        a, b = (narrowed(item, formats[profile]) for item in (left, right))
    assert close(result, a @ b, relative=2e-3 if profile == "fp16-accumulate" else 2e-6)
    if profile != "reorder":
        assert not close(result, left.double() @ right.double())


@pytest.mark.parametrize("profile", ROUNDING)
@pytest.mark.parametrize(
    ("transposed", "shape", "settings"),
    [
        (False, (6, 4, 3, 3), {"padding": 1, "stride": 2}),
        (False, (8, 1, 3, 3), {"groups": 4}),
        (False, (6, 4, 3), {"dilation": 2}),
        (True, (4, 6, 3, 3), {"stride": 2, "output_padding": 1}),
    ],
)
def test_a_convolution_multiplies_rounded_numbers_in_both_directions(
    profile: str, transposed: bool, shape: tuple[int, ...], settings: dict[str, int]
) -> None:
    # given a convolution
    dims = len(shape) - 2
    name = f"conv_transpose{dims}d" if transposed else f"conv{dims}d"
    convolution = getattr(F, name)
    value, weight = leaf(2, 4, *[9] * dims), leaf(*shape)
    bias = leaf(shape[1] if transposed else shape[0])
    # when it runs on the device
    with emulate(profile):
        output = convolution(value, weight, bias, **settings)
        gradient = torch.randn_like(output)
        output.backward(gradient)
    # then it is that of rounded numbers, in double precision on the CPU
    x, w, g = (torch.from_numpy(narrowed(t, profile)) for t in (value, weight, gradient))
    x.requires_grad_()
    w.requires_grad_()
    expected = convolution(x, w, None, **settings)
    expected.backward(g)
    plain = expected.detach() + bias.detach().double().view(-1, *[1] * dims)
    assert close(output, plain)
    assert close(value.grad, x.grad)
    assert close(weight.grad, w.grad)
    assert close(bias.grad, gradient.double().transpose(0, 1).flatten(1).sum(1))


@pytest.mark.parametrize("masked", ["causal", "mask", "none"])
def test_attention_is_made_of_rounded_products(masked: str) -> None:
    # given queries, keys, values and a mask
    query, key, value = leaf(2, 3, 6, 16), leaf(2, 3, 6, 16), leaf(2, 3, 6, 16)
    mask = {
        "none": None,
        "mask": torch.randn(6, 6),
        "causal": torch.full((6, 6), -math.inf).triu(1),
    }
    options = {"is_causal": True} if masked == "causal" else {"attn_mask": mask[masked]}

    def attention() -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **options)

    # when attention runs on the device, forward and backward
    gradient = torch.randn(2, 3, 6, 16)
    with emulate("npu-bf16"):
        results = run(attention, gradient, query, key, value)
    exact = run(attention, gradient, query, key, value)

    # then it is what NumPy makes of rounded products, but for numbers on the edge between two of
    # them, and the CPU is far off
    def rounded(array: Array) -> Array:
        return narrowed(torch.from_numpy(array), "npu-bf16")

    q, k, v, g = (item.detach().double().numpy() for item in (query, key, value, gradient))
    scores = rounded(q) @ rounded(k).swapaxes(-1, -2) / 4
    scores += 0 if mask[masked] is None else mask[masked].double().numpy()
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    output = rounded(weights) @ rounded(v)
    into_weights = rounded(g) @ rounded(v).swapaxes(-1, -2)
    into_scores = rounded(weights * (into_weights - (g * output).sum(-1, keepdims=True)))
    expected = [
        output,
        into_scores @ rounded(k) / 4,
        into_scores.swapaxes(-1, -2) @ rounded(q) / 4,
        rounded(weights).swapaxes(-1, -2) @ rounded(g),
    ]
    for got, item, other in zip(results, expected, exact, strict=True):
        assert close(got, item, relative=5e-4)
        assert not close(got, other.double(), relative=1e-3)


def run(call: Callable[[], Tensor], gradient: Tensor, *leaves: Tensor) -> list[Tensor]:
    """What a call gives, and the gradients of its leaves."""
    output = call()
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_is_made_of_rounded_products(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # given an LSTM as one kernel, and as torch takes it apart without oneDNN
    lstm = nn.LSTM(5, 8, num_layers=2, bidirectional=True, bias=bias)
    value, gradient = leaf(4, 3, 5), torch.randn(4, 3, 16)
    leaves = (value, *lstm.parameters())
    # when both run forward and backward on the same device
    with emulate("npu-bf16"):
        kernel = run(lambda: lstm(value)[0], gradient, *leaves)
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        apart = run(lambda: lstm(value)[0], gradient, *leaves)
        monkeypatch.undo()
    exact = run(lambda: lstm(value)[0], gradient, *leaves)
    # then they agree, but for numbers on the edge between two roundings, and the CPU is far off
    for got, expected in zip(kernel, apart, strict=True):
        assert close(got, expected.double(), relative=1e-3)
    assert not close(kernel[0], exact[0].double(), relative=1e-3)


def test_half_precision_integers_and_doubles_are_not_rounded_again() -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        left, right = (torch.randn(4, 4) * 9).to(dtype), (torch.randn(4, 4) * 9).to(dtype)
        with emulate("npu-fp16"):
            result = left @ right
        assert torch.equal(result, left @ right)


# --- the order of sums ----------------------------------------------------------------------------


def batch_norm(value: Tensor) -> Tensor:
    """In training, with its running statistics."""
    channels = value.shape[1]
    mean, var = torch.zeros(channels, dtype=value.dtype), torch.ones(channels, dtype=value.dtype)
    output = F.batch_norm(value, mean, var, training=True)
    return output + (mean + var).view(1, -1, *[1] * (value.dim() - 2))


SUMS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "linear": (F.linear, ((6, 40), (5, 40), (5,))),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((2, 5, 9), (4, 5, 3))),
    "conv2d": (F.conv2d, ((2, 5, 7, 7), (4, 5, 3, 3), (4,))),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), ((2, 4, 7, 7), (4, 2, 3, 3))),
    "transposed": (F.conv_transpose2d, ((2, 4, 5, 5), (4, 6, 3, 3), (6,))),
    "sum": (lambda x: x.sum(1), ((4, 33, 3),)),
    "sum of all": (lambda x: x.sum(), ((7, 33),)),
    "mean": (lambda x: x.mean((0, 2), keepdim=True), ((4, 33, 3),)),
    "var": (lambda x: x.var(-1), ((4, 33),)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=0), ((33, 4),)),
    "softmax": (lambda x: F.softmax(x, -1), ((4, 33),)),
    "log_softmax": (lambda x: F.log_softmax(x, 0), ((33, 4),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), ((4, 3, 33), (33,), (33,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), ((4, 6, 5), (6,), (6,))),
    "batch_norm": (batch_norm, ((4, 3, 5, 5),)),
    "attention": (F.scaled_dot_product_attention, ((2, 4, 7, 8), (2, 4, 9, 8), (2, 4, 9, 8))),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((2, 4, 7, 8), (2, 2, 7, 8), (2, 2, 7, 8)),
    ),
    "embedding": (lambda w: F.embedding(torch.tensor([1, 3, 1, 1]), w), ((5, 4),)),
    "loss": (lambda x: F.mse_loss(x, torch.ones_like(x)), ((7, 33),)),
}


@pytest.mark.parametrize("name", SUMS)
def test_another_order_of_sums_changes_roundings_only(name: str) -> None:
    # given an operator in double precision
    call, shapes = SUMS[name]
    leaves = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    gradient = torch.randn_like(call(*leaves))
    expected = run(lambda: call(*leaves), gradient, *leaves)
    # when it runs forward and backward with its sums in another order
    with emulate("reorder"):
        results = run(lambda: call(*leaves), gradient, *leaves)
    # then it gives the same, up to the roundings of double precision
    for got, item in zip(results, expected, strict=True):
        torch.testing.assert_close(got, item, rtol=1e-12, atol=1e-12)
        assert got.stride() == item.stride()


def test_another_order_of_sums_does_change_roundings() -> None:
    # given every operator that sums, in single precision
    changed = set()
    for name, (call, shapes) in SUMS.items():
        leaves = [leaf(*shape) for shape in shapes]
        gradient = torch.randn_like(call(*leaves))
        expected = run(lambda call=call, leaves=leaves: call(*leaves), gradient, *leaves)
        with emulate("reorder"):
            results = run(lambda call=call, leaves=leaves: call(*leaves), gradient, *leaves)
        if any(not torch.equal(*pair) for pair in zip(results, expected, strict=True)):
            changed.add(name)
    # then most of them come out with other bits: those with few terms may well not
    assert len(changed) > 0.7 * len(SUMS), set(SUMS) - changed


@pytest.mark.parametrize("name", SUMS)
def test_accumulating_in_half_precision_loses_digits_but_stays_right(name: str) -> None:
    # given an operator, and what it gives in double precision
    call, shapes = SUMS[name]
    leaves = [leaf(*shape) for shape in shapes]
    gradient = torch.randn_like(call(*leaves))
    doubles = [item.detach().double().requires_grad_() for item in leaves]
    expected = run(lambda: call(*doubles), gradient.double(), *doubles)
    # when sums are kept in half precision
    with emulate("fp16-accumulate"):
        results = run(lambda: call(*leaves), gradient, *leaves)
    # then it is right to about three digits
    for got, item in zip(results, expected, strict=True):
        torch.testing.assert_close(got.double(), item, rtol=2e-2, atol=2e-2)


def test_a_sum_beyond_half_precision_overflows_or_saturates() -> None:
    # given numbers whose sum, and whose product with ones, is above 65504
    value = torch.full((1, 300), 300.0)
    # when they are summed in half precision
    with emulate("fp16-accumulate"):
        sums = [value.sum().item(), (value @ torch.ones(300, 1)).item()]
    with emulate("fp16-accumulate+saturate"):
        limited = [value.sum().item(), (value @ torch.ones(300, 1)).item()]
    # then they overflow, or stop at the largest number
    assert sums == [math.inf, math.inf]
    assert limited == [65504.0, 65504.0]
    # and so do inputs that half precision does not reach
    with emulate("npu-fp16"):
        assert (torch.full((1, 1), 1e6) @ torch.ones(1, 1)).item() == math.inf
    with emulate("npu-fp16+saturate"):
        assert (torch.full((1, 1), 1e6) @ torch.ones(1, 1)).item() == 65504.0
