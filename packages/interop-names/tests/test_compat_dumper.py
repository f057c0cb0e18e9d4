"""torch.utils.dumper and msaccucmp where only the import is another."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep.testing import MadeTraining, write_recording
from lockstep.testing.made_dumps import ptdbg_dump
from lockstep_interop_names.dumper import dumper

EXAMPLE = Path(__file__).parents[3] / "examples" / "compat" / "dump_step.py"


def step(path: Path, *, scale: float = 1.0, seen: list[float] | None = None, **asked: Any) -> None:
    """One step as the migration guide has it, whose weights are `scale` times what they are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 2))
    model[0].weight.data.mul_(scale)
    inputs, wanted = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 2)
    with torch.utils.dumper(dump_path=path, **asked) as dump:  # type: ignore[attr-defined]
        loss = nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
    assert dump is not None
    if seen is not None:
        seen += [loss.item(), model[0].weight.grad.norm().item()]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the trusted device dumped."""
    path = tmp_path_factory.mktemp("dumper") / "model_gpu.h5"
    step(path, use_dump=True)
    return path


def test_the_listings_of_the_migration_guide_run_with_one_import_added(
    programs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given its listings, each run by itself
    said = []
    for device in ("gpu", "npu", "overflow"):
        command = [programs / "python", EXAMPLE, device]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr)
    # then the second ran on the inputs of the first, and the third names the operator
    assert "0 stand as they ran here" in said[1]
    assert "overflow at step 0, forward of the model (torch.Tensor.mul) at " in said[2]
    assert len(list((tmp_path / "overflow").glob("*.h5"))) == 1
    # and the guide's command compares the two
    monkeypatch.chdir(tmp_path)
    assert main(["msaccucmp", "compare", "-m", "./model_npu.h5", "-g", "./model_gpu.h5"]) == 0
    assert "rows" in capsys.readouterr().out


def test_one_step_is_one_file_in_the_published_layout(golden: Path) -> None:
    with h5py.File(golden) as file:
        assert set(file) == {
            "linear",
            "gelu",
            "mse_loss",
            "LinearBackward",
            "GeluBackward",
            "MseLossBackward",
        }
        assert sorted(file["linear"], key=int) == ["1", "3"]
        weight = file["/linear/1/input/arg_1"]
        assert weight.shape == (6, 4)
        assert {name: int(weight.attrs[name]) for name in ("Type", "DataType", "DeviceType")} == {
            "Type": 0, "DataType": 1, "DeviceType": 0,
        }  # fmt: skip
        assert weight.attrs["Stride"].tolist() == [4, 1]
        assert set(file["/LinearBackward/8/output"]) == {"arg_1", "arg_2"}


def test_operators_run_on_the_inputs_of_another_run(
    golden: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a device whose gelu is wrong, and weights that are not those of the file
    gelu = nn.functional.gelu
    monkeypatch.setattr(nn.functional, "gelu", lambda *args, **kwargs: 1.5 * gelu(*args, **kwargs))
    step(tmp_path / "free.h5", use_dump=True, scale=2.0)
    monkeypatch.undo()
    step(tmp_path / "model_npu.h5", use_dump=True, scale=2.0, load_file_path=golden)
    assert "8 passes ran on inputs of" in capsys.readouterr().err
    # then what entered and came out of a sound device is that of the file; run freely it is not
    arguments = [
        "msaccucmp",
        "compare",
        "-m",
        str(tmp_path / "model_npu.h5"),
        "-g",
        str(golden),
        "-out",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    (table,) = tmp_path.glob("result_*.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0])[6:16] == [
        "CosineSimilarity", "MaxAbsoluteError", "AccumulatedRelativeError", "RelativeEuclideanDistance",
        "KullbackLeiblerDivergence", "StandardDeviation", "MeanAbsoluteError", "RootMeanSquareError",
        "MaxRelativeError", "MeanRelativeError",
    ]  # fmt: skip
    assert max(float(row["RelativeEuclideanDistance"]) for row in rows) < 1e-6
    table.unlink()
    arguments[3] = str(tmp_path / "free.h5")
    assert main(arguments) != 0


def test_what_overflows_is_named_and_dumped_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step(tmp_path / "over.h5", scale=1e38, check_overflow=True)
    assert (
        "overflow at step 0, forward of the model (torch.nn.functional.mse_loss) at "
        in capsys.readouterr().err
    )
    with h5py.File(tmp_path / "over.h5") as file:
        assert "mse_loss" in file
        assert "linear" not in file
    step(tmp_path / "sound.h5", check_overflow=True)
    with h5py.File(tmp_path / "sound.h5") as file:
        assert not set(file)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gone.h5: ", {"use_dump": True, "load_file_path": "gone.h5"}),
    ("dump of the vendor's runtime", {"use_load": True, "load_with_acl_dump": True}),
    (
        "test_compat_dumper.py: File exists",
        {"use_dump": True, "dump_path": Path(__file__) / "x.h5"},
    ),
    ("h5py", {"use_dump": True}),
]


@pytest.mark.parametrize(("sentence", "asked"), WRONG, ids=[sentence for sentence, _ in WRONG])
def test_what_cannot_be_dumped_is_said_and_the_step_is_as_without(
    sentence: str,
    asked: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sentence == "h5py":
        monkeypatch.setitem(sys.modules, "h5py", None)
    bare: list[float] = []
    dumped: list[float] = []
    step(tmp_path / "bare.h5", seen=bare)
    step(**{"path": asked.pop("dump_path", tmp_path / "x.h5"), "seen": dumped, **asked})
    assert dumped == bare
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.glob("*.h5"))


def test_a_file_that_is_none_or_cut_off_is_said(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.h5"
    for content in (b"", b"no file of that kind", golden.read_bytes()[:700]):
        bad.write_bytes(content)
        arguments = [
            "msaccucmp",
            "compare",
            "-m",
            str(bad),
            "-g",
            str(golden),
            "-out",
            str(tmp_path),
        ]
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert str(bad) in said
        assert said.count("\n") == 1


def test_msaccucmp_takes_dumps_and_recordings_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a recording, and a dump of another tool with a wrong relu
    golden = write_recording(tmp_path / "golden", MadeTraining(whole=True))
    wrong: Callable[[np.ndarray], np.ndarray] = lambda value: value * np.float32(1.5)  # noqa: E731
    other = write_recording(tmp_path / "other", MadeTraining(whole=True, alter={"relu": wrong}))
    mine = ptdbg_dump(lockstep.open(other), tmp_path / "mine")
    assert (
        main(
            [
                "msaccucmp",
                "compare",
                "-m",
                str(mine),
                "-g",
                str(golden),
                "-out",
                str(tmp_path / "out"),
            ]
        )
        == 1
    )
    assert "(torch.nn.functional.relu)" in capsys.readouterr().out
    # and every tensor of the dump converted
    assert main(["msaccucmp", "convert", "-d", str(mine), "-out", str(tmp_path / "npy")]) == 0
    files = list((tmp_path / "npy").glob("relu.relu.*.output.0.npy"))
    assert files
    assert np.load(files[0]).dtype == np.float32


def test_the_name_is_where_scripts_look() -> None:
    assert torch.utils.dumper is dumper  # type: ignore[attr-defined]
