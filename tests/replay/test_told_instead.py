"""What a candidate computes instead holds for all results of a call, names its tensors and arguments, and says ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import Beneath, altered, operators, record_of, recorded

from lockstep.core.finding import Explanation, Instead
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.replay.explanation.explained import explained
from lockstep.replay.questions import Unexplained
from lockstep.store.reader import Recording

MEMORY_BYTES = 8 << 30

Program = Callable[..., torch.Tensor]
"""One call of an operator, on tensors that are drawn for it."""

Kernel = Callable[..., torch.Tensor]
"""What runs instead: called with the function and its arguments."""


class Bench:
    """Records a program, and what it gives where another kernel runs below the recorder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def recording(
        self, make: Program, *shapes: tuple[int, ...], op: str = "", kernel: Kernel | None = None
    ) -> Recording:
        """A program, with its backward; with another kernel for the operator, where one is given."""

        def program() -> None:
            generator = torch.Generator().manual_seed(0)
            drawn = [torch.randn(shape, generator=generator) for shape in shapes]
            leaves = [one.requires_grad_() * 1.0 for one in drawn]
            with Beneath(op if kernel else "", kernel or make).at_work():
                result = make(*leaves)
            weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
            (result * weights).sum().backward()

        self._count += 1
        return recorded(self.folder / str(self._count), program)

    def call(
        self, make: Program, *shapes: tuple[int, ...], op: str, kernel: Kernel | None = None
    ) -> Call:
        """The call of an operator with its results, forward and backward."""
        found = operators(self.recording(make, *shapes, op=op, kernel=kernel))
        return next(one for one in found if one.site.op.endswith(op))

    def said(
        self,
        make: Program,
        kernel: Kernel,
        *shapes: tuple[int, ...],
        op: str,
        role: Role = Role.OUTPUT,
        index: int = 0,
    ) -> Explanation | None:
        """What is said of an operator where another kernel ran."""
        reference = self.call(make, *shapes, op=op)
        return asked(reference, self.call(make, *shapes, op=op, kernel=kernel), role, index)


def asked(reference: Call, candidate: Call, role: Role, index: int = 0) -> Explanation | None:
    left, right = record_of(reference, role, index), record_of(candidate, role, index)
    return explained(Unexplained(left, right, reference, candidate), MEMORY_BYTES)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("told"))


def _normed(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.BatchNorm1d(8, momentum=0.1)(x)


def _by(**settings: object) -> Kernel:
    return lambda run, *args, **given: run(*args, **{**given, **settings})


def test_a_momentum_is_named_where_one_buffer_is_nine_times_as_large(bench: Bench) -> None:
    kernel = _by(momentum=0.9)
    found = bench.said(_normed, kernel, (16, 8), op="batch_norm", role=Role.BUFFER, index=2)
    assert found is not None
    assert found.kind is Instead.SETTING
    assert found.words == "the same operator with momentum=0.9 instead of 0.1"


def test_a_factor_of_one_buffer_alone_is_still_one(bench: Bench) -> None:
    reference = bench.call(_normed, (16, 8), op="batch_norm")
    buffer = record_of(reference, Role.BUFFER, 2)
    nine = altered(reference, Role.BUFFER, 2, 9 * np.array(buffer.load()))
    found = asked(reference, nine, Role.BUFFER, 2)
    assert found is not None
    assert found.words == "the result times 9"


def test_a_factor_that_another_result_contradicts_is_not_said(bench: Bench) -> None:
    reference = bench.call(_normed, (16, 8), op="batch_norm")
    wrong = reference
    for index, by in ((2, 9.0), (3, 3.0)):
        array = np.array(record_of(reference, Role.BUFFER, index).load())
        wrong = altered(wrong, Role.BUFFER, index, (by * array).astype(np.float32))
    assert asked(reference, wrong, Role.BUFFER, 2) is None


@pytest.mark.parametrize(
    ("make", "kernel", "shape", "op", "words"),
    [
        (lambda x: F.avg_pool2d(x, 3, 2, 1, False, True),
         lambda run, *args: run(*args[:5], False), (2, 3, 8, 8), "avg_pool2d",
         "count_include_pad=False instead of True"),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), _by(align_corners=True),
         (2, 3, 5, 5), "interpolate", "align_corners=True instead of None"),
        (lambda x: torch.var(x, -1), _by(unbiased=False),
         (12, 9), "var", "unbiased=False instead of True"),
        (lambda x: F.group_norm(x, 4), lambda run, x, groups, **kwargs: run(x, 8, **kwargs),
         (4, 16, 5), "group_norm", "num_groups=8 instead of 4"),
        (lambda x: F.avg_pool1d(x, 4, 2), lambda run, x, size, stride: run(x, 3, stride),
         (2, 4, 10), "avg_pool1d", "kernel_size=3 instead of 4"),
        (lambda x: F.softplus(x), _by(beta=1.13),
         (12, 9), "softplus", "beta=1.13 instead of 1"),
        (lambda x: F.cross_entropy(x, torch.arange(9)), _by(label_smoothing=0.1),
         (9, 11), "cross_entropy", "label_smoothing=0.1 instead of 0.0"),
        (lambda x: torch.narrow(x, 1, 2, 5), lambda run, x, dim, start, length: run(x, dim, 3, 5),
         (4, 9), "narrow", "start=3 instead of 2"),
    ],
)  # fmt: skip
def test_an_argument_that_was_left_at_its_default_or_given_is_found_otherwise(
    bench: Bench, make: Program, kernel: Kernel, shape: tuple[int, ...], op: str, words: str
) -> None:
    found = bench.said(make, kernel, shape, op=op)
    assert found is not None
    assert found.kind is Instead.SETTING
    assert found.words == f"the same operator with {words}"


