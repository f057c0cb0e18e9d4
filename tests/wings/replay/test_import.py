"""`lockstep replay --import`: a custom autograd function is run again where it is named, and never otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import main

FUNCTIONS = """
import torch


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * x * scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * ctx.scale * gradient, None


def plain(x):
    return x
"""

DIES = "raise SystemExit('a training has begun')\n"

TRAINING = """
import torch
import lockstep
import own_functions

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with lockstep.record("run", model=model, steps="0:1", save="tensors"):
    own_functions.Cubed.apply(model(torch.randn(5, 4)), 0.5).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording `run` of a training with a function of its own, and that function beside it."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "own_functions.py").write_text(FUNCTIONS)
    (folder / "dies.py").write_text(DIES)
    (folder / "train.py").write_text(TRAINING)
    subprocess.run([programs / "python", "train.py"], cwd=folder, check=True)
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work where the training is, with processes that start at once, and forget what was imported."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_functions", None)


CUBED = ["replay", "run", "--only", "*Cubed"]
NAMED = ["--import", "own_functions:Cubed"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = main([*CUBED, *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_custom_function_that_is_named_is_run_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # When a call of a custom function is run again, which is named
    code, said = _json(capsys, *NAMED)

    # Then it is held forward and backward, as recorded and as made again
    assert code == 0
    (call,) = said["calls"]
    assert {result["role"] for result in call["results"]} == {"output", "grad_input"}
    makers = [made["maker"] for result in call["results"] for made in result["made"]]
    assert makers == ["recorded", "cpu"] * 2
    assert "own_functions" not in sys.modules, "it is imported in the confined process"


def test_one_that_is_not_named_is_never_imported(capsys: pytest.CaptureFixture[str]) -> None:
    # Given that it was imported for an earlier question
    main([*CUBED, *NAMED])
    capsys.readouterr()

    # When it is not named, then it is not run, and how it would be is said
    assert main(CUBED) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "not run again: own_functions.Cubed is not an operator of torch" in said
    assert "can be imported, and you trust it: --import own_functions:Cubed" in said


@pytest.mark.exhaustive
def test_a_recorded_result_that_it_does_not_give_is_off(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given that the function is another one than when it was recorded
    (tmp_path / "own_functions.py").write_text(FUNCTIONS.replace("x * x * x", "1.01 * x * x * x"))
    os.chdir(tmp_path)

    # When it is run again
    code = main(["replay", str(folder / "run"), "--only", "*Cubed", *NAMED, "--json"])

    # Then what was recorded is off
    assert code == 1
    (call,) = json.loads(capsys.readouterr().out)["calls"]
    assert call["conclusion"] in ("off as recorded", "transient")


def test_it_is_a_link_of_a_chain_and_of_a_written_test(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a test of it is written
    proof = tmp_path / "proof"
    assert main([*CUBED, *NAMED, "--write-test", str(proof)]) == 0
    assert f"  env PYTHONPATH={folder} " in capsys.readouterr().out

    # Then the test imports it from where it is, and passes
    text = (proof / "test_cubed.py").read_text()
    assert "    import own_functions\n" in text
    assert "own_functions.Cubed.apply(" in text
    assert "custom function of `own_functions`" in (proof / "README.md").read_text()
    values: dict[str, Any] = {"__file__": str(proof / "test_cubed.py"), "__name__": "test_cubed"}
    exec(compile(text, "test_cubed.py", "exec"), values)
    values["test_cubed"]()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("own_functions", "give the module and the class in it, as in my_package.functions:Scale"),
        ("own_functions:Cubed()", "give the module and the class in it"),
        ("os; import sys:path", "give the module and the class in it"),
        ("own_function:Cubed", "there is no module 'own_function'; it is looked for in"),
        ("own_functions:Cube", "has no Cube; its custom functions are Cubed"),
        ("own_functions:plain", "plain is no torch.autograd.Function"),
        ("dies:Cubed", "importing dies failed, SystemExit: a training has begun"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(
    capsys: pytest.CaptureFixture[str], named: str, words: str
) -> None:
    assert main([*CUBED, "--import", named]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_an_import_that_no_call_is_of_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", "run", "--only", "*linear", *NAMED])
    assert "own_functions:Cubed: no call that was chosen is one of it" in capsys.readouterr().err
