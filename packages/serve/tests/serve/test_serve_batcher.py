"""The queue beside a runner that is told what to give: shapes of outputs, and requests of any sizes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep_serve.batcher import LEAST_IN_A_RUN, RUN_S, Batcher, RunSize
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


class Timed(Doubling):
    """Takes so many seconds an instance by its own clock, and fails for more instances than it has room for."""

    def __init__(self, instance_s: float, room: int = 1 << 30) -> None:
        super().__init__()
        self.now_s, self._instance_s, self._room = 0.0, instance_s, room

    async def run(self, inputs: Any, *, alone: bool = False) -> Any:
        count = len(inputs["x"])
        if count > self._room:
            raise ModelFailedError("out of memory")
        self.now_s += count * self._instance_s
        return await super().run(inputs, alone=alone)


@pytest.mark.parametrize(
    ("instance_s", "room", "runs"),
    [
        (1e-7, 1 << 30, range(8, 16)),  # quick: 32, 64, 128 ... instances
        (RUN_S / 1000, 1 << 30, range(15, 40)),  # some 500 instances take half of what a run should
        (1.0, 1 << 30, range(313, 314)),  # slow: 32 instances each
        (1e-7, 100, range(100, 314)),  # runs of more than 100 instances fail
        (1e-7, 31, range(0)),  # no run of 32 works, as it would be without a measurement
    ],
    ids=["quick", "less quick", "slow", "no room", "never"],
)
def test_a_large_request_is_cut_by_the_time_that_runs_take(
    instance_s: float, room: int, runs: range
) -> None:
    async def go() -> None:
        runner = Timed(instance_s, room)
        signature = Signature(
            (TensorSpec("x", FLOAT, (-1, 1)),), (TensorSpec("y", FLOAT, (-1, 1)),), batches=True
        )
        queue = Batcher(
            [runner], signature, most=None, waiting=10, name="net", clock=lambda: runner.now_s
        )
        x = np.arange(10_000, dtype=FLOAT)[:, None]
        if not runs:
            with pytest.raises(ModelFailedError, match="out of memory"):
                await queue.infer({"x": x})
            return
        # When ten thousand instances are asked for, then each has its own row, from as many runs as they need
        found = await queue.infer({"x": x})
        assert found["y"].tolist() == (2 * x).tolist()
        assert len(runner.runs) in runs
        # and a slow run is never larger than without a measurement
        assert instance_s * max(map(len, runner.runs)) <= RUN_S or max(map(len, runner.runs)) == 32

    asyncio.run(go())


def test_the_size_of_a_run_follows_its_time_and_keeps_its_bounds() -> None:
    size, asked, bounded = RunSize(None), RunSize(5), RunSize(None, 48)
    for one in (size, asked, bounded):
        one.ran(one.most, RUN_S / 3)
    # quick runs double it, where nobody has said a number, up to what the model takes
    assert (size.most, asked.most, bounded.most) == (2 * LEAST_IN_A_RUN, 5, 48)
    # small runs say nothing of larger ones
    size.ran(1, 0.0)
    assert size.most == 2 * LEAST_IN_A_RUN
    # slow ones halve it, down to where it began
    for _ in range(3):
        size.ran(size.most, 2 * RUN_S)
    assert size.most == LEAST_IN_A_RUN
    assert not size.failed(LEAST_IN_A_RUN)
    assert not asked.failed(5)
