"""`lockstep replay --module`: what accumulates through a module is seen, and what could not be chained is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lockstep
from lockstep.cli.main import main

WRONG = "wrong:gelu:scale:1.02"


class Doubled(torch.autograd.Function):
    """Nothing that torch has a name for."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 2


class Block(torch.nn.Module):
    """A norm that keeps statistics, dropout, an activation in place, and what a script may do besides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.drop = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, way: str) -> torch.Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        if way == "through a view":
            hidden = hidden.clone()
            hidden[:, 0].mul_(2)
        if way == "a slice and its copy":
            places = torch.arange(18).view(6, 3)[:, 1:].contiguous().view(-1)
            hidden = hidden + places[:6].unsqueeze(1)
        if way == "custom":
            hidden = Doubled.apply(hidden)
        return F.relu_(self.last(self.drop(hidden)))


class Net(torch.nn.Module):
    """Two blocks, of which the second is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.ModuleList([Block(), torch.nn.Linear(16, 2)])

    def forward(self, x: torch.Tensor, way: str) -> torch.Tensor:
        return self.body[1](self.body[0](x, way))


def _train(folder: Path, way: str = "", *, emulate: str = "", save: str = "tensors") -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with lockstep.record(folder, model=model, steps="0:1", save=save, emulate=emulate):
        model(torch.randn(6, 8), way).square().mean().backward()
        optimizer.step()
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sound`, `wrong` on a device whose gelu is 2 % too large, and `sketch` without whole tensors."""
    folder = tmp_path_factory.mktemp("modules")
    _train(folder / "sound")
    _train(folder / "wrong", emulate=WRONG)
    _train(folder / "sketch", save="sketch")
    return folder


def _module(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = main(["replay", *map(str, arguments), "--module", "body.0", "--json"])
    (found,) = json.loads(capsys.readouterr().out)["modules"]
    return code, found


def _made(module: dict[str, Any]) -> dict[str, bool]:
    (result,) = module["results"]
    return {made["maker"]: made["sound"] for made in result["made"]}


def test_a_sound_module_is_what_its_calls_give_together(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a module with dropout, statistics and an activation in place is run again
    code, module = _module(capsys, runs / "sound")

    # Then every call is in the chain, and its result is sound, recorded and made again
    assert (code, _made(module)) == (0, {"recorded": True, "cpu": True})
    ops = [call["op"].rpartition(".")[2] for call in module["calls"]]
    assert ops == ["linear", "add_", "batch_norm", "gelu", "dropout", "linear", "relu_"]
    assert all(call["chained"] for call in module["calls"])
    assert all((call["off_in_the_chain"] or 0) < 1e-6 for call in module["calls"])
    assert not any(call["inputs_that_no_call_gave"] for call in module["calls"])


def test_what_is_wrong_in_one_call_is_seen_in_all_behind_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When the module of a device whose gelu is 2 % too large is run again
    code, module = _module(capsys, runs / "wrong")

    # Then its recorded result is off, the one made here is not, and of its calls gelu alone is
    assert (code, _made(module)) == (1, {"recorded": False, "cpu": True})
    off = [call["op"] for call in module["calls"] if call["conclusion"] != "sound"]
    assert off == ["torch.nn.functional.gelu"]
    behind = [(call["off_in_the_chain"] or 0) > 1e-3 for call in module["calls"]]
    assert behind == [False, False, False, True, True, True, True]


def test_a_machine_that_is_off_is_seen_on_a_sound_recording(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, module = _module(capsys, runs / "sound", "--emulate", WRONG)
    assert (code, _made(module)) == (1, {"recorded": True, WRONG: False})


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("custom", "is not an operator of torch; the chain goes on from what was recorded of it"),
        ("through a view", "no recorded call gave it (written to through a view, or by code"),
    ],
)
def test_what_cannot_be_chained_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, words: str
) -> None:
    # Given a module with a call whose effect cannot be made again
    run = _train(tmp_path / "run", way)

    # When it is run again
    assert main(["replay", str(run), "--module", "body.0"]) == 0

    # Then the chain goes on from what was recorded, and says so
    said = " ".join(capsys.readouterr().out.split())
    assert "Not in the chain" in said
    assert words in said


@pytest.mark.parametrize("way", ["", "a slice and its copy"])
def test_the_sound_module_leaves_nothing_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    run = _train(tmp_path / "run", way)
    assert main(["replay", str(run), "--module", "body.0"]) == 0
    assert "Not in the chain" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "ends"), [("sound", [True]), ("wrong", [True, False])])
def test_a_written_test_of_a_module_stands_alone(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, ends: list[bool]
) -> None:
    # When a test of a module is written
    folder = tmp_path / "proof"
    main(["replay", str(runs / name), "--module", "body.0", "--write-test", str(folder)])
    assert f"wrote {folder / 'test_block.py'}" in capsys.readouterr().out

    # Then it passes here, and what a wrong device recorded fails
    text = (folder / "test_block.py").read_text()
    assert "lockstep" not in text.replace("Written by Lockstep", "")
    assert text.count("results = as_tuple(") == 7
    assert list(_ends(folder)) == ends
    assert "The test runs the calls in it" in (folder / "README.md").read_text()


def test_a_written_test_fails_where_a_kernel_is_wrong(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the written test of a sound module
    folder = tmp_path / "proof"
    main(["replay", str(runs / "sound"), "--module", "body.0", "--write-test", str(folder)])
    right = F.gelu

    # When gelu is wrong where it runs, then it fails; with the right one it passes
    monkeypatch.setattr(F, "gelu", lambda x, **settings: 1.02 * right(x, **settings))
    assert list(_ends(folder)) == [False]
    monkeypatch.undo()
    assert list(_ends(folder)) == [True]


def _ends(folder: Path) -> Iterator[bool]:
    """Whether each test of a written folder passes."""
    (test,) = folder.glob("test_*.py")
    values: dict[str, Any] = {"__file__": str(test), "__name__": test.stem}
    exec(compile(test.read_text(), test, "exec"), values)
    for name in [name for name in values if name.startswith("test_")]:
        try:
            values[name]()
        except AssertionError:
            yield False
        else:
            yield True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sketch", "--module", "body.0"], "record --only body.0 --save tensors --steps 0"),
        (["sound", "--module", "body.*"], "names 2 calls of modules; give one of them: body.0 / "),
        (["sound", "--module", "bdy.0"], "nearest: body.0"),
        (
            ["sound", "--module", "body.0", "--whole"],
            "--whole, --only and --module: give one of them",
        ),
        (["sound", "--module", "body.0", "--shrink"], "--module: leave out --dtype, --shrink and"),
    ],
)
def test_a_wrong_question_is_one_sentence(
    runs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(runs)
    assert main(["replay", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
