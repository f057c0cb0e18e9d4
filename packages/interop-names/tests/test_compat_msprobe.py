"""mindstudio-probe's debugger where only the import is another: its files, read by the reader of that tool's dumps."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep_interop_names.dumps.torch_file import tensors_in
from lockstep_interop_names.faces.probe_debugger import Debugger
from lockstep_interop_names.msprobe import pytorch as msprobe


class Model(nn.Module):
    """Embeds tokens, reads them by an LSTM and tells a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(torch.relu(states[:, -1]))


Trained = Callable[..., list[float]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trained]:
    """Trains two steps under a fresh debugger, and gives the losses."""
    monkeypatch.setattr(msprobe, "DEBUGGER", Debugger())

    def train(wrong: float = 1.0, **asked: Any) -> list[float]:
        monkeypatch.setattr(msprobe, "DEBUGGER", Debugger())
        msprobe.seed_all(7)
        model = Model()
        model.head.register_forward_hook(lambda _, __, result: result * wrong)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        debugger = msprobe.PrecisionDebugger(**asked) if asked else None
        losses = []
        for _ in range(2):
            if debugger is not None:
                debugger.start(model)
            tokens = torch.tensor([[0, 1, 2], [2, 3, 4]])
            loss = nn.functional.cross_entropy(model(tokens), torch.tensor([0, 1]))
            optimizer.zero_grad()
            loss.backward()
            if debugger is not None:
                debugger.stop()
            optimizer.step()
            if debugger is not None:
                debugger.step()
            losses.append(loss.item())
        return losses

    yield train
    msprobe.DEBUGGER.stop()


def dump_in(step: Path) -> tuple[Path, dict[str, Any]]:
    (file,) = step.glob("*/dump.json")
    return file.parent, json.loads(file.read_text())


def test_a_dump_of_tensors_has_the_files_of_the_tool_and_reads_back_to_the_bit(
    trained: Trained, tmp_path: Path
) -> None:
    # given a dump of both steps, at level mix
    losses = trained(dump_path=str(tmp_path), task="tensor", level="mix")
    assert losses == trained()
    folder, dump = dump_in(tmp_path / "step1")
    names = list(dump["data"])
    # then operators stand before the module around them, numbers begin anew, backward follows
    assert names.index("VF.lstm.0.forward") < names.index("Module.lstm.LSTM.forward.0")
    later = ("Functional.linear.0.backward", "Module.head.Linear.backward.0")
    assert {*later, "Module.lstm.LSTM.parameters_grad.0"} <= {*names}
    parents = json.loads((folder / "construct.json").read_text())
    assert parents["VF.lstm.0.forward"] == "Module.lstm.LSTM.forward.0"
    assert parents["Torch.relu.0.forward"] is None
    stacks = json.loads((folder / "stack.json").read_text())
    lines = next(lines for names, lines in stacks.values() if "Torch.relu.0.forward" in names)
    assert "return self.head(torch.relu(states[:, -1]))" in lines[0]
    # and arguments are nested as the call has them
    lstm = dump["data"]["VF.lstm.0.forward"]["input_args"]
    assert [one["shape"] for one in lstm[2]] == [[16, 4], [16, 4], [16], [16]]
    assert lstm[3] == {"type": "bool", "value": True}
    # and each tensor is in its file, as it was recorded
    recording = lockstep.open(tmp_path / "step1" / "recording").ranks["rank0"]
    (head,) = (one for one in recording.calls(0) if one.site.op == "torch.nn.functional.linear")
    leaf = dump["data"]["Functional.linear.0.forward"]["output"][0]
    ((_, tensor),) = tensors_in(folder / "dump_tensor_data" / leaf["data_name"])
    assert tensor.load is not None
    assert tensor.load().tobytes() == head.records[3].load().tobytes()


FORMS = [
    {"task": "tensor", "level": "mix"},
    {"task": "statistics", "level": "L1"},
    {"task": "statistics", "level": "L0"},
    {"task": "statistics", "level": "L1", "summary_mode": "md5"},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form.values()))
