"""Emulated devices: what happens to results (flushing, saturation, random rounding), and operators that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep.devices.emulation.mode import emulate
from lockstep.devices.emulation.rounding import Generators, randomly_rounded


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_subnormal_results_become_zero(dtype: torch.dtype) -> None:
    # given numbers just above and just below the smallest normal one
    tiny = torch.finfo(dtype).tiny
    value = torch.tensor([tiny, -tiny, 2 * tiny, 1.0], dtype=dtype)
    # when they are halved
    with emulate("ftz"):
        result = value * 0.5
        in_place = value.clone().mul_(0.5)
        moved = torch.cat([value * 1, torch.full((1,), tiny, dtype=dtype)])
    # then what is no longer normal is zero, and the sign stays
    assert result.tolist() == in_place.tolist() == [0.0, 0.0, tiny, 0.5]
    assert torch.signbit(result).tolist() == [False, True, False, False]
    assert moved.tolist() == [tiny, -tiny, 2 * tiny, 1.0, tiny]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_overflow_gives_the_largest_number(dtype: torch.dtype) -> None:
    # given numbers that overflow when they are squared
    limit = torch.finfo(dtype).max
    value = torch.tensor([limit, -limit, 1.0], dtype=dtype)
    with emulate("saturate"):
        # then that gives the largest number, in casts too; NaN stays NaN
        assert (value * 2).tolist() == [limit, -limit, 2.0]
        assert (value * value.abs()).tolist() == [limit, -limit, 1.0]
        assert torch.tensor([1e38]).to(torch.float16).item() == torch.finfo(torch.float16).max
        assert (value[:2] + torch.tensor([math.nan, 0.0], dtype=dtype)).isnan().tolist() == [1, 0]
        # but an infinity that was there before is no overflow
        mask = torch.tensor([-math.inf, 0.0, 0.0], dtype=dtype)
        assert (value * 0 + mask).tolist() == [-math.inf, 0.0, 0.0]
        assert value.masked_fill(value > 1, math.inf)[0].item() == math.inf


@given(
    st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20),
    st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 5),
)
def test_random_rounding_goes_to_a_neighbour_at_most(
    numbers: list[float], dtype: torch.dtype, seed: int
) -> None:
    # given numbers of all kinds
    value = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    # when they are rounded at random
    result = randomly_rounded(value, Generators(seed).on(value.device))
    # then each is itself or a neighbour, and zero, subnormal, infinite and NaN numbers are themselves
    up = torch.nextafter(value.double() if dtype is torch.float64 else value, value * 0 + math.inf)
    down = torch.nextafter(value, value * 0 - math.inf)
    same = (result == value) | (result.isnan() & value.isnan())
    assert bool((same | (result == up) | (result == down)).all())
    fixed = (value.abs() < torch.finfo(dtype).tiny) | ~value.isfinite()
    assert bool(same[fixed].all())


def test_random_rounding_is_as_large_as_a_rounding_error() -> None:
    # given numbers over many orders of magnitude
    value = torch.exp(torch.rand(200_000, dtype=torch.float64) * 20 - 10).float()
    # when they are rounded at random
    error = (randomly_rounded(value, Generators(0).on(value.device)) - value).double()
    # then half of them move, without a bias, by about one unit roundoff
    relative = error / value / 2.0**-24
    assert 0.49 < (error != 0).double().mean() < 0.51
    assert abs(relative.mean()) < 0.02
    assert 1.02 < relative.square().mean().sqrt() < 1.06
    assert relative.abs().max() <= 2


def test_random_rounding_leaves_what_cannot_have_been_rounded() -> None:
    value = torch.randn(50, 50)
    with emulate("random-rounding"):
        # computing is perturbed
        assert not torch.equal(value * 1.1, torch.mul(value, 1.0) + value * 0.1)
        perturbed = value * 1.7
        # movement, selection, random numbers, integers and whole numbers are not
        torch.manual_seed(3)
        drawn = torch.randn(50, 50)
        assert torch.equal(value.t().contiguous().flip(0), value.t().flip(0))
        assert torch.equal(torch.relu(value), torch.where(value > 0, value, 0.0))
        assert torch.equal(torch.ones(50).cumsum(0), torch.arange(1.0, 51.0))
        assert torch.equal(torch.arange(5) * 3, torch.tensor([0, 3, 6, 9, 12]))
        assert torch.equal(value.to(torch.float64), value.double())
        assert torch.equal((value > 0).float() * 2, torch.where(value > 0, 2.0, 0.0))
        # nor what an operator leaves as it was
        table = torch.randn(6, 4)
        kept = table.clone()
        table.index_add_(0, torch.tensor([2]), torch.full((1, 4), 0.1))
        assert torch.equal(table[[0, 1, 3, 4, 5]], kept[[0, 1, 3, 4, 5]])
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.randn(50, 50))
    assert 0.3 < (perturbed != value * 1.7).float().mean() < 0.7


def test_random_rounding_has_a_random_stream_of_its_own() -> None:
    # given a state of torch's random numbers
    state = torch.get_rng_state()
    value = torch.full((64,), 0.3)
    # when the same is computed with two seeds
    results = []
    for profile in ("random-rounding", "random-rounding", "random-rounding:7"):
        with emulate(profile):
            results.append(value * 1.1)
    # then that state is as it was, and the seed decides
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_every_kind_of_result_is_reached() -> None:
    # given a device whose every result is too large by half
    value = torch.full((3,), 2.0)
    with emulate("wrong:*:scale:1.5"):
        # then new tensors, out=, in-place writes, lists and lists in place are, and views are not
        assert (value * 1).tolist() == [3.0] * 3
        assert torch.mul(value, 1, out=torch.empty(3)).tolist() == [3.0] * 3
        assert value.clone()[:2].mul_(1).tolist() == [4.5] * 2
        assert [item.tolist() for item in torch._foreach_mul([value, value], 1.0)] == [
            [3.0] * 3
        ] * 2
        assert value.view(3, 1).expand(3, 2)[0].tolist() == [2.0, 2.0]
        assert torch.tensor([1, 2]).add(1).tolist() == [2, 3]
        assert (value.to(torch.complex64) * 1j)[0].imag.item() == 4.5  # the cast is one more result
        several = torch._foreach_add([value], 0.0)
        torch._foreach_mul_(several, 2.0)
        assert several[0].tolist() == [9.0] * 3


# --- operators that are wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("gelu", [0, 1, 2]),
        ("torch.nn.functional.gelu", [0, 1, 2]),
        ("aten.gelu", [0, 1, 2]),
        ("aten::gelu.default", [0, 1, 2]),
        ("gel?#1", [1]),
        ("1.act/gelu", [1]),
        ("1/gelu", [1]),
        ("1/gelu#1", []),
        ("gelu_backward", []),
    ],
)
def test_a_wrong_operator_is_wrong_where_it_should_be(spec: str, wrong: list[int]) -> None:
    # given three blocks, in one model
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.GELU()

        def forward(self, value: Tensor) -> Tensor:
            return self.act(value)

    model = nn.Sequential(Block(), Block(), Block())
    seen: list[tuple[Tensor, Tensor]] = []
    for block in model:
        block.act.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    # when one or all of its operators give twice as much
    with emulate(f"wrong:{spec}:scale:2") as emulation:
        model(torch.ones(4))
    # then those do and no other, and a fault that never came to pass is told
    ratios = [(output / F.gelu(value)).mean().item() for value, output in seen]
    assert ratios == [2.0 if number in wrong else 1.0 for number in range(3)]
    assert bool(emulation.unmatched()) == (not wrong)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("torch.nn.functional.linear", lambda x: F.linear(x, x, x[0])),
        ("torch.nn.functional.conv2d", lambda x: F.conv2d(x[None, None], x[None, None])),
        ("layer_norm", lambda x: F.layer_norm(x, x.shape)),
        ("softmax", lambda x: F.softmax(x, 0)),
        ("torch.matmul", lambda x: torch.matmul(x, x)),
        (
            "scaled_dot_product_attention",
            lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3),
        ),
    ],
)
def test_operators_may_be_called_as_torch_calls_them(
    name: str, call: Callable[[Tensor], Tensor]
) -> None:
    value = torch.randn(4, 4)
    with emulate(f"wrong:{name}:scale:2"):
        result = call(value)
    assert torch.equal(result, call(value) * 2)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("", [1.01, 2.02, 3.03, 4.04]),
        (":scale:-1", [-1.0, -2.0, -3.0, -4.0]),
        (":offset:0.5", [1.5, 2.5, 3.5, 4.5]),
        (":zero:0.5", [0.0, 0.0, 3.0, 4.0]),
        (":nan", [math.nan, 2.0, 3.0, 4.0]),
        (":nan:3", [math.nan, math.nan, math.nan, 4.0]),
        (":noise:0", [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_kinds_of_faults(kind: str, expected: list[float]) -> None:
    with emulate(f"wrong:mul{kind}"):
        result = torch.tensor([1.0, 2.0, 3.0, 4.0]) * 1
    assert result.tolist() == pytest.approx(expected, nan_ok=True)


def test_noise_and_half_precision_are_small_faults() -> None:
    value = torch.rand(1000) + 1
    with emulate("wrong:mul:noise:0.01"):
        noisy = value * 1
    with emulate("wrong:mul:fp16"):
        coarse = value * 1
    assert 0.008 < ((noisy - value) / value).std() < 0.012
    assert torch.equal(coarse, value.half().float())


def test_only_the_first_result_of_a_normalization_is_wrong() -> None:
    value = torch.randn(4, 8)
    with emulate("wrong:native_layer_norm:scale:2"):
        output, mean, _ = torch.native_layer_norm(value, (8,), None, None, 1e-5)
    expected = torch.native_layer_norm(value, (8,), None, None, 1e-5)
    assert torch.equal(output, expected[0] * 2)
    assert torch.equal(mean, expected[1])