def test_the_tensor_that_was_transposed_is_named(bench: Bench) -> None:
    def kernel(run: Program, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return run(x, w.t(), b)

    found = bench.said(F.linear, kernel, (5, 8), (8, 8), (8,), op="linear")
    assert found is not None
    assert found.words == "the same operator with weight transposed"


def test_memory_that_is_read_in_another_order_is_named(bench: Bench) -> None:
    def kernel(run: Program, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return run(x.t().reshape(x.shape), w)

    found = bench.said(F.linear, kernel, (5, 8), (6, 8), op="linear")
    assert found is not None
    assert found.words.endswith("the memory of input read with axes 0 and 1 exchanged")


def test_a_gradient_that_is_wrong_by_itself_is_told_as_that(bench: Bench) -> None:
    reference = bench.call(lambda x, w: F.linear(x, w), (5, 8), (6, 8), op="linear")
    gradient = np.array(record_of(reference, Role.GRAD_INPUT).load())
    found = asked(reference, altered(reference, Role.GRAD_INPUT, 0, -gradient), Role.GRAD_INPUT)
    assert found is not None
    assert found.words == "the result with the other sign"


def test_what_is_right_forward_and_wrong_at_random_backward_is_not_explained(bench: Bench) -> None:
    reference = bench.call(lambda x, w: F.linear(x, w), (5, 8), (6, 8), op="linear")
    random = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    wrong = altered(reference, Role.GRAD_INPUT, 0, random)
    assert asked(reference, wrong, Role.GRAD_INPUT) is None


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda run, x, *args, **kwargs: _centred(x) / (x.var(-1, keepdim=True) + 1e-3).sqrt(),
         "with its variance divided by n - 1 instead of n"),
        (lambda run, x, *args, **kwargs: _centred(x) / (x.std(-1, unbiased=False, keepdim=True) + 1e-3),
         "with eps outside of the root"),
    ],
)  # fmt: skip
def test_another_form_of_a_normalisation_is_named(bench: Bench, kernel: Kernel, words: str) -> None:
    def normed(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x * 0.1, (8,), eps=1e-3)

    found = bench.said(normed, kernel, (6, 8), op="layer_norm")
    assert found is not None
    assert found.words == f"the same operator {words}"


