"""What a candidate computes instead: each hypothesis on a planted fault, and a twin next to it that is not it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import altered, operators, record_of, recorded

from lockstep.core.finding import Explanation, Instead
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.replay.explanation.explained import explained
from lockstep.replay.questions import Unexplained

MEMORY_BYTES = 8 << 30


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """A product, its normalisation and their activations, by bare name; `other_norm` has another epsilon."""

    def program() -> None:
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(24, 24, generator=generator) for _ in range(2))
        bias = torch.randn(24, generator=generator)
        product = F.linear(x, weight, bias)
        F.layer_norm(product * 0.01, (24,), eps=1e-5)
        F.gelu(product)
        F.embedding(torch.randint(0, 24, (24,), generator=generator), weight)
        F.scaled_dot_product_attention(x[None], x[None], x[None])

    def other_epsilon() -> None:
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(24, 24, generator=generator) for _ in range(2))
        bias = torch.randn(24, generator=generator)
        F.layer_norm(F.linear(x, weight, bias) * 0.01, (24,), eps=1e-4)

    folder = tmp_path_factory.mktemp("explained")
    found = {
        call.site.op.rpartition(".")[2]: call for call in operators(recorded(folder / "a", program))
    }
    others = operators(recorded(folder / "b", other_epsilon))
    return {**found, "other_norm": others[-1]}


def _array(call: Call, role: Role = Role.OUTPUT, index: int = 0) -> np.ndarray:
    return np.array(record_of(call, role, index).load())


def _asked(reference: Call, candidate: Call) -> Explanation | None:
    left, right = record_of(reference, Role.OUTPUT), record_of(candidate, Role.OUTPUT)
    others = tuple(one for one in reference.records if one.shape == left.shape and one is not left)
    return explained(Unexplained(left, right, reference, candidate, others), MEMORY_BYTES)


def _said(call: Call, array: np.ndarray) -> Explanation | None:
    return _asked(call, altered(call, Role.OUTPUT, 0, array.astype(np.float32)))


def test_a_factor_is_named_with_its_size(calls: dict[str, Call]) -> None:
    found = _said(calls["linear"], _array(calls["linear"]) * 1.0213)
    assert found is not None
    assert found.kind is Instead.FACTOR
    assert found.words == "the result times 1.0213"
    assert found.share > 0.9999


def test_two_factors_on_two_halves_are_no_factor(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    array[:12] *= 1.02
    array[12:] *= 1.03
    assert _said(calls["linear"], array) is None


def test_the_other_sign_is_named(calls: dict[str, Call]) -> None:
    found = _said(calls["linear"], -_array(calls["linear"]))
    assert found is not None
    assert found.kind is Instead.SIGN


def test_one_element_is_named_with_both_values(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    before, array[3, 5] = float(array[3, 5]), 12.5
    found = _said(calls["linear"], array)
    assert found is not None
    assert found.kind is Instead.ELEMENT
    assert found.words.startswith(f"element [3, 5] is 12.5 instead of {before:.3g}"[:32])


def test_three_scattered_elements_are_no_pattern(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    for place in ((1, 2), (7, 9), (13, 4)):
        array[place] += 3.0
    assert _said(calls["linear"], array) is None


def test_the_second_half_of_an_axis_is_named(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    array[:, 12:] = np.random.default_rng(0).normal(size=(24, 12))
    found = _said(calls["linear"], array)
    assert found is not None
    assert found.words == "right but for the second half of axis 1"


@pytest.mark.parametrize(
    ("first", "end", "words"),
    [
        (18, 24, "right but for 18:24 of axis 1, which is zero"),
        (5, 9, "right but for 5:9 of axis 1, which is zero"),
        (7, 8, "right but for index 7 of axis 1, which is zero"),
        (0, 24, "zero"),
    ],
)
def test_what_a_kernel_leaves_unwritten_is_named_by_its_place(
    calls: dict[str, Call], first: int, end: int, words: str
) -> None:
    array = _array(calls["linear"])
    array[:, first:end] = 0
    found = _said(calls["linear"], array)
    assert found is not None
    assert found.words == words


def test_two_runs_of_an_axis_are_no_pattern(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    array[:, [2, 3, 11, 12, 13]] = 0
    assert _said(calls["linear"], array) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp16 or TF32: the same on these inputs", torch.float16), ("bf16", torch.bfloat16)],
)
def test_rounded_inputs_are_named_with_their_format(
    calls: dict[str, Call], name: str, dtype: torch.dtype
) -> None:
    call = calls["linear"]
    inputs = [torch.from_numpy(_array(call, Role.INPUT, index)) for index in range(3)]
    rounded = F.linear(*(one.to(dtype).float() for one in inputs)).numpy()
    found = _said(call, rounded)
    assert found is not None
    assert found.kind is Instead.PRECISION
    assert found.words == f"the same operator with its inputs rounded to {name}"


def test_random_noise_as_large_as_rounding_is_not_explained(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    noise = np.random.default_rng(1).normal(size=array.shape) * 2.0**-11
    assert _said(calls["linear"], array * (1 + noise)) is None


def test_a_rounded_result_is_named(calls: dict[str, Call]) -> None:
    found = _said(calls["linear"], _array(calls["linear"]).astype(np.float16))
    assert found is not None
    assert found.words == "the result rounded to fp16"


def test_the_candidates_own_argument_is_named_with_both_values(calls: dict[str, Call]) -> None:
    found = _asked(calls["layer_norm"], calls["other_norm"])
    assert found is not None
    assert found.kind is Instead.SETTING
    assert found.words == "called with eps=0.0001 where the reference has 1e-05"


def test_an_argument_that_is_recorded_otherwise_but_not_used_is_not_named(
    calls: dict[str, Call],
) -> None:
    array = np.random.default_rng(2).normal(size=(24, 24)).astype(np.float32)
    assert _asked(calls["layer_norm"], altered(calls["other_norm"], Role.OUTPUT, 0, array)) is None


def test_a_setting_that_nobody_recorded_is_found(calls: dict[str, Call]) -> None:
    x = torch.from_numpy(_array(calls["gelu"], Role.INPUT))
    found = _said(calls["layer_norm"], _array(calls["other_norm"]))
    assert found is not None
    assert found.kind is Instead.SETTING
    assert _said(calls["gelu"], torch.sigmoid(1.702 * x).mul(x).numpy()) is None


def test_a_missing_bias_is_named(calls: dict[str, Call]) -> None:
    call = calls["linear"]
    found = _said(call, _array(call) - _array(call, Role.INPUT, 2))
    assert found is not None
    assert found.kind is Instead.INPUT
    assert found.words.endswith("left out (zero)")


def test_a_rolled_result_is_named_with_axis_and_direction(calls: dict[str, Call]) -> None:
    found = _said(calls["linear"], np.roll(_array(calls["linear"]), 1, axis=0))
    assert found is not None
    assert found.words == "the result rolled by 1 along axis 0"


def test_rows_in_a_random_order_are_not_rolled(calls: dict[str, Call]) -> None:
    order = np.random.default_rng(3).permutation(24)
    assert _said(calls["linear"], _array(calls["linear"])[order]) is None


def test_not_a_number_is_named_with_its_place(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    array[2, 1] = np.nan
    found = _said(calls["linear"], array)
    assert found is not None
    assert found.kind is Instead.NOT_FINITE
    assert found.words.startswith("element [2, 1] is nan")
    assert found.share == 1.0


def test_noise_is_not_explained(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    assert _said(calls["linear"], array * np.float32(1 + 2.0**-23)) is None


def test_indices_off_by_one_are_named(calls: dict[str, Call]) -> None:
    call = calls["embedding"]
    ids, table = _array(call, Role.INPUT, 0), _array(call, Role.INPUT, 1)
    found = _said(call, table[(ids + 1) % len(table)])
    assert found is not None
    assert found.kind is Instead.INPUT
    assert "+1 on each index" in found.words


def test_another_scale_of_attention_is_fitted(calls: dict[str, Call]) -> None:
    call = calls["scaled_dot_product_attention"]
    query = torch.from_numpy(_array(call, Role.INPUT))
    other = F.scaled_dot_product_attention(query, query, query, scale=0.31)
    found = _said(call, other.numpy())
    assert found is not None
    assert found.kind is Instead.SETTING
    assert "scale=0.31 " in found.words


def test_a_result_that_lacks_no_single_term_is_not_explained(calls: dict[str, Call]) -> None:
    array = _array(calls["linear"])
    far = np.random.default_rng(4).normal(size=array.shape) * 0.1
    assert _said(calls["linear"], array + far) is None


@pytest.fixture(scope="module")
def update(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """One AdamW update of a matrix."""

    def program() -> None:
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(16, 16, generator=generator))
        optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.1)
        F.linear(torch.randn(8, 16, generator=generator), weight).square().sum().backward()
        optimizer.step()

    found = recorded(tmp_path_factory.mktemp("update") / "a", program)
    calls = found.ranks["rank0"].calls(0)
    return next(call for call in calls if call.kind is CallKind.OPTIMIZER)


def _of_update(call: Call, array: np.ndarray) -> Explanation | None:
    other = altered(call, Role.PARAM_AFTER, 0, array.astype(np.float32))
    left, right = record_of(call, Role.PARAM_AFTER), record_of(other, Role.PARAM_AFTER)
    return explained(Unexplained(left, right, call, other), MEMORY_BYTES)


def test_weight_decay_that_is_left_out_is_named(update: Call) -> None:
    before = _array(update, Role.PARAM)
    found = _of_update(update, _array(update, Role.PARAM_AFTER) + 1e-2 * 0.1 * before)
    assert found is not None
    assert found.kind is Instead.SETTING
    assert found.words == "updated with weight_decay=0.0 instead of 0.1"


def test_an_update_that_is_wrong_at_random_is_not_explained(update: Call) -> None:
    noise = np.random.default_rng(5).normal(size=(16, 16)) * 1e-3
    assert _of_update(update, _array(update, Role.PARAM_AFTER) + noise) is None
