"""Quick runs on the thread that answers: made there once they were seen to be quick, and stopped where they are not."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import serve_models
from onnx import TensorProto, helper
from serve_asgi import ECHO, python_model, repository_of

from lockstep_serve import in_place as in_place_module
from lockstep_serve.failures import ModelFailedError, TooSlowError
from lockstep_serve.in_place import INSTANT_S, QUICK_ALONE_S, QUICK_S, InPlace


def counting(path: Path) -> Path:
    """`y = x + times`, by so many rounds of a loop; a negative x has no element to gather, and fails."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes"]),
            helper.make_node("Add", ["sum", "one"], ["more"]),
        ],
        "body",
        [
            serve_models.tensor("round", [], TensorProto.INT64),
            serve_models.tensor("going", [], TensorProto.BOOL),
            serve_models.tensor("sum", [1]),
        ],
        [serve_models.tensor("goes", [], TensorProto.BOOL), serve_models.tensor("more", [1])],
    )
    nodes = [
        helper.make_node("Squeeze", ["times"], ["most"]),
        helper.make_node("Cast", ["x"], ["place"], to=TensorProto.INT64),
        helper.make_node("Gather", ["many", "place"], ["zero"]),
        helper.make_node("Add", ["x", "zero"], ["begin"]),
        helper.make_node("Loop", ["most", "", "begin"], ["y"], body=body),
    ]
    inputs = [serve_models.tensor("x", [1]), serve_models.tensor("times", [1], TensorProto.INT64)]
    weights = {"one": np.ones(1, "float32"), "many": np.zeros(9, "float32")}
    held = [onnx.numpy_helper.from_array(one, name) for name, one in weights.items()]
    return serve_models.write(path, nodes, inputs, [serve_models.tensor("y", [1])], *held)


def given(x: float, times: int) -> dict[str, Any]:
    return {"x": np.array([x], "float32"), "times": np.array([times])}


def runner_of(repository: Any) -> Any:
    return repository.get("counting").batcher._runners[0]


async def answered_in_time(infer: Any, inputs: dict[str, Any]) -> Any:
    """What one is answered that asks again while the model is opened anew, or the machine is busy."""
    while True:
        with contextlib.suppress(TooSlowError):
            return await infer(inputs)


def test_a_run_seen_to_be_quick_is_made_in_place_and_one_that_is_not_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a busy machine a quick run may wait for its turn
    monkeypatch.setattr(in_place_module, "_STOPPED_AFTER_S", 0.3)

    async def go() -> None:
        # Given a model whose time depends on its numbers, seen to be quick on such shapes
        counting(tmp_path / "counting" / "1" / "model.onnx")
        repository = await repository_of(tmp_path, timeout_s=0.8)
        infer = repository.get("counting").batcher.infer
        assert (await answered_in_time(infer, given(5, 3)))["y"].tolist() == [8]
        in_place = runner_of(repository).in_place
        assert in_place.runs == 0
        in_place.took(given(5, 3), 0.0)
        assert (await infer(given(6, 3)))["y"].tolist() == [9]
        assert (in_place.runs, in_place.stopped) == (1, 0)
        # When one asks for a run without an end, then that is stopped, and ends by its timeout on the runner's thread
        in_place.took(given(5, 3), 0.0)
        with pytest.raises(TooSlowError):
            await infer(given(5, 1 << 60))
        assert (in_place.runs, in_place.stopped) == (2, 1)
        # And what such shapes take counts double from now on
        in_place.took(given(5, 3), QUICK_S)
        assert not in_place.within(QUICK_S, given(5, 3))
        # And the next is answered as ever
        assert (await answered_in_time(infer, given(6, 3)))["y"].tolist() == [9]
        await repository.close()

    asyncio.run(go())


def test_a_model_that_fails_in_place_says_so_and_is_not_run_twice(tmp_path: Path) -> None:
    async def go() -> None:
        counting(tmp_path / "counting" / "1" / "model.onnx")
        repository = await repository_of(tmp_path)
        in_place = runner_of(repository).in_place
        for count in (1, 2):
            in_place.took(given(-20, 3), 0.0)
            with pytest.raises(ModelFailedError, match="the model raised"):
                await repository.get("counting").batcher.infer(given(-20, 3))
            assert (in_place.runs, in_place.stopped) == (count, 0)
        await repository.close()

    asyncio.run(go())


def test_what_cannot_be_stopped_is_not_run_in_place(tmp_path: Path) -> None:
    async def go() -> None:
        python_model(tmp_path, "echo", ECHO)
        repository = await repository_of(tmp_path)
        assert repository.get("echo").batcher._runners[0].in_place is None  # type: ignore[attr-defined]
        await repository.close()

    asyncio.run(go())


def test_quick_is_what_the_last_run_on_such_shapes_was() -> None:
    in_place = InPlace(lambda inputs, switch: {}, Switch())
    one, other = {"x": np.zeros((1, 4))}, {"x": np.zeros((2, 4))}
    assert not in_place.within(QUICK_S, one)
    for seconds in (QUICK_S / 2, QUICK_S * 2, QUICK_S):
        in_place.took(one, seconds)
        assert in_place.within(QUICK_S, one) is (seconds <= QUICK_S)
        assert not in_place.within(QUICK_S, other)
    in_place.end()


@pytest.mark.parametrize(("seconds", "beside"), [(INSTANT_S, 2), (QUICK_S, 1), (QUICK_ALONE_S, 0)])
def test_how_quick_it_is_says_whether_it_runs_at_once_in_place_or_only_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, beside: int
) -> None:
    async def go() -> None:
        # Given a model of which runs of one and of two instances took so long
        serve_models.linear(tmp_path / "linear" / "1" / "model.onnx")
        repository = await repository_of(tmp_path)
        batcher = repository.get("linear").batcher
        in_place = batcher._runners[0].in_place  # type: ignore[attr-defined]
        one, two = ({"x": np.ones((count, 4), "float32")} for count in (1, 2))
        in_place.took(one, seconds)
        in_place.took(two, seconds)
        monkeypatch.setattr(in_place, "took", lambda inputs, seconds: None)
        # When two ask at once, they run each by itself, together, or together on a thread
        found = await asyncio.gather(batcher.infer(one), batcher.infer(one))
        assert [answer["y"].tolist() for answer in found] == [[[6, 2, -2]]] * 2
        assert (in_place.runs, batcher.runs) == (beside, max(beside, 1))
        # And one that is alone runs in place
        await batcher.infer(one)
        assert in_place.runs == beside + 1
        await repository.close()

    asyncio.run(go())


class Switch:
    terminate = False