def test_a_term_that_a_backward_leaves_out_is_named(bench: Bench) -> None:
    def kernel(run: Program, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True).detach()

    def soft(x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x, -1)

    found = bench.said(soft, kernel, (6, 8), op="softmax", role=Role.GRAD_INPUT)
    assert found is not None
    assert found.kind is Instead.TERM
    assert found.words == "the same operator without the term of the sum in its backward"


@pytest.mark.parametrize(
    ("make", "kernel", "shapes", "op", "words"),
    [
        (F.linear, lambda run, x, w: run(x[:, :-3], w[:, :-3]), ((5, 11), (6, 11)), "linear",
         "with the last 3 indices of axis 1 of input and weight left out"),
        (lambda x: torch.sum(x, 1), lambda run, x, dim: run(x[:, :4], dim), ((5, 8),), "sum",
         "with the second half of axis 1 of input left out"),
        (lambda x: F.glu(x, -1), lambda run, x, *args, **kwargs: run(x.roll(3, -1), -1), ((5, 6),), "glu",
         "with axis 1 of input with its halves exchanged"),
        (lambda x, y: torch.index_add(x, 0, torch.tensor([1, 3, 1]), y),
         lambda run, x, dim, index, y: run(x, dim, index[1:], y[1:]), ((5, 6), (3, 6)), "index_add",
         "with the last write to each index instead of their sum"),
        (lambda x: F.relu(x), lambda run, x, **kwargs: F.relu6(x), ((5, 900),), "relu", ""),
    ],
)  # fmt: skip
def test_a_part_that_is_left_out_or_stands_elsewhere_is_named(
    bench: Bench,
    make: Program,
    kernel: Kernel,
    shapes: tuple[tuple[int, ...], ...],
    op: str,
    words: str,
) -> None:
    found = bench.said(make, kernel, *shapes, op=op)
    if not words:  # both are the same on these inputs
        assert found is None
        return
    assert found is not None
    assert found.words.startswith(f"the same operator {words}")


def test_half_of_the_batch_that_is_left_out_of_one_gradient_is_named(bench: Bench) -> None:
    reference = bench.call(F.linear, (6, 8), (5, 8), op="linear")
    x, arrived = (
        np.array(record_of(reference, role).load()) for role in (Role.INPUT, Role.GRAD_OUTPUT)
    )
    half = altered(reference, Role.GRAD_INPUT, 1, arrived[:3].T @ x[:3])
    found = asked(reference, half, Role.GRAD_INPUT, 1)
    assert found is not None
    assert found.words == (
        "the same backward with the second half of axis 0 of the incoming gradient left out"
        " (the other results of the call do not show it)"
    )


def test_heads_in_another_order_are_read_off_the_result(bench: Bench) -> None:
    def attended(x: torch.Tensor) -> torch.Tensor:
        heads = x.reshape(2, 5, 4, 3).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads * 0.5, heads + 1)

    def kernel(run: Program, *tensors: torch.Tensor) -> torch.Tensor:
        return run(*tensors)[:, [2, 0, 1, 3]]

    found = bench.said(attended, kernel, (2, 5, 12), op="scaled_dot_product_attention")
    assert found is not None
    assert found.kind is Instead.ELSEWHERE
    assert found.words == "the result with the indices of axis 1 in the order 2 0 1 3"


