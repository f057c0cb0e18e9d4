"""precision_tool's calls in a script of TensorFlow 1, from the original script to the named operator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

SCRIPT = str(Path(__file__).parents[4] / "examples" / "compat" / "resnet_main.py")


def in_folder(folder: Path, *command: str) -> str:
    """What a command prints in a folder."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


def asked(folder: Path, *lines: str) -> str:
    """What the prompt answers."""
    typed = [word for line in lines for word in ("-c", line)]
    return in_folder(folder, "-m", "lockstep_interop_names.precision_tool.cli", *typed)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, forks: list[str]) -> Path:
    """A folder in which the reference and a faulty training were dumped."""
    folder = tmp_path_factory.mktemp("precision")
    in_folder(folder, *forks, SCRIPT, "--action", "sess_dump")
    in_folder(folder, *forks, SCRIPT, "--action", "dump", "--device-fault")
    return folder


def test_the_whole_network_is_compared_and_the_operator_named(dumped: Path) -> None:
    found = asked(dumped, "ac -c")
    assert "DIVERGED at step 0, forward of block2.conv1 (tf.Conv2D), resnet_main.py:" in found
    assert 'padding is "SAME" in the reference and "EXPLICIT" in the candidate' in found


def test_pairs_under_a_cosine_are_listed_and_no_more_than_asked_for(dumped: Path) -> None:
    found = asked(dumped, "vcs -c 0.98 -l 10").splitlines()
    assert "by Cosine, under 0.98" in found[0]
    rows = [line for line in found if line.startswith("inherited")]
    assert 1 <= len(rows) <= 10
    assert all(float(row.split()[1]) < 0.98 for row in rows)


def test_a_dump_is_of_the_graph_as_it_is_written(dumped: Path) -> None:
    reference = lockstep.open(dumped / "precision_data" / "tf" / "dump").ranks["rank0"]
    candidate = lockstep.open(dumped / "precision_data" / "npu" / "debug_0").ranks["rank0"]
    assert any("Grappler" in gap.what for gap in reference.manifest.not_seen)
    assert not any("Grappler" in gap.what for gap in candidate.manifest.not_seen)


@pytest.mark.parametrize(("large", "first"), [([], ""), (["--large"], "out of loss / tf.Log #0")])
def test_an_overflow_is_named_and_a_sound_training_has_none(
    tmp_path: Path, forks: list[str], large: list[str], first: str
) -> None:
    in_folder(tmp_path, *forks, SCRIPT, "--action", "overflow", "--steps", "2", *large)
    found = asked(tmp_path, "ac")
    assert first in found
    assert found.startswith("0 results") is not bool(large)


def test_fusion_off_records_nothing_and_trains_the_same(tmp_path: Path, forks: list[str]) -> None:
    bare = in_folder(tmp_path, *forks, SCRIPT, "--steps", "2")
    off = in_folder(tmp_path, *forks, SCRIPT, "--steps", "2", "--action", "fusion_off")
    assert bare.splitlines()[-1].startswith("step 1: loss")
    assert off.splitlines()[-1].startswith("step 1: loss")
    assert not (tmp_path / "precision_data").exists()
