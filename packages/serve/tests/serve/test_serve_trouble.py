"""Models that raise, hang and give what they should not, among requests of others."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_asgi import python_model, repository_of

from lockstep_serve import repository as repository_module
from lockstep_serve.failures import (
    BusyError,
    ModelFailedError,
    NotReadyError,
    RequestError,
    TooSlowError,
)
from lockstep_serve.repository import Repository

TROUBLE = """
import sys
import threading
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

GATE = threading.Event()
OPENED = []

class Trouble:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 1)),),
        (TensorSpec("y", np.dtype("float32"), (-1, 1)),),
        batches=True,
    )

    def __init__(self, version_dir):
        self.gate = threading.Event()
        self.runs = []

    def infer(self, inputs):
        x = inputs["x"]
        self.runs.append(len(x))
        if 1 in x:
            raise ValueError("a one")
        if 2 in x:
            threading.Event().wait()
        if 3 in x:
            self.gate.wait()
        if 92 in x:
            sys.exit(3)
        if 93 in x:
            raise KeyboardInterrupt
        odd = {
            4: {}, 5: {"y": x.astype("float64")}, 6: {"y": x[:1]}, 7: {"y": x.tolist()},
            90: {"y": np.repeat(x[:1], 3, 0)}, 91: {"y": np.repeat(x, 2, 1)},
        }
        return odd.get(int(x[0, 0]), {"y": x * 2})

def load(version_dir):
    if (version_dir / "locked").exists():
        raise OSError("locked")
    OPENED.append(Trouble(version_dir))
    return OPENED[-1]
"""


def x(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, "float32")[:, None]}


def servable_of(repository: Repository) -> Any:
    """The model itself, to open its gate and see its runs."""
    return repository.get("trouble").batcher._runners[0]._servable  # type: ignore[attr-defined]


async def opened(folder: Path, **limits: Any) -> Repository:
    python_model(folder, "trouble", TROUBLE)
    return await repository_of(folder, **limits)


async def answered_in_time(infer: Any, value: float) -> Any:
    """What one is answered that asks again while the model is opened anew."""
    while True:
        with contextlib.suppress(TooSlowError):
            return await infer(x(value))


async def held(repository: Repository) -> asyncio.Task[Any]:
    """A request that keeps the runner at work until the model's gate is opened."""
    task = asyncio.ensure_future(repository.get("trouble").batcher.infer(x(3)))
    await begun()
    return task


async def begun() -> None:
    """Until what was asked is at work: what comes at one moment would run together."""
    for _ in range(2):
        await asyncio.sleep(0)


def test_a_request_at_fault_in_a_merged_run_fails_alone(tmp_path: Path) -> None:
    async def go() -> None:
        # Given a runner at work, and three requests that wait, of which the second makes the model raise
        repository = await opened(tmp_path)
        infer, servable = repository.get("trouble").batcher.infer, servable_of(repository)
        first = await held(repository)
        waiting = [asyncio.ensure_future(infer(x(*one))) for one in ([8, 9], [1], [10])]
        await asyncio.sleep(0)
        # When the runner is free
        servable.gate.set()
        found = await asyncio.gather(first, *waiting, return_exceptions=True)
        # Then they ran together once, then each alone, and the one at fault is told
        assert [found[1]["y"].tolist(), found[3]["y"].tolist()] == [[[16], [18]], [[20]]]
        assert isinstance(found[2], ModelFailedError)
        assert str(found[2]) == "the model raised ValueError: a one"
        assert servable.runs == [1, 4, 2, 1, 1]
        await repository.close()

    asyncio.run(go())


