"""The queue beside a runner that is told what to give: shapes of outputs, and requests of any sizes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_serve.batcher import Batcher
from lockstep_serve.failures import ModelFailedError
from lockstep_serve.servable import Signature, TensorSpec

FLOAT = np.dtype("float32")


class Giving:
    """Gives what it is told to, whatever it is asked."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    async def run(self, inputs: Any, *, alone: bool = False) -> Any:
        return {"y": np.zeros(self.shape, FLOAT)}

    async def close(self) -> None: ...


class Doubling:
    """Gives `2 x`, and keeps what each run was given."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    async def run(self, inputs: Any, *, alone: bool = False) -> Any:
        self.runs.append(inputs["x"][:, 0].tolist())
        await asyncio.sleep(0)
        return {"y": inputs["x"] * 2}

    async def close(self) -> None: ...


def batcher(
    runner: Any,
    given: tuple[int, ...],
    made: tuple[int, ...],
    *,
    batches: bool = True,
    most: int = 32,
) -> Batcher:
    signature = Signature(
        (TensorSpec("x", FLOAT, given),), (TensorSpec("y", FLOAT, made),), batches=batches
    )
    return Batcher([runner], signature, most=most, waiting=10_000, name="net")


ROWS = ((-1, 2), (-1, 3))
FIXED = ((4, 2), (4, 3))
WRONG = [
    # signature, batches, rows that are asked for, shape that is given, shape that is expected
    (ROWS, True, 2, (1, 3), [2, 3]),
    (ROWS, True, 2, (3, 3), [2, 3]),
    (ROWS, True, 2, (0, 3), [2, 3]),
    (ROWS, True, 2, (2, 2), [2, 3]),
    (ROWS, True, 2, (2, 4), [2, 3]),
    (ROWS, True, 2, (2,), [2, 3]),
    (ROWS, True, 2, (), [2, 3]),
    (ROWS, True, 2, (6,), [2, 3]),
    (ROWS, True, 2, (3, 2), [2, 3]),
    (ROWS, True, 2, (2, 3, 1), [2, 3]),
    (ROWS, True, 2, (1, 2, 3), [2, 3]),
    (ROWS, True, 1, (3,), [1, 3]),
    (FIXED, True, 3, (3, 3), [4, 3]),
    (FIXED, True, 4, (1, 3), [4, 3]),
    (FIXED, True, 4, (8, 3), [4, 3]),
    (((-1, 2), (-1, -1, 3)), True, 2, (2, 3), [2, -1, 3]),
    (((-1, 2), (-1, -1, 3)), True, 2, (2, 7, 4), [2, -1, 3]),
    (((-1, 2), ()), True, 2, (3, 5), [2, -1]),
    (((-1, 2), ()), True, 2, (), [2]),
    (((-1, 2), (-1, 3)), False, 2, (2, 4), [-1, 3]),
    (((-1, 2), (5,)), False, 2, (4,), [5]),
    (((-1, 2), (-1,)), False, 2, (2, 1), [-1]),
]
RIGHT = [
    (ROWS, True, 2, (2, 3)),
    (FIXED, True, 3, (4, 3)),
    (((-1, 2), (-1, -1, 3)), True, 2, (2, 7, 3)),
    (((-1, 2), (-1,)), True, 2, (2,)),
    (((-1, 2), ()), True, 2, (2, 5, 5)),
    (ROWS, False, 2, (7, 3)),
    (((-1, 2), ()), False, 2, (9, 9)),
    (((-1, 2), (5,)), False, 2, (5,)),
]


@pytest.mark.parametrize(("signature", "batches", "asked", "given", "expected"), WRONG)
def test_an_output_of_a_wrong_shape_is_an_error_that_names_everything(
    signature: Any, batches: bool, asked: int, given: Any, expected: Any
) -> None:
    queue = batcher(Giving(given), *signature, batches=batches)
    with pytest.raises(ModelFailedError) as raised:
        asyncio.run(queue.infer({"x": np.zeros((asked, 2), FLOAT)}))
    words = f"net gave its output y in shape {list(given)}, where {expected} was expected"
    assert str(raised.value) == words
    assert raised.value.status == 500


@pytest.mark.parametrize(("signature", "batches", "asked", "given"), RIGHT)
def test_an_output_of_a_right_shape_is_an_answer(
    signature: Any, batches: bool, asked: int, given: Any
) -> None:
    queue = batcher(Giving(given), *signature, batches=batches)
    answer = asyncio.run(queue.infer({"x": np.zeros((asked, 2), FLOAT)}))["y"]
    assert answer.shape == (asked if batches else given[0], *given[1:])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    most=st.integers(1, 9),
    fixed=st.booleans(),
)
def test_requests_of_any_sizes_have_their_own_rows_in_runs_of_bounded_size(
    sizes: list[int], most: int, fixed: bool
) -> None:
    async def go() -> None:
        # Given requests of which each has numbers of its own, asked at one moment
        runner, extent = Doubling(), most if fixed else -1
        queue = batcher(runner, (extent, 1), (extent, 1), most=most)
        ends = np.cumsum(sizes)
        rows = [
            np.arange(end - size, end, dtype=FLOAT)[:, None]
            for size, end in zip(sizes, ends, strict=True)
        ]
        found = await asyncio.gather(*(queue.infer({"x": one}) for one in rows))
        # Then each has its own, in order
        for one, answer in zip(rows, found, strict=True):
            assert answer["y"].tolist() == (2 * one).tolist()
        # And no run is larger than may be, none is empty, and what fits into a run is not cut
        assert all(1 <= len(run) <= most for run in runner.runs)
        assert (queue.instances, queue.queued) == (sum(sizes), 0)
        for one in rows:
            if len(one) <= most:
                assert sum(one[0, 0] in run for run in runner.runs) == 1
                assert any({*one[:, 0].tolist()} <= {*run} for run in runner.runs)
        await queue.close()

    asyncio.run(go())
