"""ptdbg_ascend's calls where only the import is another: the recipe of the accuracy case, modes and wrong calls."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep_interop_names import ptdbg_ascend
from lockstep_interop_names.faces import ptdbg_session
from lockstep_interop_names.faces.ptdbg_session import PtdbgSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "compat"
DUMP = "ptdbg_dump_v2.0"


@pytest.fixture(scope="module")
def case(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which the recipe was followed, and what its three commands printed."""
    folder = tmp_path_factory.mktemp("centernet")
    commands = [
        ["main_npu_8p.py", "--dump", "./dump_data_new/cpu"],
        ["main_npu_8p.py", "--device-fault"],
        ["compare.py"],
    ]
    printed = []
    for name, *arguments in commands:
        done = subprocess.run(
            [programs / "python", EXAMPLES / name, *arguments], cwd=folder, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout + done.stderr)
    return folder, printed


def test_the_recipe_of_the_accuracy_case_names_the_lstm_s_backward(
    case: tuple[Path, list[str]],
) -> None:
    # given the recipe of CenterNet, its imports changed, with an LSTM whose backward is wrong
    folder, printed = case
    # then the table has the old columns, and no forward of the first step fails the fixed rule
    (table,) = (folder / "out").glob("compare_result_*.csv")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert list(rows[0])[:8] == [
        "NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
        "Cosine", "MaxAbsErr",
    ]  # fmt: skip
    assert list(rows[0])[-2:] == ["Accuracy Reached or Not", "Err_message"]
    failed = [row["NPU Name"] for row in rows if row["Accuracy Reached or Not"] == "No"]
    assert failed
    assert all("_backward_" in name for name in failed if "_1_" not in name)
    (entering,) = (row for row in rows if row["NPU Name"] == "VF_lstm_0_backward_input.0")
    assert entering["Accuracy Reached or Not"] == "Yes"
    # and the verdict in a sentence, with the user's line
    assert "DIVERGED at step 0, backward of rows (torch.nn.LSTM), " in printed[2]
    assert "main_npu_8p.py:4" in printed[2]
    assert "backward of rows" in next((folder / "out").glob("advisor_*.txt")).read_text()


def test_a_dump_holds_a_line_and_a_file_for_each_tensor(case: tuple[Path, list[str]]) -> None:
    rank = case[0] / "dump_data_new" / "npu" / DUMP / "rank0"
    lines = (rank / "dump.pkl").read_text().splitlines()
    names = {file.stem for file in (rank / "dump").glob("*.npy")}
    assert "VF_lstm_0_forward_input.2.3" in names
    assert {line.split('"')[1] for line in lines if "<class" not in line} == names
    heat = np.load(rank / "dump" / "Functional_linear_1_forward_output.0.npy")
    assert (heat.dtype, heat.shape) == (np.float32, (4, 8, 8))


