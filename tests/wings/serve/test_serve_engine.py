"""Which engine is asked for, and what it needs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import serve_models
from click.testing import CliRunner

from lockstep.core.errors import UsageError
from lockstep.wings.serve.command import serve


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--engine ray", r"--engine ray: Ray Serve is not installed here: .*\[serve-cluster\]"),
        ("--engine ray --runners 2", "--engine ray: Ray places replicas; give --replicas"),
        ("--engine ray --device cuda:0,cuda:1", "and one --device for all of them"),
        ("--replicas 2", "are of a Ray cluster; give --engine ray too"),
        ("--address 127.0.0.1:6379", "are of a Ray cluster; give --engine ray too"),
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


@pytest.mark.parametrize("replicas", ["0", "2..1", "some", "1..", "-1", "1..2..3"])
def test_replicas_are_a_number_or_two(replicas: str) -> None:
    result = CliRunner().invoke(serve, ["model.onnx", "--replicas", replicas])
    assert result.exit_code == 2
    assert "--replicas" in result.output
