"""Which engine is asked for, and what it needs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
from click.testing import CliRunner
from serve_asgi import ECHO, python_model, repository_of

from lockstep.core.errors import UsageError
from lockstep_serve.cluster.contents import contents_of, refuse_other
from lockstep_serve.command import serve


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--engine ray", r"--engine ray: Ray Serve is not installed here: .*\[serve-cluster\]"),
        ("--engine ray --cluster 127.0.0.1:9", "--cluster 127.0.0.1:9: nobody answers there"),
        ("--engine ray --cluster ray://127.0.0.1:9", "Ray's client cannot say"),
        ("--engine ray --cluster nowhere", "give HOST:PORT"),
        ("--engine ray --runners 2", "--engine ray: Ray places replicas; give --replicas"),
        ("--engine ray --device cuda:0,cuda:1", "and one --device for all of them"),
        ("--replicas 2", "are of a Ray cluster; give --engine ray too"),
        ("--cluster 127.0.0.1:6379", "are of a Ray cluster; give --engine ray too"),
    ],
)
def test_an_engine_that_cannot_be_is_one_sentence(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a machine without Ray
    monkeypatch.setitem(sys.modules, "ray", None)
    model = serve_models.linear(tmp_path / "model.onnx")
    ports = ["--http", "0", "--grpc", "0"]
    result = CliRunner().invoke(serve, [str(model), *ports, *words.split()], standalone_mode=False)
    # Then it is said before anything is listened at
    assert isinstance(result.exception, UsageError)
    assert re.search(sentence, str(result.exception))


@pytest.mark.parametrize(("threads", "runs"), [(0, 1), (1, 4), (2, 2), (3, 1), (9, 1)])
def test_runs_of_few_threads_are_several_at_once_of_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, runs: int
) -> None:
    async def go() -> None:
        # Given four cores, a model that several may ask at once, and one that only one may
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
        serve_models.linear(tmp_path / "linear" / "1" / "model.onnx")
        python_model(tmp_path, "echo", ECHO)
        repository = await repository_of(tmp_path, threads=threads)
        batcher = repository.get("linear").batcher
        runners: Any = batcher._runners
        assert (len(runners), len({one._servable for one in runners})) == (runs, 1)
        assert len(repository.get("echo").batcher._runners) == 1
        # When many ask, each has its own numbers
        asked = [np.full((1 + number % 3, 4), number, "float32") for number in range(40)]
        found = await asyncio.gather(*(batcher.infer({"x": one}) for one in asked))
        for number, one in enumerate(found):
            assert one["y"].tolist() == [[6.0 * number, 2.0 * number, -2.0 * number]] * (
                1 + number % 3
            )
        await repository.close()

    asyncio.run(go())


@pytest.mark.parametrize("replicas", ["0", "2..1", "some", "1..", "-1", "1..2..3"])
def test_replicas_are_a_number_or_two(replicas: str) -> None:
    result = CliRunner().invoke(serve, ["model.onnx", "--replicas", replicas])
    assert result.exit_code == 2
    assert "--replicas" in result.output


def test_a_version_that_is_another_elsewhere_is_refused(tmp_path: Path) -> None:
    # Given what a version holds where the server is
    here, there = tmp_path / "here", tmp_path / "there"
    for one in (here, there):
        serve_models.linear(one / "model.onnx")
        (one / "table").write_text("1")
    contents = contents_of(here)
    # Then a copy is the same, also where a model has put a file more there
    (there / "__pycache__").mkdir()
    (there / "__pycache__" / "x.pyc").touch()
    (there / "kept").touch()
    refuse_other(there, contents)
    # And one with another file, or without, is refused by that file's name
    (there / "table").write_text("2")
    with pytest.raises(
        UsageError, match=r"there.table: holds something other than where the server"
    ):
        refuse_other(there, contents)
    (there / "table").unlink()
    with pytest.raises(UsageError, match=r"there.table: is not there, as it is where the server"):
        refuse_other(there, contents)
    with pytest.raises(UsageError, match="every node needs the models at the same path"):
        refuse_other(tmp_path / "nowhere", contents)
    # And a file alone is held against a file
    file = here / "model.onnx"
    refuse_other(there / "model.onnx", contents_of(file))