def test_a_full_queue_refuses_and_loses_nobody(tmp_path: Path) -> None:
    async def go() -> None:
        repository = await opened(tmp_path, waiting=3)
        infer = repository.get("trouble").batcher.infer
        first = await held(repository)
        second = asyncio.ensure_future(infer(x(8, 9)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="2 instances wait already; ask again later"):
            await infer(x(8, 9))
        third = asyncio.ensure_future(infer(x(8)))
        await asyncio.sleep(0)
        servable_of(repository).gate.set()
        assert [len(one["y"]) for one in await asyncio.gather(first, second, third)] == [1, 2, 1]
        assert len((await infer(x(8)))["y"]) == 1
        await repository.close()

    asyncio.run(go())
    assert (BusyError.status, BusyError.code) == (429, "RESOURCE_EXHAUSTED")


def test_a_model_that_hangs_is_opened_anew_and_the_service_lives(tmp_path: Path) -> None:
    async def go() -> None:
        repository = await opened(tmp_path, timeout_s=0.05)
        infer, servable = repository.get("trouble").batcher.infer, servable_of(repository)
        with pytest.raises(TooSlowError, match=r"trouble did not answer within 0\.05 s$"):
            await infer(x(2))
        assert (await answered_in_time(infer, 8))["y"].tolist() == [[16]]
        assert servable_of(repository) is not servable
        await repository.close()

    asyncio.run(go())


def test_a_model_that_cannot_be_opened_anew_says_so_until_it_can(tmp_path: Path) -> None:
    async def go() -> None:
        repository = await opened(tmp_path, timeout_s=0.05)
        infer = repository.get("trouble").batcher.infer
        lock = tmp_path / "trouble" / "1" / "locked"
        lock.touch()
        with pytest.raises(TooSlowError):
            await infer(x(2))
        with pytest.raises(ModelFailedError, match=r"cannot be opened anew: .*locked"):
            await answered_in_time(infer, 8)
        lock.unlink()
        assert (await answered_in_time(infer, 8))["y"].tolist() == [[16]]
        await repository.close()

    asyncio.run(go())


def test_the_timeout_is_of_the_request_and_counts_its_turn_in_the_queue(tmp_path: Path) -> None:
    async def go() -> None:
        # Given a run that does not end, and a request behind it
        repository = await opened(tmp_path, timeout_s=0.05)
        infer = repository.get("trouble").batcher.infer
        hung = asyncio.ensure_future(infer(x(2)))
        await begun()
        found = await asyncio.gather(hung, infer(x(8)), return_exceptions=True)
        # Then each is told at its own time, and the one behind that it was never run
        assert [type(one) for one in found] == [TooSlowError] * 2
        assert str(found[0]) == "trouble did not answer within 0.05 s"
        assert str(found[1]).endswith("; the request waited for its turn, and was not run")
        assert repository.get("trouble").batcher.queued == 0
        await repository.close()

    asyncio.run(go())


def test_a_request_that_came_long_ago_has_no_time_left(tmp_path: Path) -> None:
    async def go() -> None:
        # Given a runner at work; when two requests wait of which one has spent its time before, as its body came
        repository = await opened(tmp_path, timeout_s=60)
        infer, now_s = repository.get("trouble").batcher.infer, asyncio.get_running_loop().time()
        first = await held(repository)
        twin = asyncio.ensure_future(infer(x(8), now_s))
        with pytest.raises(TooSlowError, match="60 s; the request waited"):
            await infer(x(8), now_s - 60)
        # Then its twin is answered
        servable_of(repository).gate.set()
        assert [len(one["y"]) for one in await asyncio.gather(first, twin)] == [1, 1]
        await repository.close()

    asyncio.run(go())


def test_a_request_of_many_instances_is_cut_and_a_neighbour_waits_for_one_run(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        # Given a request of ten runs that is at work, and a neighbour that comes meanwhile
        repository = await opened(tmp_path, most=4)
        infer, servable = repository.get("trouble").batcher.infer, servable_of(repository)
        order: list[str] = []

        async def asked(name: str, *values: float) -> Any:
            found = await infer(x(*values))
            order.append(name)
            return found["y"].ravel().tolist()

        large = asyncio.ensure_future(asked("large", *[3] * 4, *range(10, 46)))
        await begun()
        small = asyncio.ensure_future(asked("small", 8, 9))
        await asyncio.sleep(0)
        assert repository.get("trouble").batcher.queued == 38
        servable.gate.set()
        # Then the neighbour is in the very next run, which the large one shares, and both have their own numbers
        assert await small == [16, 18]
        assert servable.runs[:2] == [4, 4]
        assert len(servable.runs) <= 4
        assert await large == [6] * 4 + [2 * one for one in range(10, 46)]
        assert order == ["small", "large"]
        assert sum(servable.runs) == 42
        await repository.close()

    asyncio.run(go())


def test_two_requests_that_are_cut_take_turns_and_none_is_passed_over(tmp_path: Path) -> None:
    async def go() -> None:
        # Given two requests of six runs each, and one of another kind of instance behind them
        repository = await opened(tmp_path, most=2)
        batcher, servable = repository.get("trouble").batcher, servable_of(repository)
        first = await held(repository)
        one, other = (asyncio.ensure_future(batcher.infer(x(*[value] * 12))) for value in (8, 9))
        await asyncio.sleep(0)
        seen: list[float] = []
        inner = servable.infer

        def noted(inputs: Any) -> Any:
            seen.append(float(inputs["x"][0, 0]))
            return inner(inputs)

        servable.infer = noted
        servable.gate.set()
        assert (await first)["y"].tolist() == [[6]]
        assert set((await one)["y"].ravel()) == {16}
        assert set((await other)["y"].ravel()) == {18}
        # Then they ran in turn
        assert [value for value in seen if value != 3] == [8, 9] * 6
        await repository.close()

    asyncio.run(go())


def test_a_part_that_fails_fails_its_request_and_frees_the_rest_of_its_place(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        repository = await opened(tmp_path, most=2)
        batcher, servable = repository.get("trouble").batcher, servable_of(repository)
        with pytest.raises(ModelFailedError, match="ValueError: a one"):
            await batcher.infer(x(8, 9, 1, *[8] * 20))
        assert batcher.queued == 0
        assert len((await batcher.infer(x(*[8] * 5)))["y"]) == 5
        assert servable.runs[:2] == [2, 2]
        assert sum(servable.runs) <= 11
        await repository.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (4, "the model did not give its output y"),
        (5, "the model gave y as float64, not float32"),
        (6, "trouble gave its output y in shape [1, 1], where [2, 1] was expected"),
        (90, "trouble gave its output y in shape [3, 1], where [2, 1] was expected"),
        (91, "trouble gave its output y in shape [2, 2], where [2, 1] was expected"),
        (92, "the model raised SystemExit: 3"),
        (93, "the model raised KeyboardInterrupt: "),
        (7, "the model did not give its output y as an array"),
    ],
)
def test_what_is_not_the_signature_is_an_error_of_the_model(
    tmp_path: Path, value: float, words: str
) -> None:
    async def go() -> None:
        repository = await opened(tmp_path)
        infer = repository.get("trouble").batcher.infer
        with pytest.raises(ModelFailedError) as raised:
            await infer(x(value, value))
        assert words in str(raised.value)
        assert (await infer(x(8)))["y"].tolist() == [[16]]
        await repository.close()

    asyncio.run(go())


def test_whoever_leaves_is_not_run(tmp_path: Path) -> None:
    async def go() -> None:
        repository = await opened(tmp_path)
        infer, servable = repository.get("trouble").batcher.infer, servable_of(repository)
        first = await held(repository)
        gone, stays = (asyncio.ensure_future(infer(x(value))) for value in (8, 9))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert repository.get("trouble").batcher.queued == 1
        servable.gate.set()
        await first
        assert (await stays)["y"].tolist() == [[18]]
        assert servable.runs == [1, 1]
        await repository.close()

    asyncio.run(go())


def test_a_version_that_breaks_beside_another_is_served_as_it_was(tmp_path: Path) -> None:
    async def go() -> None:
        # Given two versions, when the file of one is corrupt as the model is loaded anew
        python_model(tmp_path, "trouble", TROUBLE)
        shutil.copytree(tmp_path / "trouble" / "1", tmp_path / "trouble" / "2")
        repository = await repository_of(tmp_path)
        before = repository.get("trouble", "1")
        (tmp_path / "trouble" / "1" / "servable.py").write_text("def load(")
        await repository.load("trouble")
        # Then that version answers on, and the index says why it is the old one
        assert repository.get("trouble", "1") is before
        states = {one.version: (one.state, one.reason) for one in repository.index()}
        assert states["1"][0] == states["2"][0] == "READY"
        assert "fails as it is imported" in states["1"][1]
        assert states["2"][1] == ""
        await repository.close()

    asyncio.run(go())


def test_exchanging_a_model_answers_who_waits_and_a_broken_one_changes_nothing(
    tmp_path: Path,
) -> None:
    async def go() -> None:
        repository = await opened(tmp_path)
        infer, servable = repository.get("trouble").batcher.infer, servable_of(repository)
        first, waiting = await held(repository), asyncio.ensure_future(infer(x(8)))
        await asyncio.sleep(0)
        # When the model is loaded anew, then a corrupt one is, while requests wait
        await repository.load("trouble")
        again = servable_of(repository)
        python_file = tmp_path / "trouble" / "1" / "servable.py"
        python_file.write_text("def load(")
        with pytest.raises(RequestError, match="fails as it is imported"):
            await repository.load("trouble")
        # Then the second answers on, and those who waited for the first are answered by it
        assert servable_of(repository) is again
        assert again is not servable
        servable.gate.set()
        assert [one["y"].tolist() for one in await asyncio.gather(first, waiting)] == [
            [[6]],
            [[16]],
        ]
        # And once it is unloaded, it says so
        await repository.unload("trouble")
        with pytest.raises(NotReadyError, match="unloaded"):
            repository.get("trouble")
        await repository.close()

    asyncio.run(go())


def test_a_model_that_hangs_does_not_keep_the_server_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "GRACE_S", 0.05)

    async def go() -> None:
        # Given a request that hangs, for an hour if need be, and one that waits behind it
        repository = await opened(tmp_path, timeout_s=3600)
        infer = repository.get("trouble").batcher.infer
        hung = asyncio.ensure_future(infer(x(2)))
        await asyncio.sleep(0)
        behind = asyncio.ensure_future(infer(x(8)))
        await asyncio.sleep(0)
        # When the server is to end, then both are told, and it does
        await repository.close()
        for one in await asyncio.gather(hung, behind, return_exceptions=True):
            assert isinstance(one, NotReadyError)
            assert str(one) == "the server ends"

    asyncio.run(go())


