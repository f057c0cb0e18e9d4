"""`lockstep convert`: dumps as recordings, recordings as files for other tools, and both read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.testing import MadeTraining, write_recording


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A training with whole tensors, and the same with a wrong relu."""
    folder = tmp_path_factory.mktemp("made_for_convert")
    wrong = MadeTraining(whole=True, alter={"relu": lambda value: value * np.float32(1.05)})
    return write_recording(folder / "sound", MadeTraining(whole=True)), write_recording(
        folder / "wrong", wrong
    )


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "h5"])
def test_a_recording_as_files_is_read_again_in_its_order(
    form: str, pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "files"
    assert main(["convert", str(pair[1]), "-o", str(folder), "--as", form]) == 0
    assert "51 tensors in" in capsys.readouterr().out
    records, again = (list(lockstep.open(one).records()) for one in (pair[1], folder))
    names = [
        [(str(one.site), one.role, one.name, one.shape) for one in side]
        for side in (records, again)
    ]
    assert sorted(map(str, names[0])) == sorted(map(str, names[1]))
    order = [
        [one.name for one in sorted(side, key=lambda one: one.sequence)]
        for side in (records, again)
    ]
    assert order[0] == order[1]
    found = compare_recordings(pair[0], folder)
    assert [one.op for one in found.origins] == ["torch.nn.functional.relu"]
    assert "the order of the calls" not in found.unrecorded
    twin = compare_recordings(pair[1], folder)
    assert twin.verdict is Verdict.AGREE
    assert twin.compared == len(records)


def test_text_and_hdf5_hold_every_tensor(pair: tuple[Path, Path], tmp_path: Path) -> None:
    import h5py

    for form in ("txt", "h5"):
        assert main(["convert", str(pair[0]), "-o", str(tmp_path / form), "--as", form]) == 0
    text = (tmp_path / "txt" / "rank0-step0.txt").read_text()
    assert sum(line.startswith("# ") for line in text.splitlines()) == 51
    found: list[str] = []
    with h5py.File(tmp_path / "h5" / "rank0-step0.h5") as file:
        file.visititems(
            lambda name, value: found.append(name) if isinstance(value, h5py.Dataset) else None
        )
    assert len(found) == 51


def test_a_dump_as_a_recording_is_what_the_dump_is(
    probe_dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, output = (
        shutil.copytree(probe_dumps / "golden_tensor", tmp_path / "dump"),
        tmp_path / "recording",
    )
    assert main(["convert", str(dump), "-o", str(output)]) == 0
    direct = compare_recordings(dump, probe_dumps / "bad_tensor")
    shutil.rmtree(dump)  # the recording needs nothing of it any more
    found = compare_recordings(output, probe_dumps / "bad_tensor")
    assert (
        [one.op for one in found.origins]
        == [one.op for one in direct.origins]
        == ["torch.nn.functional.gelu"]
    )
    assert found.unrecorded == direct.unrecorded
    assert compare_recordings(output, probe_dumps / "golden_tensor").verdict is Verdict.AGREE
    record = next(
        one for one in lockstep.open(output).records() if one.site.op == "torch.nn.functional.gelu"
    )
    assert record.load().shape == record.shape
    # a second one goes over it when it is told to
    again = [str(probe_dumps / "golden_stat"), "-o", str(output)]
    assert main(["convert", *again]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", *again, "--force"]) == 0
    assert "tensors' elements" in [gap.what for gap in lockstep.open(output).manifest.not_seen]


def test_what_cannot_be_converted_leaves_nothing_and_says_why(
    probe_dumps: Path, pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = shutil.copytree(probe_dumps / "golden_tensor", tmp_path / "damaged")
    file = next(damaged.glob("step0/*/dump.json"))
    values = json.loads(file.read_text())
    values["data"]["odd"] = 3
    file.write_text(json.dumps(values))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    for arguments, words in (
        ([str(damaged), "-o", str(tmp_path / "out")], "odd is not a record"),
        ([str(pair[0]), "-o", str(tmp_path / "out")], "is a recording already"),
        ([str(tmp_path / "full"), "-o", str(tmp_path / "out")], "in no form that Lockstep reads"),
        ([str(tmp_path / "none"), "-o", str(tmp_path / "out")], "no such file or directory"),
        ([str(pair[0]), "-o", str(tmp_path / "full"), "--as", "npy"], "is not empty"),
        (
            [str(probe_dumps / "golden_stat"), "-o", str(tmp_path / "out2"), "--as", "npy"],
            "saved whole",
        ),
        ([str(pair[0]), "-o", "/proc/none/out", "--as", "npy"], "cannot be written"),
    ):
        assert main(["convert", *arguments]) == 2, arguments
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert [one.name for one in (tmp_path / "full").iterdir()] == ["mine"]


def test_names_that_no_file_may_have_stay_inside_of_the_folder(tmp_path: Path) -> None:
    hostile = MadeTraining(whole=True, spelling="../../../relu/x" + "y" * 300)
    recording = write_recording(tmp_path / "hostile", hostile)
    assert (
        main(["convert", str(recording), "-o", str(tmp_path / "deep" / "files"), "--as", "npy"])
        == 0
    )
    assert {one.name for one in tmp_path.iterdir()} == {"hostile", "deep"}
    assert sum(1 for _ in (tmp_path / "deep" / "files").rglob("*.npy")) == 51
    assert sum(1 for _ in lockstep.open(tmp_path / "deep" / "files").records()) == 51
