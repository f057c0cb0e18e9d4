"""`lockstep compare` as a user meets it: exit codes, files, and one clear sentence for bad input."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch

import lockstep
from lockstep.cli.main import main

Make = Callable[..., Path]


class Net(torch.nn.Module):
    """A model with room for one fault."""

    def __init__(self, width: int, slope: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.second = torch.nn.Linear(width, 4)
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.leaky_relu(self.first(x), self.slope))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Record a tiny training in this process."""

    def run(
        *,
        width: int = 16,
        slope: float = 0.01,
        steps: int = 2,
        save: str = "sketch",
        batch: int = 5,
    ) -> Path:
        path = tmp_path_factory.mktemp("made") / "recording"
        torch.manual_seed(0)
        model = Net(width, slope)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, targets = torch.randn(batch, 8), torch.randn(batch, 4)
        with lockstep.record(path, model=model, steps=f"0:{steps}", save=save):
            for _ in range(steps):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
        return path

    return run


@pytest.fixture(scope="module")
def reference(make: Make) -> Path:
    """A recording to trust."""
    return make()


@pytest.fixture(scope="module")
def faulty(make: Make) -> Path:
    """A recording of the same training with another slope."""
    return make(slope=0.02)


@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_faulty_pair_exits_with_one_and_names_the_operator(
    make: Make, capsys: pytest.CaptureFixture[str], save: str
) -> None:
    # given a pair with one fault, at any weight
    reference, candidate = make(save=save), make(save=save, slope=0.02)
    # when it is compared
    code = main(["compare", str(reference), str(candidate)])
    # then the first line says where, and the source line is the user's
    printed = capsys.readouterr().out
    assert code == 1
    assert printed.startswith(
        "DIVERGED at step 0, forward of the model (torch.nn.functional.leaky_relu)"
    )
    assert "test_compare.py:" in "".join(printed.splitlines()[:2])
    assert "0.01 in the reference and 0.02 in the candidate" in " ".join(printed.split())


def test_sound_pair_exits_with_zero(
    make: Make, reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(reference), str(make())]) == 0
    assert capsys.readouterr().out.startswith("AGREE")


def test_recording_with_tensors_compares_with_one_of_sketches(make: Make, reference: Path) -> None:
    assert main(["compare", str(reference), str(make(save="tensors"))]) == 0