def test_a_wrong_operator_is_named_from_two_such_dumps(
    form: dict[str, str], trained: Trained, tmp_path: Path
) -> None:
    # given dumps by a config.json, of a sound training, of the same again, and of one with a wrong head
    for name, wrong in (("sound", 1.0), ("again", 1.0), ("wrong", 1.05)):
        settings = {
            "summary_mode": form.get("summary_mode", "statistics"),
            "list": [],
            "data_mode": ["all"],
        }
        config = {
            "task": form["task"], "level": form["level"], "dump_path": str(tmp_path / name), "step": [0], "rank": [],
            form["task"]: settings,
        }  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        trained(wrong, config_path=str(tmp_path / "config.json"))
        assert [one.name for one in (tmp_path / name).iterdir()] == ["step0"]
    # then the wrong one is named where it is, and of equal ones nothing
    found = compare_recordings(tmp_path / "sound", tmp_path / "wrong")
    op = "torch.nn.Linear" if form["level"] == "L0" else "torch.Tensor.mul"
    assert [one.op for one in found.origins][:1] == [op]
    assert not compare_recordings(tmp_path / "sound", tmp_path / "again").origins
    # and the tool's own table says of each row what the verdict above it says
    dumps = [str(tmp_path / name) for name in ("sound", "again", "wrong")]
    msprobe.compare({"npu_path": dumps[1], "bench_path": dumps[0]}, tmp_path / "equal")
    command = [
        "msprobe",
        "compare",
        "-tp",
        dumps[2],
        "-gp",
        dumps[0],
        "-o",
        str(tmp_path / "apart"),
    ]
    assert main(command) == 1
    tables = [next((tmp_path / one).glob("compare_result_*.csv")) for one in ("equal", "apart")]
    equal, apart = (list(csv.DictReader(table.read_text().splitlines())) for table in tables)
    assert not [row for row in equal if row["Result"] == "error"]
    wrong = [row["NPU Name"] for row in apart if row["Result"] == "error"]
    assert wrong
    assert all(("Linear" if form["level"] == "L0" else ".mul.") in one for one in wrong)
    assert not [
        row for row in equal if row["Err_message"].startswith(("origin", "inherited", "another"))
    ]
    number = "NPU MD5" if form.get("summary_mode") == "md5" else "NPU l2norm"
    assert {"NPU Name", "Bench Tensor Shape", number, "Err_message"} <= {*apart[0]}
    if form["level"] != "L0":
        assert "VF.lstm.0.forward.input.0" in {row["NPU Name"] for row in apart}


def test_lists_and_modes_choose_records(trained: Trained, tmp_path: Path) -> None:
    config = {
        "task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump"), "step": ["1-3"],
        "statistics": {"list": ["relu"]},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    trained(config_path=str(tmp_path / "config.json"))
    _, dump = dump_in(tmp_path / "dump" / "step1")
    assert list(dump["data"]) == ["Torch.relu.0.forward", "Torch.relu.0.backward"]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("task 'dump': choose one of", {"task": "dump", "dump_path": "x"}),
    ("level 'L7': choose one of", {"level": "L7", "dump_path": "x"}),
    ("dump_path is None", {"task": "tensor"}),
    ("step has 'two'", {"dump_path": "x", "step": ["two"]}),
    ("config.json: cannot be read (No such file or directory)", {"config_path": "config.json"}),
    ("Not a directory", {"dump_path": __file__}),
]


@pytest.mark.parametrize(("sentence", "asked"), WRONG, ids=[sentence for sentence, _ in WRONG])
def test_what_cannot_be_dumped_is_said_and_the_training_is_as_without(
    sentence: str,
    asked: dict[str, Any],
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert trained(**asked) == trained()
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_calls_out_of_order_are_said(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    msprobe.PrecisionDebugger.start()
    assert "make a PrecisionDebugger" in capsys.readouterr().err
    debugger = msprobe.PrecisionDebugger(dump_path=str(tmp_path))
    debugger.stop()
    assert "without start()" in capsys.readouterr().err
    debugger.start()
    debugger.start()
    assert "this start() is left out" in capsys.readouterr().err
    debugger.step()
    assert "call stop() first" in capsys.readouterr().err


def test_an_overflow_is_named_and_ends_the_training(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        trained(1e39, dump_path=str(tmp_path), task="overflow_check")
    assert "overflow at step 0, forward of head (torch.Tensor.mul) at " in capsys.readouterr().err
    _, dump = dump_in(tmp_path / "step0")
    assert list(dump["data"]) == ["Tensor.mul.0.forward"]
    assert trained(dump_path=str(tmp_path / "sound"), task="overflow_check") == trained()
    assert dump_in(tmp_path / "sound" / "step1")[1]["data"] == {}
