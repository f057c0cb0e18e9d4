"""A call's source is the user's own line, also where an installed package makes the call."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.core.records import Call
from lockstep.store.schema import MANIFEST

LIBRARY = """
def doubled(x):
    return x.mul(2)
"""


def recorded(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A step that multiplies once in a module of that folder, and adds once here."""
    folder.mkdir()
    (folder / "doubling.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "doubling", raising=False)
    doubling = importlib.import_module("doubling")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, steps="0:1"):
        loss = doubling.doubled(model(torch.ones(2, 3)).sum())
        loss.add(1).backward()
        optimizer.step()
    monkeypatch.delitem(sys.modules, "doubling")
    return path


def call_of(recording: Path, op: str) -> Call:
    calls = lockstep.open(recording).ranks["rank0"].calls(0)
    return next(call for call in calls if call.site.op == f"torch.Tensor.{op}")


def line_of(code: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if line.strip().startswith(code))
    return f"tests/capture/test_user_lines.py:{number}"


def test_a_package_is_named_behind_the_line_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an installed package that makes a call for the training
    path = recorded(tmp_path / "run", tmp_path / "site-packages", monkeypatch)
    # Then the training's line is the source, and the package's stands beside it
    call = call_of(path, "mul")
    assert (call.source, call.library) == (line_of("loss = doubling"), "doubling.py:3")
    assert {record.source for record in call.records} == {call.source}
    # And a call of the training itself has no library
    assert (call_of(path, "add").source, call_of(path, "add").library) == (
        line_of("loss.add(1)"),
        "",
    )


def test_a_module_of_the_users_own_is_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded(tmp_path / "run", tmp_path / "project", monkeypatch)
    call = call_of(path, "mul")
    assert (call.source, call.library) == ("doubling.py:3", "")


def test_a_recording_that_does_not_tell_its_sources_names_the_innermost_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a recording of an earlier build, whose manifest lists no files
    path = recorded(tmp_path / "run", tmp_path / "site-packages", monkeypatch)
    manifest = path / "rank0" / MANIFEST
    value = json.loads(manifest.read_text())
    del value["sources"]
    manifest.write_text(json.dumps(value))
    # Then nothing counts as a library's
    assert (call_of(path, "mul").source, call_of(path, "mul").library) == ("doubling.py:3", "")