def test_gates_in_another_order_are_named(bench: Bench) -> None:
    def recurrent(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(1, 2, 3)
        return torch.lstm(x, (zeros, zeros), [w, v], False, 1, 0.0, True, False, True)[0]

    def kernel(run: Program, x: torch.Tensor, hx: object, params: object, *rest: object) -> object:
        turned = [torch.cat([w[3:6], w[:3], w[6:]]) for w in params]
        return run(x, hx, turned, *rest)

    found = bench.said(recurrent, kernel, (2, 4, 5), (12, 5), (12, 3), op="lstm")
    assert found is not None
    assert found.words == "the same operator with its gates in the order f i g o instead of i f g o"


def test_a_tensor_of_an_earlier_call_is_named(bench: Bench) -> None:
    def twice(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w) + F.linear(y, w)

    first, second = (
        one
        for one in operators(bench.recording(twice, (5, 8), (5, 8), (6, 8)))
        if one.site.op.endswith("linear")
    )
    stale = altered(second, Role.OUTPUT, 0, np.array(record_of(first, Role.OUTPUT).load()))
    left, right = record_of(second, Role.OUTPUT), record_of(stale, Role.OUTPUT)
    question = Unexplained(left, right, second, stale, earlier=(first,))
    found = explained(question, MEMORY_BYTES)
    assert found is not None
    assert "with input of an earlier call" in found.words


@pytest.mark.parametrize("updated", [True, False])
def test_a_weight_before_its_last_update_is_named(bench: Bench, updated: bool) -> None:
    # Given a layer whose weight and bias another step had otherwise, and what it gave with these
    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w, b)

    now = bench.call(layer, (5, 8), (6, 8), (6,), op="linear")
    before = bench.call(
        lambda x, w, b: layer(x + 1, w * 1.1, b * 0.9), (5, 8), (6, 8), (6,), op="linear"
    )
    x, w, b = (
        np.array(record_of(one, Role.INPUT, index).load())
        for index, one in enumerate((now, before, before))
    )
    left = record_of(now, Role.OUTPUT)
    stale = altered(now, Role.OUTPUT, 0, x @ w.T + b)
    names = frozenset(record.name for record in now.with_role(Role.INPUT)[1:])

    # When it is asked what stands there
    question = Unexplained(
        left,
        record_of(stale, Role.OUTPUT),
        now,
        stale,
        earlier=(replace(before, step=now.step - 1),),
        updated=names if updated else frozenset(),
    )
    found = explained(question, MEMORY_BYTES)

    # Then it is the weight of before, and nothing where no update came between
    words = "" if found is None else found.words
    assert words.startswith("the result of weight and bias before the last update") is updated


def test_noise_of_another_setting_is_no_contradiction_of_it(bench: Bench) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)

    found = bench.said(resized, _by(align_corners=True), (2, 3, 5, 5), op="interpolate")
    assert found is not None
    assert found.words == "the same operator with align_corners=True instead of False"


def test_what_several_operators_give_together_is_held_against_the_one_alone(bench: Bench) -> None:
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w) * 1.02

    one = bench.call(F.linear, (5, 8), (6, 8), op="linear")
    others = operators(bench.recording(scaled, (5, 8), (6, 8)))
    *_, other, _ = (call for call in others if call.site.op.endswith("mul"))
    found = asked(one, other, Role.OUTPUT)
    assert found is not None
    assert found.words == "the result times 1.02"


def test_what_enters_an_update_is_not_told_by_that_update(bench: Bench) -> None:
    def program() -> None:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight * weight).sum().backward()
        optimizer.step()

    found = recorded(bench.folder / "entering", program)
    update = next(call for call in found.ranks["rank0"].calls(0) if call.kind is CallKind.OPTIMIZER)
    after = np.array(record_of(update, Role.PARAM_AFTER).load())
    said = asked(update, altered(update, Role.PARAM, 0, after), Role.PARAM)
    assert said is not None
    assert "updated" not in said.words


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "fp16"), (torch.bfloat16, "bf16")])
@pytest.mark.parametrize(("at_once", "terms"), [(1, "term by term"), (16, "16 terms at a time")])
def test_sums_in_sixteen_bits_are_told_from_a_rounded_result(
    bench: Bench, dtype: torch.dtype, name: str, at_once: int, terms: str
) -> None:
    reference = bench.call(F.linear, (6, 64), (16, 64), op="linear")
    x, w = (torch.tensor(np.array(record_of(reference, Role.INPUT, i).load())) for i in (0, 1))
    total = torch.zeros(6, 16)
    for start in range(0, 64, at_once):
        part = slice(start, start + at_once)
        total = (total + x[:, part] @ w[:, part].t()).to(dtype).float()
    found = asked(reference, altered(reference, Role.OUTPUT, 0, total.numpy()), Role.OUTPUT)
    assert found is not None
    assert found.kind is Instead.PRECISION
    assert found.words == f"the same operator with its sums accumulated in {name}, {terms}"
