"""`lockstep record --redact`: nothing of machine and person is left, and comparing still names the line."""

from __future__ import annotations

import json
import platform
import stat
from pathlib import Path

import polars as pl
import pytest
from workplace import Workplace

import lockstep
from lockstep.cli.main import main

TRAINING = """
    import os
    import sys

    import torch
    from torch import nn


    class Scaled(nn.Module):
        def forward(self, x):
            return torch.mul(x, 2.0)


    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 1))
    model.origin, model.owner = os.path.abspath(__file__), os.environ["USER"]
    model.hub_token = sys.argv[-1]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["cache"] = os.path.expanduser("~/cache")
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""
COMMAND = ("python", "train.py", "--run", "telltale-run", "--api-key=telltale-key", "--hub-token",
           "telltale-token")  # fmt: skip
FAULT = ("--emulate", "wrong:1/torch.mul:scale:1.5")


@pytest.fixture(scope="module")
def recordings(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training recorded redacted, and as it is with a fault in it."""
    path = tmp_path_factory.mktemp("recordings")
    workplace = Workplace(path / "telltale-project", programs)
    workplace.script("train.py", TRAINING)
    home = path / "telltale-home"
    workplace.environment |= {"HOME": str(home), "USER": "telltale-user", "LOGNAME": "telltale-user",
                              "LOCAL_API_TOKEN": "telltale-local", "MASTER_ADDR": "telltale-master",
                              "NCCL_ALGO": "Ring"}  # fmt: skip
    record = ("lockstep", "record", "-o")
    done = workplace.run_together(
        (*record, path / "redacted", "--redact", "--", *COMMAND),
        (*record, path / "plain", *FAULT, "--", *COMMAND),
    )
    assert [ended.code for ended in done] == [0, 0], done
    return path


def words_in(recording: Path) -> str:
    """All bytes of a recording, and all texts of its tables."""
    files = [file for file in recording.rglob("*") if file.is_file()]
    tables = [pl.read_parquet(file) for file in files if file.suffix == ".parquet"]
    texts = [table.select(pl.col(pl.String)).write_csv() for table in tables]
    return "\n".join([*texts, *(file.read_bytes().decode("latin-1") for file in files)])


def test_nothing_of_machine_and_person_is_left(recordings: Path) -> None:
    words = words_in(recordings / "redacted")
    host = platform.node()
    for word in ("telltale", str(recordings), str(Path.home()), *([host] if len(host) > 3 else [])):
        assert word not in words
    # and the twin without the option keeps paths and names, but no secret
    words = words_in(recordings / "plain")
    for word in ("telltale-project", "telltale-home", "telltale-user", "telltale-run"):
        assert word in words
    for word in ("telltale-key", "telltale-token", "telltale-local", "telltale-master"):
        assert word not in words


def test_both_manifests_and_show_mask_what_looks_secret(recordings: Path) -> None:
    shown = ["python", "train.py", "--run", "telltale-run", "--api-key=***", "--hub-token", "***"]
    recording = lockstep.open(recordings / "plain")
    manifest = recording.ranks["rank0"].manifest
    assert recording.manifest.command == shown
    assert manifest.argv[-len(shown) + 1 :] == shown[1:]
    assert manifest.environment["NCCL_ALGO"] == "Ring"
    assert "LOCAL_API_TOKEN" not in manifest.environment
    redacted = lockstep.open(recordings / "redacted")
    assert redacted.manifest.command == redacted.ranks["rank0"].manifest.argv == ["[redacted]"]
    assert redacted.ranks["rank0"].manifest.sources == ["train.py"]


def test_a_redacted_recording_compares_and_names_the_line(recordings: Path) -> None:
    sides = (recordings / "redacted", recordings / "plain")
    for reference, candidate in (sides, sides[::-1]):
        comparison = lockstep.compare_recordings(reference, candidate)
        assert [(origin.op, origin.source) for origin in comparison.origins] == [
            ("torch.mul", "train.py:10")
        ]
        assert [one.name for one in comparison.setup] == ["emulated device"]


def test_show_says_so(recordings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(recordings / "redacted")]) == 0
    sentence = "  redacted: paths, names of user and host, and the command were left out"
    assert sentence in capsys.readouterr().out
    assert main(["show", str(recordings / "plain")]) == 0
    shown = capsys.readouterr().out
    assert "redacted" not in shown
    assert "telltale-key" not in shown


def test_a_recording_is_its_owners_alone(recordings: Path) -> None:
    path = recordings / "plain"
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in path.rglob("*") if entry.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in (path, path / "rank0")} == {0o700}
    assert json.loads((path / "manifest.json").read_text())["options"]["redact"] is False