def test_a_hung_thread_holds_no_interpreter_back() -> None:
    assert all(one.daemon for one in threading.enumerate() if one.name == "lockstep-serve")


def test_of_two_folders_of_one_number_that_which_is_written_so_is_the_version(
    tmp_path: Path,
) -> None:
    # Given version 1, beside folders that a number could be read from too
    python_model(tmp_path, "twice", TROUBLE)
    for other in ("01", "\N{ARABIC-INDIC DIGIT TWO}"):
        shutil.copytree(tmp_path / "twice" / "1", tmp_path / "twice" / other)

    async def go() -> list[tuple[int, Path]]:
        repository = await repository_of(tmp_path)
        assert repository.versions("twice") == ["1"]
        await repository.close()
        return repository_module.versions_of(tmp_path / "twice")

    assert asyncio.run(go()) == [(1, tmp_path / "twice" / "1")]


CARELESS = """
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

class Careless:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 2)),), (TensorSpec("y", np.dtype("float32"), (-1, 2)),)
    )

    def __init__(self):
        self.buffer = np.zeros((1, 2), "float32")

    def infer(self, inputs):
        x = inputs["x"]
        x /= 255
        self.buffer[:] = x
        return {"y": self.buffer}

def load(version_dir):
    return Careless()
"""


def test_a_model_may_write_into_what_it_is_given_and_gives_one_buffer_again_and_again(
    tmp_path: Path,
) -> None:
    python_model(tmp_path, "careless", CARELESS)
    # Given requests as they come from JSON, which may be written to, and from binary bodies, which may not
    asked = [np.full((1, 2), 255 * number, "float32") for number in range(6)]
    asked[3].setflags(write=False)

    async def go() -> list[Any]:
        repository = await repository_of(tmp_path)
        batcher = repository.get("careless").batcher
        found = await asyncio.gather(*(batcher.infer({"x": one}) for one in asked))
        await repository.close()
        return [one["y"] for one in found]

    # When all have been run, then each answer is its own, and what was asked is what it was
    assert [one[0, 0] for one in asyncio.run(go())] == [0, 1, 2, 3, 4, 5]
    assert [one[0, 0] for one in asked] == [0, 255, 510, 765, 1020, 1275]
