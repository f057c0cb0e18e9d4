"""Models in processes of their own, which are killed, hang and come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from serve_asgi import ECHO, python_model, repository_of

from lockstep_serve.failures import ModelFailedError, TooSlowError
from lockstep_serve.shared_region import SharedRegion

DIES = """
import os, signal, threading
import numpy as np
from lockstep_serve.servable import Signature, TensorSpec

class Dies:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 1)),),
        (TensorSpec("y", np.dtype("float32"), (-1, 1)), TensorSpec("by", np.dtype("int64"), (-1,))),
        batches=True,
    )

    def infer(self, inputs):
        x = inputs["x"]
        if 1 in x:
            raise ValueError("a one")
        if 2 in x:
            os.kill(os.getpid(), signal.SIGKILL)
        if 3 in x:
            threading.Event().wait()
        return {"y": x, "by": np.full(len(x), os.getpid())}

def load(version_dir):
    once = version_dir / "die_once"
    if once.exists():
        once.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return Dies()
"""


def x(*values: float) -> dict[str, Any]:
    return {"x": np.array(values, "float32")[:, None]}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    one = asyncio.new_event_loop()
    yield one
    one.close()


def test_runners_that_are_killed_lose_no_request(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        # Given two runners with requests at work and waiting
        python_model(tmp_path, "dies", DIES)
        repository = await repository_of(tmp_path, processes=2, most=2, timeout_s=60)
        infer = repository.get("dies").batcher.infer
        asked = [asyncio.ensure_future(infer(x(10 + number))) for number in range(40)]
        found = {int((await asked[0])["by"][0])}
        # When one is killed among them, and its successor as it opens the model
        (tmp_path / "dies" / "1" / "die_once").touch()
        os.kill(found.pop(), signal.SIGKILL)
        # Then every request is answered, each with its own, and the dead one's successor works on
        answers = await asyncio.gather(*asked)
        assert [one["y"].tolist() for one in answers] == [[[10.0 + n]] for n in range(40)]
        # And what is wrong with a request, or with the model, stays its own matter
        for value, error, words in (
            (1, ModelFailedError, "the model raised ValueError: a one"),
            (2, ModelFailedError, "the process that ran the model died"),
        ):
            wrong, right = await asyncio.gather(
                infer(x(value)), infer(x(8)), return_exceptions=True
            )
            assert isinstance(wrong, error)
            assert words in str(wrong)
            assert right["y"].tolist() == [[8]]
        await repository.close()

    loop.run_until_complete(go())
    for words in ("that ran the model", "that opened the model"):
        assert f"the process {words} died (exit -9); another is begun" in caplog.text


def test_a_runner_that_hangs_is_killed(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        python_model(tmp_path, "dies", DIES)
        repository = await repository_of(tmp_path, processes=1, timeout_s=0.5)
        batcher = repository.get("dies").batcher

        async def answering() -> int:
            while True:  # on a busy machine a sound process may take as long
                with contextlib.suppress(TooSlowError):
                    return int((await batcher.infer(x(8)))["by"][0])

        before = await answering()
        with pytest.raises(TooSlowError, match=r"dies did not answer within 0.5 s"):
            await batcher.infer(x(3))
        # When one asks on until another process answers, then the one that hung is gone
        assert await answering() != before
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        await repository.close()

    loop.run_until_complete(go())
    assert "did not answer within 0.5 s; its process was killed" in caplog.text


def test_every_kind_of_model_tells_its_signature(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    async def go() -> None:
        # Given a model of numbers and texts, and one that cannot be opened
        python_model(tmp_path, "echo", ECHO)
        python_model(tmp_path, "broken", "def load(version_dir):\n    1 / 0")
        repository = await repository_of(tmp_path, processes=1)
        reasons = {one.name: one.reason for one in repository.index()}
        assert "its load fails (ZeroDivisionError" in reasons["broken"]
        # Then texts come back too
        texts = np.array([b"", b"\xff" * 300], object)
        numbers = np.arange(4, dtype="float32").reshape(2, 2)
        found = await repository.get("echo").batcher.infer({"x": numbers, "t": texts})
        assert found["u"].tolist() == texts.tolist()
        assert np.array_equal(found["y"], numbers)
        await repository.close()

    loop.run_until_complete(go())


ARRAYS = st.sampled_from(["bool", "<i8", "<f2", "<f4", "<u1"]).flatmap(
    lambda dtype: hnp.arrays(
        np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)
    )
)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), ARRAYS), max_size=4))
def test_tensors_come_through_shared_memory_as_they_are(batches: list[dict[str, Any]]) -> None:
    # Given one side that writes and another that reads, on memory that grows between them
    ours = SharedRegion()
    theirs = SharedRegion(os.dup(ours.descriptor))
    for tensors in batches:
        table, end = ours.write(tensors)
        read = theirs.read(table)
        # When the other side answers with views of what it was given
        back, _ = theirs.write(read, start=end)
        found = ours.read(back)
        # Then they are the same, bit by bit
        assert found.keys() == tensors.keys()
        for name, one in tensors.items():
            assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
            assert found[name].tobytes() == one.tobytes()
        del read, found
    ours.close()
    theirs.close()