def test_json_has_every_key_of_the_contract(
    reference: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # when a comparison is printed as JSON
    main(["compare", str(reference), str(faulty), "--json"])
    result = json.loads(capsys.readouterr().out)
    # then every key is there, with its kind of value
    assert {key: type(value) for key, value in result.items()} == {
        "schema": int,
        "verdict": str,
        "outcome": str,
        "origin": dict,
        "headline": str,
        "exit_code": int,
        "origins": list,
        "steps": list,
        "trained": dict,
        "ends": dict,
        "windows": list,
        "step_logs": type(None),
        "inherited": int,
        "compared": int,
        "equal": int,
        "equal_numbers": int,
        "inside_tolerance": int,
        "beyond_tolerance": int,
        "unjudged": int,
        "missing": int,
        "unaligned": dict,
        "unaligned_calls": list,
        "other_classes": list,
        "setup": list,
        "not_compared": list,
        "gaps": list,
        "unrecorded": list,
        "compiled": list,
        "ranks": dict,
        "endings": list,
        "crashes": list,
        "notes": list,
        "remarks": list,
        "what_next": dict,
        "judged_by": str,
        "laws": dict,
        "uniform": list,
        "events": list,
    }
    origin = result["origin"]
    assert origin == result["origins"][0]
    assert (origin["step"], origin["rank"], origin["phase"], origin["module"]) == (
        0,
        0,
        "forward",
        "",
    )
    assert {
        "op",
        "call",
        "role",
        "index",
        "source",
        "metrics",
        "tolerance",
        "margin",
        "reason",
    } <= origin.keys()
    assert {"cosine", "max_abs", "rel_l2"} <= origin["metrics"].keys()


def test_reports_are_written_and_never_overwritten(
    reference: Path, faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given reports written once
    arguments = ["compare", str(reference), str(faulty), "-o", str(tmp_path / "out")]
    assert main(arguments) == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.csv",
        "comparison.html",
        "comparison.json",
        "comparison.md",
        "comparison.trace.json",
        "comparison.xlsx",
    ]
    with (tmp_path / "out" / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (
        {"Yes", "No"} >= {row["Accuracy Reached or Not"] for row in rows if row["Cosine"]} != set()
    )
    # when they are asked for again, then nothing is touched without --force
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 1


def test_pairs_below_a_cosine_are_listed(
    reference: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(reference), str(faulty), "--cosine", "0.9999999", "--limit", "3"])
    assert "Pairs with a cosine under 1" in capsys.readouterr().out


def test_fixed_rule_is_there_on_request(
    reference: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a fault that the fixed rule does not see
    assert (
        main(["compare", str(reference), str(make(slope=0.0101)), "--judge", "fixed", "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["judged_by"] == "fixed"
    # then the error model does
    assert main(["compare", str(reference), str(make(slope=0.0101))]) == 1


def failed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, expect exit code 2 and one sentence on stderr; returns it."""
    assert main(["compare", *arguments]) == 2
    captured = capsys.readouterr()
    sentence = captured.err.strip() or captured.out.strip().splitlines()[0]
    assert "Traceback" not in sentence
    assert len(sentence.splitlines()) == 1
    return sentence


def test_recording_compared_with_itself_is_refused(
    reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "same recording" in failed([str(reference), str(reference)], capsys)


def test_copy_of_a_recording_agrees(reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "copy")
    assert main(["compare", str(reference), str(tmp_path / "copy")]) == 0


def test_different_models_cannot_be_compared(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a recording of something else
    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(2)
    )
    inputs = torch.randn(2, 1, 9)
    model(inputs)
    optimizer = torch.optim.Adam(model.parameters())
    with lockstep.record(tmp_path / "other", model=model, steps="0:1"):
        model(inputs).sum().backward()
        optimizer.step()
    # then the sentence says that the models differ
    assert "model" in failed([str(reference), str(tmp_path / "other")], capsys)


def test_different_step_counts_are_said(
    reference: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = make(steps=3)
    assert "step" in failed([str(reference), str(longer)], capsys)
    # and the steps that both have can be chosen
    assert main(["compare", str(reference), str(longer), "--steps", "0:2"]) == 0


def test_different_rank_counts_are_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(reference, tmp_path / "two")
    shutil.copytree(reference / "rank0", tmp_path / "two" / "rank1")
    manifest = tmp_path / "two" / "rank1" / "manifest.json"
    other = {**json.loads(manifest.read_text()), "rank": "rank1"}
    del other["digest"]
    manifest.write_text(json.dumps(other))
    assert "rank1" in failed([str(reference), str(tmp_path / "two")], capsys)


def test_missing_empty_and_foreign_directories_are_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such directory" in failed([str(reference), str(tmp_path / "nowhere")], capsys)
    assert "is empty" in failed([str(reference), str(tmp_path)], capsys)
    (tmp_path / "file.txt").write_text("hello")
    assert "not a Lockstep recording" in failed([str(tmp_path), str(reference)], capsys)
    assert "is a file" in failed([str(tmp_path / "file.txt"), str(reference)], capsys)


def test_future_version_is_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(reference, tmp_path / "future")
    manifest = json.loads((tmp_path / "future" / "manifest.json").read_text())
    (tmp_path / "future" / "manifest.json").write_text(json.dumps({**manifest, "schema": 99}))
    assert "upgrade" in failed([str(reference), str(tmp_path / "future")], capsys)


def test_a_table_that_was_changed_is_said(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(reference, tmp_path / "broken")
    file = tmp_path / "broken" / "rank0" / "records-00000.parquet"
    pl.read_parquet(file).drop("role").write_parquet(file)
    sentence = failed([str(reference), str(tmp_path / "broken")], capsys)
    assert "was changed: it has " in sentence
    assert "records-00000.parquet" in sentence


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: (2**40).to_bytes(8, "little") + data[8:],
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[9,', 1),
        lambda data: data.replace(b'"shape":[', b'"shape":[99999999999999999999,', 1),
    ],
    ids=["header-length", "truncated", "offset", "shape-overflow"],
)
def test_damaged_tensor_file_is_said(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    # given two recordings of whole tensors that differ, one with a damaged file
    reference, candidate = make(save="tensors"), make(save="tensors", slope=0.02)
    shutil.copytree(candidate, tmp_path / "broken")
    file = next((tmp_path / "broken" / "rank0").glob("*.safetensors"))
    file.write_bytes(damage(file.read_bytes()))
    # then one sentence names the file
    assert file.name in failed([str(reference), str(tmp_path / "broken")], capsys)


def test_report_that_cannot_be_written_is_said(
    reference: Path, faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = [str(reference), str(faulty)]
    assert "does not exist" in failed([*pair, "--csv", str(tmp_path / "no" / "pairs.csv")], capsys)
    assert "is a directory" in failed([*pair, "--csv", str(tmp_path), "--force"], capsys)
    (tmp_path / "taken").write_text("")
    assert "taken" in failed([*pair, "-o", str(tmp_path / "taken")], capsys)


def test_unknown_steps_are_said(
    reference: Path, faulty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there are steps 0-1" in failed([str(reference), str(faulty), "--steps", "7"], capsys)


def test_comparing_loads_no_torch(reference: Path, faulty: Path) -> None:
    # given the comparison in a process of its own
    code = (
        "import sys; from lockstep.cli.main import main;"
        f"code = main(['compare', {str(reference)!r}, {str(faulty)!r}]);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    # then torch is never imported
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1, done.stderr
