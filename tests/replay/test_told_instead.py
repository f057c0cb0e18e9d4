"""What a candidate computes instead holds for all results of a call, names its tensors and arguments, and says ties."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import Beneath, altered, operators, record_of, recorded

from lockstep.core.finding import Explanation, Instead
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.replay.explanation.explained import explained
from lockstep.replay.explanation.unexplained import Unexplained

MEMORY_BYTES = 8 << 30

Program = Callable[..., torch.Tensor]
"""One call of an operator, on tensors that are drawn for it."""

Kernel = Callable[..., torch.Tensor]
"""What runs instead: called with the function and its arguments."""


class Bench:
    """Records a program, and what it gives where another kernel runs below the recorder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def call(
        self, make: Program, *shapes: tuple[int, ...], op: str, kernel: Kernel | None = None
    ) -> Call:
        """The call of an operator with its results, forward and backward."""

        def program() -> None:
            generator = torch.Generator().manual_seed(0)
            drawn = [torch.randn(shape, generator=generator) for shape in shapes]
            leaves = [one.requires_grad_() * 1.0 for one in drawn]
            with Beneath(op if kernel else "", kernel or make).at_work():
                result = make(*leaves)
            weights = torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape)
            (result * weights).sum().backward()

        self._count += 1
        found = operators(recorded(self._folder / str(self._count), program))
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
