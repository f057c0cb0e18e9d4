"""Distinct contents: what is taken for the same, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.capture.tensors import measurements
from lockstep.capture.tensors.contents import Contents
from lockstep.kernels.digest import digest_of_bytes
from lockstep.store import schema


class Sink:
    """Keeps rows."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def add_content(self, row: Any) -> None:
        self.rows.append(row)

    def add_small_content(self, content: Any) -> int:
        self.rows.append(content)
        return 0

    def add_tensor(self, tensor: Any) -> int:
        return 0


@pytest.fixture
def sink() -> Sink:
    return Sink()


def count_passes(monkeypatch: pytest.MonkeyPatch, passes: list[str]) -> None:
    """Note each time that the numbers of a tensor are taken, with its digest or without."""

    def counted(name: str, taken: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            passes.append(name)
            return taken(*given, **named)

        return call

    for name in ("measured", "numbers_of"):
        monkeypatch.setattr(measurements, name, counted(name, getattr(measurements, name)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("save", ["stats", "sketch"])
def test_a_large_tensor_is_known_again_by_its_digest(
    sink: Sink, dtype: torch.dtype, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given large tensors: two the same in memory of their own, and one that differs in its last element
    first = torch.arange(200_000).remainder(1000).to(dtype)
    again, other = first.clone(), first.clone()
    other[-1] = 0
    passes: list[str] = []
    count_passes(monkeypatch, passes)

    # when they are met in turn
    known = Contents(sink, save)
    numbers = [known.of(tensor) for tensor in (first, again, other, again.clone())]

    # then the same content has one number and was measured once, and what looks alike is another one
    assert numbers == [0, 0, 1, 0]
    assert len(passes) == 2
    digests = [row[4] for row in sink.rows]
    raw = [tensor.view(torch.uint8).numpy() for tensor in (first, other)]
    assert digests == [digest_of_bytes(data) for data in raw]


def written(tensor: torch.Tensor) -> None:
    tensor.data[100:] = 7


def in_place(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor[-1] = 7


@pytest.mark.parametrize("change", [written, in_place])
def test_for_rules_a_result_is_measured_once_and_what_was_written_to_anew(
    sink: Sink, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given contents that rules alone are asked of, where operators are not seen
    held = Contents(sink, "stats", trust_versions=False, trust_results=True)
    passes: list[str] = []
    count_passes(monkeypatch, passes)
    result = torch.arange(100_000.0) * 2
    # when it is met as the result of one module and the argument of another
    numbers = [held.of(result) for _ in range(3)]
    # then its numbers are taken once
    assert (len(set(numbers)), len(passes)) == (1, 1)
    change(result)
    assert held.of(result) not in numbers


@pytest.mark.parametrize("kind", ["parameter", "gradient"])
def test_for_rules_parameters_and_their_gradients_are_read_each_time(sink: Sink, kind: str) -> None:
    held = Contents(sink, "stats", trust_versions=False, trust_results=True)
    parameter = torch.nn.Parameter(torch.zeros(100_000))
    parameter.grad = torch.zeros(100_000)
    tensor = parameter if kind == "parameter" else parameter.grad
    asked = held.of if kind == "parameter" else held.exactly
    before = asked(tensor)
    # when one element is written to behind torch's back, where no glance falls
    tensor.data[12_345] = 1
    # then it is seen, and twice the same is the same
    assert asked(tensor) != before
    assert asked(tensor) == asked(tensor)


@pytest.mark.parametrize(("bad", "taken"), [(0.0, []), (float("nan"), ["measured"])])
def test_whether_a_large_tensor_is_finite_is_asked_in_one_pass(
    sink: Sink, bad: float, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Contents(sink, "stats", trust_versions=False, trust_results=True, finite_alone=True)
    passes: list[str] = []
    count_passes(monkeypatch, passes)
    result = torch.full((100_000,), 2.0)
    result[5] = bad
    held.of(result)
    assert passes == taken
    (row,) = sink.rows
    told = dict(zip(schema.CONTENTS, row, strict=True))
    assert told["nan_count"] == len(taken)
    assert (told["digest"] is None) == (not taken)
    assert taken or told["norm"] == pytest.approx(2 * 99_999**0.5)


def test_a_sum_of_squares_that_overflows_is_no_inf(sink: Sink) -> None:
    held = Contents(sink, "stats", finite_alone=True)
    held.of(torch.full((100_000,), 1e30))
    (row,) = sink.rows
    assert dict(zip(schema.CONTENTS, row, strict=True))["inf_count"] == 0
