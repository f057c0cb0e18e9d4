"""How 16-bit results are rounded: kernels that truncate, scale or round at random, and the sound twins of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_bench import altered, judged, loaded, operators, recorded
from torch import Tensor, nn

from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.calls.again import again
from lockstep.replay.error_bounds.rounded_elements import Bias, Envelope, allowed_bias, bias_of
from lockstep.wings.replay.standalone.failing import failing
from lockstep.wings.replay.standalone.proof import proof_of

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MEMORY = 1 << 34
Round = Callable[[Tensor, torch.dtype], Tensor]


def below(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of the dtype that is not above."""
    nearest = x.to(dtype)
    under = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    return torch.where(nearest.double() > x, under, nearest)


def above(x: Tensor, dtype: torch.dtype) -> Tensor:
    return -below(-x, dtype)


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(x >= 0, below(x, dtype), above(x, dtype))


def at_random(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To either neighbour, so that the mean is right: stochastic rounding."""
    low, high = below(x, dtype).double(), above(x, dtype).double()
    generator = torch.Generator().manual_seed(5)
    drawn = torch.rand(x.shape, generator=generator, dtype=torch.float64)
    return torch.where(low + drawn * (high - low) < x, high, low).to(dtype)


def ties_away(x: Tensor, dtype: torch.dtype) -> Tensor:
    low, high = below(x, dtype).double(), above(x, dtype).double()
    away = torch.where(x >= 0, high, low).to(dtype)
    return torch.where(x == (low + high) / 2, away, x.to(dtype))


def scaled(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (x * 1.003).to(dtype)


FAULTS: dict[str, Round] = {
    "truncates": truncated,
    "rounds down": below,
    "rounds up": above,
    "rounds at random": at_random,
    "0.3 % too large": scaled,
}


class Model(nn.Module):
    """Operators whose results have 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bare = nn.Linear(48, 48), nn.Linear(48, 48, bias=False)
        self.conv = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        """`x` of shape (96, 48)."""
        h = F.gelu(self.bare(self.linear(x)))
        h = self.conv(self.norm(h).to(h.dtype).reshape(8, 12, 48))
        scores = torch.softmax(torch.bmm(h, h.mT), -1).to(h.dtype)
        return (scores @ h + h) * h


@pytest.fixture(scope="module", params=["bfloat16 autocast", "bfloat16", "float16"])
def calls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Call]:
    """The calls of one step by operator and module, under autocast and of a 16-bit model."""
    name, _, autocast = request.param.partition(" ")
    torch.manual_seed(0)
    model, x = Model(), torch.randn(96, 48)
    dtype = DTYPES[name]
    model, x = (model, x) if autocast else (model.to(dtype), x.to(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def program() -> None:
        with torch.autocast("cpu", dtype=dtype, enabled=bool(autocast)):
            loss = model(x).float().square().sum()
        loss.backward()
        optimizer.step()

    found = operators(recorded(tmp_path_factory.mktemp("model") / "run", program))
    return {f"{call.site.op.rpartition('.')[2]} {call.site.module}".strip(): call for call in found}


def truth_of(call: Call, dtype: torch.dtype) -> Tensor:
    """What double precision makes of what a call takes, rounded first as autocast does."""
    inputs = [
        loaded(call, Role.INPUT, one.index).to(dtype).double() for one in call.with_role(Role.INPUT)
    ]
    name = call.site.op.rpartition(".")[2]
    with torch.no_grad():
        return TRUTHS[name](*inputs)


TRUTHS: dict[str, Callable[..., Tensor]] = {
    "linear": F.linear,
    "conv1d": lambda x, w, b: F.conv1d(x, w, b, padding=1),
    "bmm": torch.bmm,
    "gelu": F.gelu,
    "__matmul__": torch.matmul,
    "matmul": torch.matmul,
    "__add__": torch.add,
    "add": torch.add,
    "__mul__": torch.mul,
    "mul": torch.mul,
}


def rounding_calls(calls: dict[str, Call]) -> Iterator[tuple[str, Call, torch.dtype, Tensor]]:
    """Each call with a result of 16 bits, its dtype, and what double precision makes of it."""
    for name, call in calls.items():
        (output, *_) = call.with_role(Role.OUTPUT)
        if output.dtype in DTYPES and name.split()[0] in TRUTHS:
            dtype = DTYPES[output.dtype]
            yield name, call, dtype, truth_of(call, dtype)


def as_result(call: Call, result: Tensor) -> Call:
    """The call with another result."""
    return altered(call, Role.OUTPUT, 0, result.float().numpy())


def excess(call: Call) -> float:
    """How far beyond what is allowed its recorded result is, with no other run at hand."""
    (first, *_) = again(call, repeat=0, memory_bytes=MEMORY)
    return first.held[0].excess


@pytest.mark.parametrize("name", FAULTS)
def test_an_operator_that_rounds_otherwise_is_a_fault_with_or_without_another_run(
    calls: dict[str, Call], name: str
) -> None:
    # Given calls whose results have 16 bits
    looked_at = 0
    for op, call, dtype, truth in rounding_calls(calls):
        # When a kernel rounds them otherwise, then that is a fault, against the other run and alone
        wrong = as_result(call, FAULTS[name](truth, dtype))
        judgement = judged(call, wrong)
        assert judgement.unexplained, op
        assert excess(wrong) > 1.0, op
        # And its twin that rounds to nearest is none
        twin = as_result(call, truth.to(dtype))
        assert not judged(call, twin).unexplained, op
        assert excess(twin) <= 1.0, op
        looked_at += 1
    assert looked_at >= 7


def test_a_bias_that_is_added_to_a_rounded_sum_is_sound(calls: dict[str, Call]) -> None:
    # Given a product with a bias
    call = calls["linear linear"]
    dtype = DTYPES[call.with_role(Role.OUTPUT)[0].dtype]
    x, weight, bias = (loaded(call, Role.INPUT, n).to(dtype).double() for n in range(3))
    for shift in (0.0, 40.0):  # a bias that outweighs the sum too
        moved = altered(call, Role.INPUT, 2, (bias + shift).to(dtype).float().numpy())
        added = (bias + shift).to(dtype).double()
        # When the sum is rounded first, and again with the bias
        twice = F.linear(x, weight).to(dtype).double() + added
        once = F.linear(x, weight, added)
        reference = as_result(moved, once.to(dtype))
        # Then it is as sound as what is rounded once
        assert not judged(reference, as_result(moved, twice.to(dtype))).unexplained
        assert excess(as_result(moved, twice.to(dtype))) <= 1.0
        # And what truncates at the end of either is none
        for wrong in (truncated(once, dtype), truncated(twice, dtype)):
            assert judged(reference, as_result(moved, wrong)).unexplained
            assert excess(as_result(moved, wrong)) > 1.0


def test_ties_that_go_away_from_zero_are_seen_where_sums_are_exact(calls: dict[str, Call]) -> None:
    # Given a sum of two 16-bit tensors, which single precision holds whole
    name = next(name for name in calls if name.split()[0] in ("add", "__add__"))
    call = calls[name]
    dtype = DTYPES[call.with_role(Role.OUTPUT)[0].dtype]
    truth = truth_of(call, dtype)
    # When what lies halfway is rounded away from zero, that is a fault; to even it is none
    assert excess(as_result(call, ties_away(truth, dtype))) > 1.0
    assert excess(as_result(call, truth.to(dtype))) <= 1.0


def test_gradients_that_are_truncated_are_a_fault(calls: dict[str, Call]) -> None:
    # Given the gradients of a product and of a convolution, which some kernels sum in 16 bits
    call = calls["bare" if "bare" in calls else "linear bare"]
    record = next(one for one in call.records if one.role is Role.GRAD_INPUT)
    dtype = DTYPES[call.with_role(Role.OUTPUT)[0].dtype]
    weight = loaded(call, Role.INPUT, 1).to(dtype).double()
    gradient = loaded(call, Role.GRAD_OUTPUT).to(dtype).double() @ weight
    for function, wrong in ((truncated, True), (below, True), (lambda x, d: x.to(d), False)):
        made = altered(
            call, Role.GRAD_INPUT, record.index, function(gradient, dtype).float().numpy()
        )
        judgement = judged(call, made, Role.GRAD_INPUT, record.index)
        assert judgement.unexplained is wrong


def test_what_is_wrong_with_the_rounding_stands_in_the_words(calls: dict[str, Call]) -> None:
    call = calls["linear linear"]
    dtype = DTYPES[call.with_role(Role.OUTPUT)[0].dtype]
    wrong = as_result(call, truncated(truth_of(call, dtype), dtype))
    (first, *_) = again(wrong, repeat=0, memory_bytes=MEMORY)
    assert "of its elements are misrounded" in first.held[0].words
    assert "lie to one side" in first.held[0].words
    assert "lie to one side" in judged(call, wrong).words


def test_a_written_test_fails_on_what_truncates_and_on_nothing_sound(
    calls: dict[str, Call],
) -> None:
    # Given a product with a bias, whose gradients go through 16 bits too
    call = calls["linear linear"]
    dtype = DTYPES[call.with_role(Role.OUTPUT)[0].dtype]
    x, weight, bias = (loaded(call, Role.INPUT, n).to(dtype).double() for n in range(3))
    once, twice = F.linear(x, weight, bias), F.linear(x, weight).to(dtype).double() + bias
    # When a test of it is written, then it lets through what was recorded, and what rounds before it adds the bias
    assert not failing(proof_of(call))
    assert not failing(proof_of(as_result(call, twice.to(dtype))))
    # And not what truncates
    assert failing(proof_of(as_result(call, truncated(once, dtype)))) == {"output result"}


# --- the statistic itself --------------------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.sampled_from([64, 1000, 20_000]), st.sampled_from(sorted(DTYPES)))
@settings(max_examples=25, deadline=None)
def test_rounding_to_nearest_never_lies_to_one_side_and_truncation_does(
    seed: int, count: int, name: str
) -> None:
    # Given numbers of all sizes
    generator, dtype = torch.Generator().manual_seed(seed), DTYPES[name]
    truth = torch.randn(count, generator=generator, dtype=torch.float64)
    envelope, unit = Envelope.once(truth, dtype), torch.finfo(dtype).eps / 2

    def one_sided(actual: Tensor) -> bool:
        bias = bias_of(actual.double(), envelope, 0.0, rows=False)
        return bias.size > allowed_bias(bias, [], unit, 1.0)

    # When they are rounded, then the mean tells which kernel did it
    assert not one_sided(truth.to(dtype))
    assert not one_sided(at_random(truth, dtype))
    assert one_sided(truncated(truth, dtype))
    assert one_sided(below(truth, dtype))


def test_numbers_that_repeat_lie_to_one_side_in_sound_kernels_too() -> None:
    # Given the same number a thousand times: all are rounded the same way
    truth = torch.full((1000,), 1.0 + 0.3 * 2.0**-7, dtype=torch.float64)
    envelope = Envelope.once(truth, torch.bfloat16)
    bias = bias_of(truth.bfloat16().double(), envelope, 0.0, rows=False)
    # When they are held against the nearest numbers, then that allows them
    assert bias.size > allowed_bias(bias, [], 2.0**-8, 2.5)
    assert bias.size <= allowed_bias(bias, [bias], 2.0**-8, 2.5)


def test_a_row_that_shares_a_rounding_counts_once() -> None:
    # Given rows whose elements are all off to the same side, each row to one by chance
    truth = torch.rand(64, 256, dtype=torch.float64) + 1.0
    sides = torch.randint(0, 2, (64, 1)).double() * 2 - 1
    envelope = Envelope.once(truth, torch.bfloat16)
    actual = truth + sides * 2.0**-9
    # When each element counts, chance looks smaller than it is
    apart = bias_of(actual, envelope, 0.0, rows=False)
    together = bias_of(actual, envelope, 0.0, rows=True)
    assert together.chance > 10 * apart.chance
    assert together.size <= together.chance


def test_nothing_that_is_exact_lies_to_one_side() -> None:
    truth = torch.arange(1.0, 65.0, dtype=torch.float64)
    envelope = Envelope.once(truth, torch.bfloat16)
    assert bias_of(truth, envelope, 0.0, rows=False) == Bias()
    assert envelope.outside(truth) == 0.0
    assert not envelope.ties.any()
    assert allowed_bias(Bias(), [], 2.0**-8, 1.0) == 0.0
    assert SINGLE < 2.0**-8