def test_a_dump_without_its_recording_is_read_as_one_of_the_old_tool(
    case: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    # given the old files alone
    places = [
        str(case[0] / "dump_data_new" / side / DUMP / "rank0" / "dump.pkl") for side in ("cpu", "npu")
    ]  # fmt: skip
    # then they too are apart in a backward, and agree with themselves as far as they go
    assert main(["compare", *places]) == 1
    assert "backward" in capsys.readouterr().out.splitlines()[0]


Dump = Callable[..., tuple[Path, list[float]]]


def train(model: nn.Module, steps: int = 1) -> list[float]:
    """Losses of a training whose batches are fixed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        inputs = torch.linspace(-1, 1, 12).reshape(3, 4) + step
        loss = torch.nn.functional.mse_loss(model(inputs), torch.ones(3, 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[PtdbgSession]:
    """A process in which nothing was called yet."""
    fresh = PtdbgSession()
    monkeypatch.setattr(ptdbg_ascend, "SESSION", fresh)
    yield fresh
    fresh.end()
    if fresh.overflow_check is not None:
        fresh.overflow_check.end()


def lines_of(folder: Path, stem: str = "dump") -> list[str]:
    text = (folder / DUMP / "rank0" / f"{stem}.pkl").read_text()
    return [line.split('"')[1] for line in text.splitlines()]


def dumped(folder: Path, **switch: object) -> None:
    """What one step dumps with these arguments of the switch."""
    model = model_of()
    ptdbg_ascend.set_dump_path(folder)
    ptdbg_ascend.register_hook(model, ptdbg_ascend.acc_cmp_dump)
    ptdbg_ascend.set_dump_switch("ON", **switch)  # type: ignore[arg-type]
    train(model)
    ptdbg_ascend.set_dump_switch("OFF")


PLAIN = "Functional_relu_0_forward_input.inplace"
"""A plain argument, which has a line and no file."""

PHASES = ("forward", "backward")
MODES: list[tuple[dict[str, object], str, set[str]]] = [
    ({"mode": "list", "scope": ["Functional_relu_0_forward"]}, "list_dump",
     {"Functional_relu_0_forward_input.0", "Functional_relu_0_forward_output.0", PLAIN}),
    ({"mode": "api_list", "api_list": ["ReLU"], "dump_mode": ["backward"]}, "api_list_dump",
     {PLAIN, *(f"Functional_relu_0_{phase}_{what}.0" for phase in PHASES for what in ("input", "output"))}),
    ({"mode": "range", "scope": ["Functional_linear_0_forward", "Functional_relu_0_forward"], "filter_switch": "ON"},
     "range_dump",
     {*(f"Functional_linear_0_forward_{part}" for part in ("input.0", "input.1", "input.2", "output.0")),
      "Functional_relu_0_forward_input.0", "Functional_relu_0_forward_output.0"}),
    ({"mode": "stack", "scope": ["Functional_mse"]}, "stack_dump", {"Functional_mse_loss_0_forward_stack_info"}),
]  # fmt: skip


@pytest.mark.parametrize(("switch", "stem", "names"), MODES, ids=[stem for _, stem, _ in MODES])
def test_a_mode_dumps_what_it_is_for(
    switch: dict[str, object], stem: str, names: set[str], session: PtdbgSession, tmp_path: Path
) -> None:
    dumped(tmp_path, **switch)
    assert set(lines_of(tmp_path, stem)) == names
    files = {file.stem for file in (tmp_path / DUMP / "rank0" / stem).glob("*.npy")}
    kept = {"stack_dump": set(), "api_list_dump": {one for one in names if "backward" in one}}
    assert files == kept.get(stem, names - {PLAIN})


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_tensors_without_elements_are_named(
    session: PtdbgSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str
) -> None:
    # Given a training with a sparse operand, and its twin with a dense one
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            mixed = torch.eye(3)
            return torch.matmul(
                mixed.to_sparse() if layout == "sparse" else mixed, self.head(inputs)
            )

    # When it is dumped
    model = Mixed()
    ptdbg_ascend.set_dump_path(tmp_path)
    ptdbg_ascend.register_hook(model, ptdbg_ascend.acc_cmp_dump)
    ptdbg_ascend.set_dump_switch("ON")
    train(model)
    ptdbg_ascend.set_dump_switch("OFF")
    # Then what has no line is named
    said = capsys.readouterr().err
    lacks = "Torch_matmul_0_forward_input.0" not in lines_of(tmp_path)
    assert lacks is (layout == "sparse")
    assert ("of which no elements are recorded: " in said) is lacks
    assert not lacks or "Torch_matmul_0_forward_input.0" in said


def test_stacks_name_the_line_and_a_second_dump_goes_on_where_the_first_ended(
    session: PtdbgSession, tmp_path: Path
) -> None:
    # given two dumps of one process
    dumped(tmp_path, mode="api_stack")
    first = lines_of(tmp_path, "api_stack_dump")
    ptdbg_ascend.set_dump_switch("ON", mode="api_stack")
    train(model_of())
    ptdbg_ascend.set_dump_switch("OFF")
    # then the numbers of calls go on, and the stacks end in the user's line
    names = lines_of(tmp_path, "api_stack_dump")
    assert names[: len(first)] == first
    assert "Functional_relu_1_forward_input.0" in names
    text = (tmp_path / DUMP / "rank0" / "api_stack_dump.pkl").read_text()
    assert "mse_loss(model(inputs)" in text


WRONG: list[tuple[str, Callable[[Path, nn.Module], None]]] = [
    ("switch 'on': choose one of ON, OFF", lambda _, __: ptdbg_ascend.set_dump_switch("on")),
    ("the switch is OFF already", lambda _, __: ptdbg_ascend.set_dump_switch("OFF")),
    ("the switch is ON already", lambda _, __: [ptdbg_ascend.set_dump_switch("ON") for _ in range(2)]),
    ("hooked already", lambda _, model: ptdbg_ascend.register_hook(model, ptdbg_ascend.acc_cmp_dump)),
    ("give acc_cmp_dump or overflow_check", lambda _, model: ptdbg_ascend.register_hook(model, print)),
    ("mode 'acl' is a dump of the vendor's runtime", lambda _, __: ptdbg_ascend.set_dump_switch("ON", mode="acl")),
    ("mode 'range' takes two names", lambda _, __: ptdbg_ascend.set_dump_switch("ON", mode="range")),
    ("mode 'api_list' needs api_list=", lambda _, __: ptdbg_ascend.set_dump_switch("ON", mode="api_list")),
    ("ptdbg_dump_v2.0: Not a directory; the training goes on", lambda _, __: ptdbg_ascend.set_dump_path(__file__)),
    ("fpath is None", lambda _, __: ptdbg_ascend.set_dump_path()),
    ("seed is -1", lambda _, __: ptdbg_ascend.seed_all(-1)),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "call"), WRONG, ids=[sentence for sentence, _ in WRONG])
def test_what_cannot_be_done_is_said_and_the_training_is_as_without(
    sentence: str,
    call: Callable[[Path, nn.Module], None],
    session: PtdbgSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ASCEND_WORK_PATH", raising=False)
    # given a hooked model and a wrong call
    model = model_of()
    ptdbg_ascend.set_dump_path(tmp_path / "dump")
    ptdbg_ascend.register_hook(model, ptdbg_ascend.acc_cmp_dump)
    call(tmp_path, model)
    # then a sentence says so, and the losses are those of the bare training
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert train(model, 2) == train(model_of(), 2)


def test_losses_of_a_dumped_training_are_those_of_the_bare_one(
    session: PtdbgSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a switch that is on before there is a hook, as some scripts have it
    model = model_of()
    ptdbg_ascend.set_dump_path(tmp_path)
    ptdbg_ascend.set_dump_switch("ON")
    ptdbg_ascend.register_hook(model, ptdbg_ascend.acc_cmp_dump)
    losses = train(model, 2)
    # when the process ends without an OFF
    session.end()
    # then the dump is there
    assert losses == train(model_of(), 2)
    assert "Functional_relu_1_forward_input.0" in lines_of(tmp_path)
    assert "of 2 steps are dumped" in capsys.readouterr().err
    recording = lockstep.open(tmp_path / DUMP / ptdbg_session.RECORDING)
    assert recording.ranks["rank0"].steps == (0, 1)


def test_a_dump_that_is_missing_or_cut_off_is_said(tmp_path: Path) -> None:
    given = {f"{side}_dump_data_dir": str(tmp_path) for side in ("npu", "bench")}
    with pytest.raises(lockstep.LockstepError, match="lacks npu_pkl_path, bench_pkl_path"):
        ptdbg_ascend.compare(given, tmp_path)
    pkl = tmp_path / "dump.pkl"
    given |= {"npu_pkl_path": str(pkl), "bench_pkl_path": str(pkl)}
    with pytest.raises(lockstep.LockstepError, match=r"dump.pkl: there is no such dump"):
        ptdbg_ascend.compare(given, tmp_path)
    pkl.write_text('["Functional_relu_0_forward_input.0", 1, [], "torch.flo')
    with pytest.raises(lockstep.LockstepError, match=r"line 1 is not valid JSON, or cut off"):
        ptdbg_ascend.compare(given, tmp_path)
    with pytest.raises(lockstep.LockstepError, match="no ranks"):
        ptdbg_ascend.compare_distributed(tmp_path, tmp_path, tmp_path)


def overflowing(model: nn.Module, steps: int) -> list[float]:
    """A training whose third step multiplies beyond what float32 holds, and hides it from the update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        result = model(torch.ones(2, 4)) * 1e20
        loss = (result * (1e20 if step == 2 else 1)).sum()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_first_overflow_is_named_and_the_training_ends_behind_so_many(
    session: PtdbgSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a training that overflows in its third step of six
    ptdbg_ascend.set_dump_path(tmp_path)
    model = model_of()
    ptdbg_ascend.register_hook(model, ptdbg_ascend.overflow_check, overflow_nums=1)
    with pytest.raises(SystemExit):
        overflowing(model, 6)
    # then the operator is named, with its line, and its tensors are there
    said = capsys.readouterr().err
    assert "overflow at step 2, forward of the model (torch.Tensor.mul) at " in said
    assert "as overflow_nums=1 asks" in said
    (pkl,) = (tmp_path / DUMP / "rank0").glob("*.pkl")
    assert pkl.name == "Tensor_mul_5_forward_1.pkl"
    assert np.isinf(np.load(pkl.with_suffix("") / "Tensor_mul_5_forward_output.0.npy")).all()


@pytest.mark.parametrize("through", ["input", "weight", "mask", "operator"])
def test_infinite_numbers_that_enter_are_told_and_a_mask_of_them_is_not(
    through: str, session: PtdbgSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a training whose second step gets infinity as an input, or by a weight; or a mask of it, which is
    # meant, or one whose weights take over what an operator made
    ptdbg_ascend.set_dump_path(tmp_path)
    model = nn.Linear(4, 4)
    ptdbg_ascend.register_hook(model, ptdbg_ascend.overflow_check, overflow_nums=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    mask = torch.tensor([0.0, 0.0, 0.0, -torch.inf])
    for step in range(3):
        x = torch.ones(2, 4)
        if step == 1 and through == "input":
            x[0, 0] = torch.inf
        if step == 1 and through == "weight":
            model.weight.data[0, 0] = torch.inf
        result = model(x)
        result = torch.softmax(result + mask, -1) if through == "mask" else result
        if step == 1 and through == "operator":
            result = torch.exp(result * 0 + 100)
        optimizer.zero_grad()
        result.square().sum().backward()
        optimizer.step()
    assert session.overflow_check is not None
    session.overflow_check.end()
    # then the step and the way in are told once, and of the mask and of what follows from the operator nothing
    said = capsys.readouterr().err
    assert said.count("infinite numbers or NaN entered at step 1, by ") == (
        through in ("input", "weight")
    )
    assert said.count(" entered at ") == (through in ("input", "weight"))
    assert ("overflow at step 1" in said) == (through == "operator")
    assert ("no operator has made NaN" in said) == (through == "mask")


def test_a_training_without_an_overflow_is_said_to_have_none(
    session: PtdbgSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ptdbg_ascend.set_dump_path(tmp_path)
    model = model_of()
    ptdbg_ascend.register_hook(model, ptdbg_ascend.overflow_check)
    masked = torch.zeros(2).masked_fill(torch.ones(2, dtype=torch.bool), -torch.inf)
    assert train(model, 2) == train(model_of(), 2)
    assert masked.isinf().all()
    assert session.overflow_check is not None
    session.overflow_check.end()
    assert "no operator has made NaN" in capsys.readouterr().err
    assert not list((tmp_path / DUMP).iterdir())
