"""`lockstep replay`: a fault is proven on one operator, its sound twin is silent, and bad input is one sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lockstep
from lockstep.cli.main import main


class Net(torch.nn.Module):
    """One operator of each sort: a product on a transposed weight, an activation, dropout, a norm, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 24)
        self.first.weight = torch.nn.Parameter(torch.randn(8, 24).t() * 0.3)
        self.norm = torch.nn.LayerNorm(24)
        self.drop = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.drop(F.gelu(self.first(x))))
        query, key, value = hidden.unsqueeze(1).split(8, -1)
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=0.2)
        return self.last(mixed).squeeze(1)


def _train(folder: Path, *, save: str = "tensors", emulate: str = "") -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with lockstep.record(folder, model=model, steps="0:2", save=save, emulate=emulate):
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(
                model(torch.randn(6, 5, 8)).flatten(0, 1), torch.zeros(30).long()
            )
            loss.backward()
            optimizer.step()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sound`, `wrong` on a device whose gelu is 2 % too large, and `sketch` without whole tensors."""
    folder = tmp_path_factory.mktemp("replay")
    _train(folder / "sound")
    _train(folder / "wrong", emulate="wrong:gelu:scale:1.02")
    _train(folder / "sketch", save="sketch")
    return folder


def _json(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = main(["replay", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_recording_reports_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # When all of a sound training is run again
    code, said = _json(capsys, runs / "sound", "--whole")

    # Then every result is held, forward, backward and update, random ones too, and none is off
    assert (code, said["beyond"], said["not_run_again"]) == (0, 0, [])
    ops = {call["op"].rpartition(".")[2] for call in said["calls"]}
    assert {"linear", "gelu", "dropout", "layer_norm", "AdamW"} <= ops
    assert "scaled_dot_product_attention" in ops
    roles = {result["role"] for call in said["calls"] for result in call["results"]}
    assert {"output", "grad_input", "param_grad", "param_after", "state_after"} <= roles
    made = [held for call in said["calls"] for result in call["results"] for held in result["made"]]
    assert {held["maker"] for held in made} == {"recorded", "cpu"}
    assert said["held"] == len(made) > 200


def test_the_origin_is_persistent_on_the_device_that_is_wrong(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When the origin is run again on the device that it was recorded on, three times
    code, said = _json(
        capsys, runs / "sound", runs / "wrong", "--emulate", "wrong:gelu:scale:1.02", "--repeat", 3
    )

    # Then it is off each time, by what is wrong with it
    candidate = next(call for call in said["calls"] if call["run"] == "candidate")
    assert (code, candidate["op"]) == (1, "torch.nn.functional.gelu")
    assert candidate["conclusion"] == "persistent"
    assert said["computes_instead"] == "the result times 1.02"
    output = candidate["results"][0]
    assert [held["maker"] for held in output["made"]] == ["recorded"] + [
        "wrong:gelu:scale:1.02"
    ] * 3
    assert all(held["error"] == pytest.approx(0.02, rel=1e-3) for held in output["made"])
    assert all(held["sound"] for result in candidate["results"][1:] for held in result["made"])


def test_what_one_run_had_and_no_re_run_has_is_transient(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # Given a training in which something other than the device spoiled one result
    right = F.gelu

    def spoiled(x: torch.Tensor, **settings: Any) -> torch.Tensor:
        made = right(x, **settings)
        with torch.no_grad():
            made.view(-1)[3] += 1.0
        return made

    F.gelu = spoiled
    try:
        _train(tmp_path / "flipped")
    finally:
        F.gelu = right

    # When that operator is run again where it was recorded
    code, said = _json(capsys, tmp_path / "flipped", "--only", "*gelu", "--steps", 0, "--repeat", 2)

    # Then the recording alone is blamed; on the sound twin there is nothing to blame
    assert code == 0, "the operator itself returned the sound result, which was spoiled behind it"
    assert {call["conclusion"] for call in said["calls"]} == {"sound"}
    code, said = _json(capsys, runs / "wrong", "--only", "*gelu", "--steps", 0)
    assert code == 1
    assert {call["conclusion"] for call in said["calls"]} == {"off as recorded"}, (
        "recorded on an emulated device, run again on another one"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_another_dtype_is_held_against_what_that_dtype_can(
    runs: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    code, said = _json(capsys, runs / "sound", "--only", "norm", "--steps", 0, "--dtype", dtype)
    assert code == 0
    output = said["calls"][0]["results"][0]["made"][1]
    assert output["maker"] == f"cpu as {dtype}"
    assert (output["error"] > 1e-4) is (dtype != "float64")
    assert {one["reason"] for one in said["not_run_again"]} == {
        "updates are made in the dtypes of their parameters alone"
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_no_more_is_allowed_than_one_rounding_makes(
    runs: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    # When an operator that is 2 % too large is run again in a dtype of two or three digits
    wrong = ["--dtype", dtype, "--emulate", "wrong:gelu:scale:1.02"]
    code, said = _json(capsys, runs / "sound", "--only", "*gelu", "--steps", 0, *wrong)

    # Then that is more than a sound kernel may be off
    assert code == 1
    made = said["calls"][0]["results"][0]["made"][1]
    assert made["error"] == pytest.approx(0.02, rel=0.2)
    assert made["allowed"] < 0.015


def test_dropout_that_drops_nothing_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drop = torch.nn.Dropout(0.0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), drop)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(tmp_path / "run", model=model, steps="0:1", save="tensors"):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    code, said = _json(capsys, tmp_path / "run", "--only", "1")

    assert (code, said["not_run_again"]) == (0, [])
    assert {held["maker"] for held in said["calls"][0]["results"][0]["made"]} == {"recorded", "cpu"}


def test_a_device_that_rounds_is_found_without_a_reference_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a sound recording is run again on a device that rounds the inputs of products
    assert (
        main(["replay", str(runs / "sound"), "--whole", "--emulate", "tf32", "--limit", "1"]) == 1
    )

    # Then its products are off, each on the recorded inputs, and the rest is not
    said = capsys.readouterr().out
    beyond = int(re.search(r"(\d+) calls beyond", said)[1])
    assert 4 <= beyond <= 10
    assert "first / torch.nn.functional.linear #0" in said
    assert f"and {beyond - 1} more" in said
    assert "layer_norm" not in said


def test_a_written_test_stands_alone(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a test of the origin is written
    folder = tmp_path / "proof"
    arguments = ["replay", str(runs / "sound"), str(runs / "wrong"), "--write-test", str(folder)]
    assert main(arguments) == 1
    assert f"wrote {folder / 'test_gelu.py'}" in capsys.readouterr().out

    # Then it knows neither Lockstep nor the training, passes here, and fails where gelu is wrong
    text = (folder / "test_gelu.py").read_text()
    assert "import lockstep" not in text
    assert "computes instead: the result times 1.02." in (folder / "README.md").read_text()
    assert _tested(folder).returncode == 0
    (folder / "conftest.py").write_text(
        "import torch\nright = torch.nn.functional.gelu\n"
        "torch.nn.functional.gelu = lambda x, **settings: 1.02 * right(x, **settings)\n"
    )
    failed = _tested(folder)
    assert failed.returncode == 1
    assert (
        "output result: off by 0.02 of its norm; a sound kernel is off by at most" in failed.stdout
    )

    # And it is not written over
    assert main(arguments) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("first / torch.nn.functional.linear #0", "linear"),
        ("drop / torch.nn.functional.dropout #0", "dropout"),
        ("(model) / torch.nn.functional.scaled_dot_product_attention #0", "attention"),
        ("(model) / torch.Tensor.split #0", "split"),
    ],
)
def test_each_sort_of_operator_can_be_written_down(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], site: str, name: str
) -> None:
    folder = tmp_path / "proof"
    arguments = ["--only", site, "--steps", "1", "--write-test", str(folder)]
    assert main(["replay", str(runs / "sound"), *arguments]) == 0
    capsys.readouterr()
    (test,) = folder.glob(f"test_*{name}.py")
    values: dict[str, Any] = {"__file__": str(test), "__name__": test.stem}
    exec(compile(test.read_text(), test, "exec"), values)
    values[test.stem]()
    facts = json.loads((folder / "facts.json").read_text())
    if name == "linear":
        assert facts["layouts"]["weight"]["strides"] == [1, 24]
    if name == "attention":
        assert {facts["layouts"][f"args_{n}"]["memory"] for n in range(3)} == {0}


def _tested(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a written test as its receiver does, without Lockstep to be had."""
    hidden = folder.parent / "hidden"
    hidden.mkdir(exist_ok=True)
    (hidden / "lockstep.py").write_text("raise ImportError('there is no Lockstep here')\n")
    left_out = ("-p", "no:cacheprovider", "-p", "no:lockstep-gate")  # which comes with Lockstep
    command = [sys.executable, "-m", "pytest", "-q", *left_out, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(hidden)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sound"], "which operators\\? give --only PATTERN, --whole, or a second recording"),
        (["sound", "--whole", "--only", "norm"], "--whole, --only and --module: give one of them"),
        (["sound", "--only", "nrom"], "matches no module and no operator; nearest: norm"),
        (["sound", "--only", "norm", "--steps", "9"], "has no step 9; it has 0-1"),
        (["sound", "--only", "norm", "--ranks", "rank7"], "has no rank7; it has rank0"),
        (["sound", "--whole", "--device", "nowhere"], "--device nowhere: not to be had here"),
        (["sound", "--whole", "--device", "meta"], "--device meta: not to be had here"),
        (["sound", "--whole", "--dtype", "int8"], "--dtype int8: torch has no such floating"),
        (["sound", "--whole", "--emulate", "abacus"], "abacus"),
        (
            ["sketch", "--only", "norm"],
            "record --only norm --save tensors --steps 0[,1]* --exit-after -o \\S*sketch-whole --",
        ),
        (["sketch", "--whole"], "no tensor of .* was saved whole"),
        (["sound", "sound2"], "no origin is named; give --only SITE, or --whole"),
        (["nothing", "--whole"], "nothing"),
    ],
)
def test_bad_input_is_one_sentence(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(runs)
    if "sound2" in arguments and not Path("sound2").exists():
        _train(Path("sound2"))
    assert main(["replay", *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said)
    assert "Traceback" not in said
