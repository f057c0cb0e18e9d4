"""`lockstep ops`: what a training runs, held against a list."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.devices.support_list import Standing, SupportList
from lockstep.store.reader import open_recording
from lockstep_operators.answers import WORKER_SEED, answered
from lockstep_operators.ran import RanOperator, TensorForm, ran_in

TRAINING = """
import tempfile

import torch

torch.distributed.init_process_group(
    "gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1
)

@torch.library.custom_op("mylib::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_autograd(lambda context, gradient: twice(gradient))
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
compiled = torch.compile(torch.nn.Linear(4, 3))
optimizer = torch.optim.Adam([*model.parameters(), *compiled.parameters()])
for step in range(9):
    optimizer.zero_grad()
    compiled(twice(model(torch.ones(2, 4)).t().t())).erfinv().nansum().backward()
    torch.distributed.all_reduce(model[0].weight.grad)
    optimizer.step()
torch.distributed.destroy_process_group()
print("trained to the end")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with an operator of its own and a compiled module."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(TRAINING)
    return path


def a_training(path: Path, level: str) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU(), torch.nn.LayerNorm(4))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with lockstep.record(path, model=model, steps="0:2", level=level, save="stats"):  # type: ignore[arg-type]
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).t().logsumexp(0).sum().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training at the level of the dispatcher."""
    return a_training(tmp_path_factory.mktemp("aten") / "run", "aten")


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["ops", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def operators(out: str) -> dict[str, dict[str, Any]]:
    return {one["operator"]: one for one in json.loads(out)["operators"]}


def test_a_command_shows_all_that_it_runs(
    script: Path,
    programs: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # when a training is run against what the CPU has, with time for all of it on a busy machine
    monkeypatch.setattr("lockstep_operators.times._MOST_SECONDS", 600.0)
    code, out, _ = run(capfd, "--target", "cpu", "--json", "--", programs / "python", script)

    # then forward, backward and optimizer were seen, and what was compiled
    found = operators(out)
    assert found["aten::addmm"]["calls"] == {"forward": 4, "backward": 0, "optimizer": 0}
    assert found["aten::silu_backward"]["calls"]["backward"] == 2
    assert found["aten::addcdiv_"]["calls"]["optimizer"] == 8
    assert {"aten::erfinv", "aten::nansum"} <= found.keys()
    # and each form of what was taken, with how it lies
    transposed = [tensor for form in found["aten::addmm"]["forms"] for tensor in form["inputs"]][2]
    assert (transposed["shape"], transposed["strides"]) == ([4, 4], [1, 4])
    # and an operator of the script's own, once a call, of which no list speaks
    assert found["mylib::twice"]["calls"] == {"forward": 2, "backward": 2, "optimizer": 0}
    assert found["mylib::twice"]["answer"] == "unknown"
    assert {name for name, one in found.items() if one["answer"] != "supported"} == {"mylib::twice"}
    assert code == 1
    # and what ranks say to each other is no operator of a device
    assert json.loads(out)["ran"]["collectives"] == {"c10d::allreduce_": 2}
    # and what each takes
    assert all(
        one["seconds"] > 0 for name, one in found.items() if name in ("aten::addmm", "aten::erfinv")
    )
    assert found["mylib::twice"]["seconds"] is None
    # and nothing that computes nothing
    assert not [name for name in found if name.startswith(("prim", "profiler"))]
    assert "trained to the end" not in out


def test_what_a_device_lacks_stands_first_and_its_twin_stays_silent(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a list of all that ran, and one without silu
    code, out, _ = run(capsys, recorded, "--target", "cpu", "--json")
    assert code == 0
    names = list(operators(out))
    whole, short = tmp_path / "whole.csv", tmp_path / "short.csv"
    whole.write_text("\n".join(["operator", *names]))
    short.write_text("\n".join(["# version: 7", "operator", *(set(names) - {"aten::silu"})]))

    # then the first has all of it
    code, out, _ = run(capsys, recorded, "--target", whole)
    assert code == 0
    assert out.startswith("SUPPORTED by whole.csv: all of")

    # and the second says what is missing, before all that is there
    code, out, _ = run(capsys, recorded, "--target", short)
    assert code == 1
    assert "1 not in the list" in out
    table = out.partition("operator  ")[2].splitlines()
    assert table[1].split()[:5] == ["aten::silu", "not", "in", "the", "list"]
    assert "list: 7; " in out


def test_what_takes_the_place_of_what_is_lacking_is_said(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a list without silu and without logsumexp, which torch composes, and without products
    _, out, _ = run(capsys, recorded, "--target", "cpu", "--json", "--no-rerun")
    lacking = {"aten::silu", "aten::logsumexp", "aten::mm"}
    listed = tmp_path / "short.csv"
    others = {"aten::sigmoid", "aten::sigmoid_backward", "aten::mul.Tensor", "aten::add.Tensor"}
    listed.write_text("\n".join(["operator", *(set(operators(out)) - lacking | others)]))

    # when what ran is held against it
    code, out, _ = run(capsys, recorded, "--target", listed, "--json")
    found = operators(out)

    # then silu has a form that was run beside it, forward and backward
    assert code == 1
    instead = found["aten::silu"]["instead"]
    assert instead["form"] == "self * torch.sigmoid(self)"
    assert (instead["proven"], instead["gradients"], instead["runs"]) == (True, True, 1)
    assert instead["cpu"]["copies"] == 2
    assert instead["cpu"]["copied_bytes"] == 2 * 2 * 4 * 4
    # and the composed one is not there, since its parts are not
    assert found["aten::logsumexp"]["answer"] == "not in the list"
    assert "of which the list lacks aten::" in found["aten::logsumexp"]["why"]
    # and what has no form is left to the CPU
    assert found["aten::mm"]["instead"]["form"] is None
    assert found["aten::mm"]["instead"]["proven"] is False

    # and the table says so, and nothing of what is there
    _, out, _ = run(capsys, recorded, "--target", listed)
    assert "instead of aten::silu\n  an equal form, proven forward and backward as it ran" in out
    assert "instead of aten::addmm" not in out

    # and nothing is proven where nothing is run
    _, out, _ = run(capsys, recorded, "--target", listed, "--json", "--no-rerun")
    assert operators(out)["aten::silu"]["instead"] is None
    assert operators(out)["aten::silu"]["seconds"] is None


def test_dtypes_are_held_against_those_of_the_list(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "half.csv"
    listed.write_text("operator,dtypes\naten::silu,float16\naten::addmm,float16 float32\n")
    _, out, _ = run(capsys, recorded, "--target", listed, "--json")
    found = operators(out)
    assert found["aten::silu"]["answer"] == "other dtypes only"
    assert found["aten::addmm"]["answer"] == "supported"


def test_an_operator_that_torch_picks_by_the_device_is_not_missing_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given attention, for which torch picks a kernel that no other device has
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters())
    with lockstep.record(tmp_path / "run", model=layer, steps="0:1", level="aten", save="stats"):
        x = layer(torch.ones(1, 2, 3, 4))
        torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
        optimizer.step()
    name = "aten::_scaled_dot_product_flash_attention_for_cpu"

    # then a device that has another one supports it
    _, out, _ = run(capsys, tmp_path / "run", "--target", "cuda", "--json")
    assert operators(out)[name]["answer"] == "supported"
    assert "torch picks by the device" in operators(out)[name]["why"]

    # and one that has none, and not what it would be composed of, does not
    listed = tmp_path / "chip.csv"
    listed.write_text("operator\naten::mm\n")
    _, out, _ = run(capsys, tmp_path / "run", "--target", listed, "--json")
    assert operators(out)[name]["answer"] == "not in the list"


def test_of_functions_of_the_api_no_more_is_said_than_their_names_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_path = a_training(tmp_path / "run", "api")
    code, out, _ = run(capsys, run_path, "--target", "mps", "--json")
    found = operators(out)
    assert found["torch.nn.functional.silu"]["answer"] == "supported"
    assert found["torch.nn.functional.layer_norm"]["answer"] == "unknown"
    assert code == 1
    # and not even where all names are there is it said that everything is
    everything = tmp_path / "all.csv"
    everything.write_text("\n".join(["operator", *found]))
    code, out, _ = run(capsys, run_path, "--target", everything)
    assert code == 1
    assert out.startswith("NOT ALL KNOWN TO BE SUPPORTED by all.csv: all of")
    assert "recorded were functions of the API" in out
    assert "--level aten" in out.splitlines()[-1]


def test_what_ran_out_of_sight_is_not_called_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a compiled module, recorded at its boundary
    layer = torch.nn.Linear(4, 4)
    compiled = torch.compile(layer, backend="eager")
    optimizer = torch.optim.SGD(layer.parameters())
    with lockstep.record(tmp_path / "run", model=layer, steps="0:1", level="aten", save="stats"):
        compiled(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    # when it is held against a list that has all that was seen
    code, out, _ = run(capsys, tmp_path / "run", "--target", "cpu", "--no-rerun")

    # then that is not the answer
    assert code == 1
    assert "all of" in out
    assert "not all is in sight" in out.replace("\n  ", " ")
    assert "compiled: recorded at its boundary only" in out.replace("\n  ", " ")


def test_without_a_list_operators_are_listed(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "operators.csv"
    code, out, _ = run(capsys, recorded, "-o", table)
    assert code == 0
    assert "--target compares them with a list" in out
    rows = list(csv.DictReader(table.read_text().splitlines()))
    silu = next(row for row in rows if row["operator"] == "aten::silu")
    assert (silu["forward"], silu["calls"], silu["shapes"]) == ("2", "2", "(2, 4)")
    # and a file that is there is not replaced
    code, _, err = run(capsys, recorded, "-o", table)
    assert (code, "exists" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either a recording, or a training's command after --"),
        (["run", "--", "true"], "give either a recording, or a training's command after --"),
        (["nothing"], "nothing"),
        (["--", "{python}", "-c", "import torch"], "no operators: "),
        (["--", "no-such-command"], "cannot be started"),
        (["--target", "abacus", "--", "true"], "--target abacus: no such list and no such file"),
    ],
)
def test_misuse_is_one_sentence(
    words: list[str], said: str, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capfd, *(word.format(python=programs / "python") for word in words))
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_recording_without_operators_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, a_training(tmp_path / "run", "module"), "--target", "cpu")
    assert code == 2
    assert "holds no operator; record it with" in err
    assert "--level aten" in err


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [("int64", (), (Standing.SUPPORTED, WORKER_SEED)), ("float32", (2, 4), (Standing.MISSING, ""))],
)
def test_the_seed_of_a_loaders_workers_is_named_as_such_and_random_numbers_are_not(
    dtype: str, shape: tuple[int, ...], expected: tuple[Standing, str], recorded: Path
) -> None:
    # given a draw as a data loader makes one when an epoch begins, or one of a tensor
    ran = ran_in(open_recording(recorded))
    call = next(call for one in ran.operators for _, call in one.forms.values())
    draw = RanOperator("aten::random_", of_dispatcher=True)
    draw.forms[(TensorForm("self", dtype, shape, None),)] = (1, call)
    # when it is held against a device that has nothing
    (found,) = answered(replace(ran, operators=(draw,)), SupportList("none", "", "", {}))
    # then the seed is no operator that the device would need, and the draw is
    assert found.answer is not None
    assert (found.answer.standing, found.answer.why) == expected
