"""The bounds hold for real rounding, and are sharp enough for real faults, family by family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.finding import Pair
from lockstep.core.operators import Family, canonical_name, family_of
from lockstep.core.records import Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.fixed_rule import FixedRule
from lockstep.judge.protocol import Operation, Region
from lockstep.measure.measured_pair import Measured, measure_pair

Array = npt.NDArray[Any]
Operator = Callable[..., Array]
_ids = iter(range(1, 10**9))


def record(value: Array, role: Role, index: int, name: str) -> TensorRecord:
    flat = value.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    statistics = Statistics(
        float(finite.min(initial=np.inf)),
        float(finite.max(initial=-np.inf)),
        float(finite.mean()) if finite.size else float("nan"),
        float(np.linalg.norm(finite)),
        int(np.isnan(flat).sum()),
        int(np.isinf(flat).sum()),
        int((flat == 0).sum()),
    )
    sketch = partial(sketch_of, value) if value.dtype.kind == "f" else None
    dtype = str(value.dtype)
    content = Content(
        next(_ids), dtype, value.shape, "cpu", str(hash(value.tobytes())), statistics, sketch
    )
    return TensorRecord(
        "rank0", 0, Site("m", "op", 0, Phase.FORWARD), role, index, name, 0, 0, content
    )


def measured(
    left: Array, right: Array, role: Role = Role.INPUT, index: int = 0, name: str = ""
) -> Measured:
    name = name or f"args.{index}"
    return measure_pair(Pair(record(left, role, index, name), record(right, role, index, name)))


def judged(
    op: str,
    operator: Operator,
    reference: Sequence[Array],
    candidate: Sequence[Array],
    *,
    fault: Callable[[Array], Array] = lambda value: value,
    arguments: dict[str, Any] | None = None,
) -> Any:
    """Judge what an operator makes of two sets of inputs, computed in double precision."""

    def run(inputs: Sequence[Array]) -> Array:
        wide = [one.astype(np.float64) if one.dtype.kind == "f" else one for one in inputs]
        return np.asarray(operator(*wide)).astype(np.float32)

    inputs = tuple(
        measured(left, right, Role.INPUT, index)
        for index, (left, right) in enumerate(zip(reference, candidate, strict=True))
    )
    output = measured(run(reference), fault(run(candidate)), Role.OUTPUT, 0, "result")
    operation = Operation(op=op, inputs=inputs, arguments=arguments or {})
    return ErrorModel().operator(operation, output)


def softmax(value: Array) -> Array:
    powers = np.exp(value - value.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def log_softmax(value: Array) -> Array:
    return np.log(softmax(value))


def gelu(value: Array) -> Array:
    return 0.5 * value * (1 + np.tanh(0.7978845608 * (value + 0.044715 * value**3)))


def layer_norm(value: Array) -> Array:
    centred = value - value.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


OPERATORS: list[tuple[str, Operator, Sequence[tuple[int, ...]]]] = [
    ("torch.Tensor.transpose", lambda x: x.T, [(24, 40)]),
    ("torch.cat", lambda x, y: np.concatenate([x, y]), [(24, 40), (8, 40)]),
    ("torch.Tensor.expand", lambda x: np.broadcast_to(x, (32, 24)), [(24,)]),
    ("torch.nn.functional.relu", lambda x: np.maximum(x, 0), [(24, 40)]),
    ("torch.nn.functional.gelu", gelu, [(24, 40)]),
    ("torch.add", lambda x, y: x + y, [(24, 40), (40,)]),
    ("torch.mul", lambda x, y: x * y, [(24, 40), (40,)]),
    ("torch.matmul", lambda x, y: x @ y, [(24, 40), (40, 16)]),
    ("torch.nn.functional.linear", lambda x, w, b: x @ w.T + b, [(24, 40), (16, 40), (16,)]),
    ("torch.sum", lambda x: x.sum(-1), [(24, 40)]),
    ("torch.mean", lambda x: x.mean(-1), [(24, 40)]),
    ("torch.nn.functional.softmax", softmax, [(24, 40)]),
    ("torch.nn.functional.log_softmax", log_softmax, [(24, 40)]),
    ("torch.nn.functional.mse_loss", lambda x, y: ((x - y) ** 2).mean(), [(24, 40), (24, 40)]),
    ("torch.nn.functional.layer_norm", layer_norm, [(24, 40)]),
    ("torch.exp", np.exp, [(24, 40)]),
    ("torch.div", lambda x, y: x / (3 + y**2), [(24, 40), (24, 40)]),
    ("torch.addcdiv", lambda x, y, z: x + y / (3 + z**2), [(24, 40), (24, 40), (24, 40)]),
    ("custom.Unknown", lambda x: np.sin(x) * x, [(24, 40)]),
]
each_operator = pytest.mark.parametrize(
    ("op", "operator", "shapes"), OPERATORS, ids=[one[0].rsplit(".", 1)[-1] for one in OPERATORS]
)


def draw(shapes: Sequence[tuple[int, ...]], seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@each_operator
@pytest.mark.parametrize("distance", [1e-7, 1e-5, 1e-3])
def test_what_the_inputs_explain_is_no_fault(
    op: str, operator: Operator, shapes: Sequence[tuple[int, ...]], distance: float
) -> None:
    # Given inputs that differ by some relative distance
    reference = draw(shapes)
    noise = draw(shapes, seed=1)
    candidate = [
        (one + distance * other).astype(np.float32)
        for one, other in zip(reference, noise, strict=True)
    ]
    # Then what a right operator makes of them is explained
    assert not judged(op, operator, reference, candidate).unexplained


@each_operator
def test_one_rounding_per_element_is_no_fault(
    op: str, operator: Operator, shapes: Sequence[tuple[int, ...]]
) -> None:
    if family_of(op) is Family.MOVEMENT:
        pytest.skip("moving data rounds nothing")
    reference = draw(shapes)

    def last_bit(value: Array) -> Array:
        signs = np.random.default_rng(2).integers(-1, 2, value.shape)
        return (value * (1 + signs * 2.0**-24)).astype(np.float32)

    assert not judged(op, operator, reference, reference, fault=last_bit).unexplained


@each_operator
@pytest.mark.parametrize("relative", [2e-4, 1e-2])
def test_what_equal_inputs_do_not_explain_is_a_fault(
    op: str, operator: Operator, shapes: Sequence[tuple[int, ...]], relative: float
) -> None:
    # Given equal inputs, and an output off by no more than rounding to fp16
    reference = draw(shapes)

    def wrong(value: Array) -> Array:
        signs = np.where(np.random.default_rng(3).random(value.shape) < 0.5, -1, 1)
        return (value * (1 + relative * signs)).astype(np.float32)

    # Then it is found
    assert judged(op, operator, reference, reference, fault=wrong).unexplained


@each_operator
def test_a_fault_is_found_in_front_of_noise(
    op: str, operator: Operator, shapes: Sequence[tuple[int, ...]]
) -> None:
    # Given inputs off by the rounding of other kernels, and an output off by 1 %
    reference = draw(shapes)
    candidate = [(one * (1 + 2.0**-23)).astype(np.float32) for one in reference]

    def wrong(value: Array) -> Array:
        return (value * 1.01).astype(np.float32)

    assert judged(op, operator, reference, candidate, fault=wrong).unexplained


def test_a_quotient_of_what_is_rounding_alone_moves_a_parameter_by_a_whole_update() -> None:
    # given averages of a gradient that is zero but for rounding, which differs from run to run, and their roots
    start, gradient, other = draw([(24,), (24,), (24,)])
    averages = (1e-9 * gradient).astype(np.float32), (1e-9 * other).astype(np.float32)
    roots = tuple((np.abs(one) + 1e-8).astype(np.float32) for one in averages)

    def update(value: Array, above: Array, below: Array) -> Array:
        return value - 0.01 * above / below

    # then whatever Adam makes of them is explained, and nothing is where they are equal
    left, right = [start, averages[0], roots[0]], [start, averages[1], roots[1]]
    arguments = {"value": -0.01}
    assert not judged("aten.addcdiv_.default", update, left, right, arguments=arguments).unexplained

    def wrong(value: Array) -> Array:
        return (value * 1.001).astype(np.float32)

    assert judged("torch.addcdiv", update, left, left, fault=wrong, arguments=arguments).unexplained


def test_a_logarithm_near_one_explains_more_the_smaller_it_is() -> None:
    # given numbers a little above 1, as the sums that a cross entropy takes the logarithm of
    (drawn,) = draw([(24, 1)])
    reference = (1 + 0.004 * np.abs(drawn)).astype(np.float32)
    candidate = (reference + 2e-5 * drawn).astype(np.float32)
    # then a difference that is far larger beside the results is explained
    assert not judged("torch.log", np.log, [reference], [candidate]).unexplained

    def wrong(value: Array) -> Array:
        return (value * 1.1).astype(np.float32)

    # and one of a tenth is not, nor any where inputs are equal
    assert judged("torch.log", np.log, [reference], [candidate], fault=wrong).unexplained
    assert judged("torch.log", np.log, [reference], [reference], fault=wrong).unexplained


def test_moving_data_must_be_exact_to_the_last_bit() -> None:
    (value,) = draw([(24, 40)])
    other = value.T.copy()
    other[3, 5] = np.nextafter(other[3, 5], np.float32(9))
    inputs = (measured(value, value),)
    output = measured(value.T.copy(), other, Role.OUTPUT)
    assert ErrorModel().operator(Operation("torch.Tensor.transpose", inputs), output).unexplained


def test_a_permuted_output_is_a_fault_though_its_statistics_are_right() -> None:
    reference = draw([(24, 40)])
    assert judged(
        "custom.Op", lambda x: x, reference, reference, fault=lambda v: v[::-1].copy()
    ).unexplained


def test_whole_numbers_follow_their_inputs() -> None:
    (value,) = draw([(24, 40)])
    near = (value * (1 + 2.0**-23)).astype(np.float32)
    left, right = np.arange(24), np.arange(24)[::-1].copy()
    output = measured(left, right, Role.OUTPUT)
    # From equal inputs another index is a fault; from inputs off by noise a decision has flipped
    same = Operation("torch.argmax", (measured(value, value),))
    noisy = Operation("torch.argmax", (measured(value, near),))
    assert ErrorModel().operator(same, output).unexplained
    assert not ErrorModel().operator(noisy, output).unexplained


def test_what_follows_from_another_decision_is_not_judged() -> None:
    (value,) = draw([(24, 40)])
    left, right = np.arange(24), np.arange(24)[::-1].copy()
    operation = Operation(
        "torch.embedding", (measured(value, value), measured(left, right, index=1))
    )
    output = measured(value, value[::-1].copy(), Role.OUTPUT)
    assert not ErrorModel().operator(operation, output).unexplained


def test_uninitialised_memory_is_not_judged() -> None:
    left, right = draw([(4, 4)]), draw([(4, 4)], seed=5)
    output = measured(left[0], right[0], Role.OUTPUT)
    assert not ErrorModel().operator(Operation("torch.empty_like"), output).unexplained


def test_random_numbers_that_differ_are_a_fault() -> None:
    left, right = draw([(4, 40)]), draw([(4, 40)], seed=5)
    output = measured(left[0], right[0], Role.OUTPUT)
    assert ErrorModel().operator(Operation("torch.randn"), output).unexplained


def test_a_gradient_that_is_zero_but_for_rounding_may_differ_wholly() -> None:
    # Given gradients that cancel over 512 rows, as those of an attention's key bias do
    (gradient,) = draw([(512, 64)])
    gradient -= gradient.mean(0)
    image, weight = draw([(512, 32), (64, 32)])
    left = (gradient.astype(np.float32).sum(0)).astype(np.float32)
    right = gradient[::-1].sum(0).astype(np.float32)
    inputs = (
        measured(image, image, Role.INPUT, 0),
        measured(weight, weight, Role.INPUT, 1, "fc.weight"),
        measured(left, left, Role.INPUT, 2, "fc.bias"),
    )
    operation = Operation(
        "torch.nn.functional.linear", inputs, (), (measured(gradient, gradient, Role.GRAD_OUTPUT),)
    )
    output = measured(left, right, Role.PARAM_GRAD, 2, "fc.bias")
    # Then a relative difference near 1 is explained, while 2 % of a gradient that counts is not
    assert output.difference > 0.05
    assert not ErrorModel().operator(operation, output).unexplained
    total = (gradient.T @ image).astype(np.float32)
    wrong = measured(total, (1.02 * total).astype(np.float32), Role.PARAM_GRAD, 1, "fc.weight")
    assert ErrorModel().operator(operation, wrong).unexplained


def test_a_relu_near_its_kink_may_hand_back_another_gradient() -> None:
    # Given an input off by noise, so that one element of 960 changes its sign
    (value, gradient) = draw([(24, 40), (24, 40)])
    value[0, 0] = 1e-9
    near = value.copy()
    near[0, 0] = -1e-9
    operation = Operation(
        "torch.relu",
        (measured(value, near),),
        (),
        (measured(gradient, gradient, Role.GRAD_OUTPUT),),
    )
    left, right = gradient * (value > 0), gradient * (near > 0)
    assert not ErrorModel().operator(operation, measured(left, right, Role.GRAD_INPUT)).unexplained
    # While with equal inputs the same difference is a fault
    same = Operation("torch.relu", (measured(value, value),), (), operation.gradients)
    assert ErrorModel().operator(same, measured(left, right, Role.GRAD_INPUT)).unexplained


def test_sixteen_bits_are_judged_by_how_many_roundings_flip() -> None:
    # Given a float16 output of equal inputs: one rounding in a thousand flipped, or one in ten
    (value,) = draw([(64, 64)])
    half = value.astype(np.float16)

    def flipped(share: float) -> Array:
        chosen = np.random.default_rng(7).random(half.shape) < share
        return np.where(chosen, np.nextafter(half, np.float16(100)), half)

    operation = Operation("torch.relu", (measured(half, half),))
    few = measured(half, flipped(0.0001), Role.OUTPUT)
    many = measured(half, flipped(0.2), Role.OUTPUT)
    assert not ErrorModel().operator(operation, few).unexplained
    assert ErrorModel().operator(operation, many).unexplained


def test_another_setting_makes_a_small_difference_a_fault() -> None:
    (value,) = draw([(24, 40)])
    output = measured(value, (value * (1 + 2e-6)).astype(np.float32), Role.OUTPUT)
    inputs = (measured(value, value),)
    plain = Operation("torch.nn.functional.layer_norm", inputs)
    other = Operation("torch.nn.functional.layer_norm", inputs, setting_differs=True)
    assert not ErrorModel().operator(plain, output).unexplained
    assert ErrorModel().operator(other, output).unexplained


@given(st.integers(0, 10_000), st.floats(1e-7, 1e-2))
@settings(max_examples=50, deadline=None)
def test_products_of_any_size_stay_inside_their_bound(seed: int, distance: float) -> None:
    random = np.random.default_rng(seed)
    rows, length, columns = random.integers(1, 30, 3)
    shapes = [(int(rows), int(length)), (int(length), int(columns))]
    reference = draw(shapes, seed)
    candidate = [
        (one + distance * np.abs(one).max() * random.standard_normal(one.shape)).astype(np.float32)
        for one in reference
    ]
    assert not judged("torch.matmul", lambda x, y: x @ y, reference, candidate).unexplained


def test_a_passage_without_operators_is_a_sum() -> None:
    left, right = draw([(8, 8), (8, 8)])
    sources = [measured(left, left), measured(right, right)]
    total = (left + right).astype(np.float32)
    model = ErrorModel()
    assert not model.passage(
        sources, measured(total, total * np.float32(1 + 2.0**-23)), region=Region(unseen=0)
    ).unexplained
    assert model.passage(
        sources, measured(total, total * np.float32(1.001)), region=Region(unseen=0)
    ).unexplained


def drawn(seed: int, *, error: float = 0.0) -> Array:
    """Normal numbers by Box and Muller, in float64; each function is off by up to `error`, relative."""
    random = np.random.default_rng(seed)
    u, v = random.uniform(1e-6, 1, (2, 512))
    off = 1 + error * np.random.default_rng(seed + 1).uniform(-1, 1, (3, 512))
    return np.sqrt(-2 * np.log(u) * off[0]) * off[1] * np.cos(2 * np.pi * v) * off[2]


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_weight_may_be_off_by_the_functions_that_drew_it(seed: int) -> None:
    # Given weights of one random stream, whose functions two libraries round otherwise by 3.5 units in the last place
    left, right = (
        drawn(seed).astype(np.float32),
        drawn(seed, error=7 * 2.0**-24).astype(np.float32),
    )
    assert (left != right).any()
    # Then that is rounding, and no other weights
    judgement = ErrorModel().passage([], measured(left, right), region=Region())
    assert not judgement.unexplained


@pytest.mark.parametrize(("dtype", "factor"), [(np.float32, 1 + 2e-6), (np.float16, 1.01)])
def test_a_weight_scaled_by_little_is_another(dtype: Any, factor: float) -> None:
    value = drawn(0).astype(dtype)
    other = (value.astype(np.float64) * factor).astype(dtype)
    assert ErrorModel().passage([], measured(value, other), region=Region()).unexplained


def test_an_update_from_equal_inputs_is_equal_to_some_roundings() -> None:
    parameter, gradient = draw([(16, 16), (16, 16)])
    entering = [
        measured(parameter, parameter, Role.PARAM, 0, "w"),
        measured(gradient, gradient, Role.PARAM_GRAD, 0, "w"),
    ]
    after = (parameter - 0.01 * gradient).astype(np.float32)
    wrong = (parameter - 0.0105 * gradient).astype(np.float32)
    rounded = (after * np.float32(1 + 2.0**-23)).astype(np.float32)
    model = ErrorModel()
    assert not model.update(
        entering, measured(after, rounded, Role.PARAM_AFTER, 0, "w")
    ).unexplained
    assert model.update(entering, measured(after, wrong, Role.PARAM_AFTER, 0, "w")).unexplained


@pytest.mark.parametrize(
    ("op", "chosen_alike"),
    [("torch.topk", True), ("torch.topk", False), ("torch.nn.functional.glu", False)],
)
def test_a_gradient_goes_to_what_was_chosen(op: str, *, chosen_alike: bool) -> None:
    # Given scores of which the largest is chosen in each row, and in one row another in the candidate, by rounding
    scores = np.linspace(-1, 1, 32 * 4, dtype=np.float32).reshape(32, 4)
    moved = (scores * np.float32(1 + 2.0**-20)).astype(np.float32)
    places = np.full(32, 3)
    others = places.copy() if chosen_alike else np.r_[2, places[1:]]
    (gradient,) = draw([(32,)])
    operation = Operation(
        op,
        (measured(scores, moved),),
        (measured(places, others, Role.OUTPUT, 1),),
        (measured(gradient, gradient, Role.GRAD_OUTPUT),),
    )
    # When its gradient stands there in the candidate
    sent, other = np.zeros((2, 32, 4), np.float32)
    sent[np.arange(32), places] = gradient
    other[np.arange(32), [2, *places[1:]]] = gradient
    judgement = ErrorModel().operator(operation, measured(sent, other, Role.GRAD_INPUT))
    # Then it follows from the choice, and is a fault without one, or where the call sends nothing by it
    assert judgement.unexplained is (chosen_alike or op != "torch.topk")


def test_the_fixed_rule_asks_only_whether_the_inputs_pass() -> None:
    value, other = draw([(8, 8), (8, 8)])
    output = measured(value, other, Role.OUTPUT)
    rule = FixedRule()
    good = Operation("op", (measured(value, value),))
    bad = Operation("op", (measured(value, other),))
    assert rule.operator(good, output).unexplained
    assert not rule.operator(bad, output).unexplained


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("torch.nn.functional.layer_norm", "layernorm"),
        ("torch.nn.LayerNorm", "layernorm"),
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.__rtruediv__", "div"),
        ("torch.Tensor.add_", "add"),
        ("torch._foreach_mul_", "mul"),
        ("aten.addmm.default", "addmm"),
        ("torch.Tensor.__getitem__", "getitem"),
        ("torch.Tensor.__invert__", "invert"),
    ],
)
def test_spellings_of_an_operator_have_one_name(op: str, name: str) -> None:
    assert canonical_name(op) == name
