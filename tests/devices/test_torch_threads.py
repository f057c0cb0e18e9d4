"""Compiled tasks on torch's own threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lockstep.devices import torch_threads as team
from lockstep.devices.tensor_numbers import measured
from lockstep.kernels.jit import available
from lockstep.kernels.numbers import measured_array

pytestmark = pytest.mark.skipif(not available(), reason="Numba cannot be used here")

TENSOR = torch.linspace(-1, 1, 700_000)


@pytest.fixture
def threads() -> Iterator[None]:
    """Torch's number of threads, put back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_numbers_are_the_same_on_any_number_of_threads(count: int) -> None:
    # given torch with so many threads
    torch.set_num_threads(count)
    # when a tensor is measured
    digest, statistics, sketch = measured(TENSOR, with_sketch=True)
    # then all is as one thread has it
    expected = measured_array(TENSOR.numpy(), with_sketch=True)
    assert (digest, statistics) == expected[:2]
    assert np.array_equal(sketch, expected[2])  # type: ignore[arg-type]


@pytest.mark.usefixtures("threads")
def test_where_the_runtime_is_another_one_this_thread_does_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a torch whose threads cannot be had
    torch.set_num_threads(2)
    monkeypatch.setattr(team, "_parallel", lambda: None)
    # when a tensor is measured, then it has its numbers
    found = measured(TENSOR, with_sketch=False)
    assert found[:2] == measured_array(TENSOR.numpy(), with_sketch=False)[:2]


@pytest.mark.usefixtures("threads")
def test_operators_and_tasks_take_turns_on_the_same_threads() -> None:
    # given operators that run on several threads
    torch.set_num_threads(2)
    left = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    expected, numbers = left @ left, measured(TENSOR, with_sketch=False)
    # when tensors are measured between them
    for _ in range(50):
        # then neither disturbs the other
        assert torch.equal(left @ left, expected)
        assert measured(TENSOR, with_sketch=False) == numbers
