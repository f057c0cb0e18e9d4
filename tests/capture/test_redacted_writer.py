"""Recording from a script with `redact=True`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lockstep
from lockstep.core.finding import Verdict
from lockstep.store.reader import Recording


def train(directory: Path, *, redact: bool) -> Recording:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate="tanh"), nn.Linear(4, 1))
    model.cache = str(directory)  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(directory, model=model, redact=redact):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return lockstep.open(directory)


def test_a_recording_without_paths_and_one_with_them_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a script that was called with words of the user's
    monkeypatch.setattr(sys, "argv", ["train.py", "mine"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "mine"])
    # when its training is recorded with and without the option
    plain, redacted = (train(tmp_path / str(redact), redact=redact) for redact in (False, True))
    # then one knows of no command, working directory and repository
    manifest = redacted.manifest
    assert (manifest.command, manifest.cwd, manifest.git) == (["[redacted]"], "[redacted]", {})
    assert redacted.ranks["rank0"].manifest.argv == ["[redacted]"]
    assert plain.manifest.command == ["train.py", "mine"]
    assert plain.ranks["rank0"].manifest.argv == ["python", "train.py", "mine"]
    # and both know the same lines and settings, so that they agree
    lines = [{record.source for record in item.records()} for item in (plain, redacted)]
    assert lines[0] == lines[1]
    settings = redacted.ranks["rank0"].module_table["settings"].to_list()
    assert any('"approximate": "tanh"' in text for text in settings)
    assert not any(str(tmp_path) in text for text in settings)
    comparison = lockstep.compare_recordings(plain.path, redacted.path)
    assert (comparison.verdict, comparison.setup) == (Verdict.AGREE, ())
