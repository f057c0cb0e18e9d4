"""`lockstep replay --shrink`: smaller inputs that fail as the recorded ones do, or the reason why there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.cli.main import main
from lockstep.core.records import Layout
from lockstep.replay.answers import Cut
from lockstep.replay.smaller.cut import Parts
from lockstep.replay.smaller.halving import Search
from lockstep.store.reader import open_recording

WRONG = "wrong:gelu:scale:1.02"


class Net(torch.nn.Module):
    """A product, a norm that keeps statistics, an activation, and a mean over everything."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16, momentum=momentum)

    def forward(self, x: torch.Tensor, fault: str) -> torch.Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        return (hidden * 1.01 if fault == "scaled" else hidden).square().mean()


class OnceOff(TorchDispatchMode):
    """A kernel that is wrong while the training runs, and sound when it is run again."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self._kernel = kernel

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 1.02 if func is self._kernel else result


KERNELS = {"gelu once": torch.ops.aten.gelu.default, "mean once": torch.ops.aten.mean.default}


def _train(folder: Path, fault: str = "") -> None:
    torch.manual_seed(0)
    model = Net(0.2 if fault == "momentum" else 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 if fault == "rate" else 0.01)
    emulate = WRONG if fault == "device" else ""
    with lockstep.record(folder, model=model, steps="0:1", save="tensors", emulate=emulate):
        with OnceOff(KERNELS[fault]) if fault in KERNELS else nullcontext():
            loss = model(torch.randn(6, 8), fault)
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference."""
    folder = tmp_path_factory.mktemp("smaller") / "sound"
    _train(folder)
    return folder


FAULTS = [
    # fault, further arguments, inputs that become smaller, where results come from, tests: smaller ones, original ones
    ("device", ["--emulate", WRONG], {"args.0": [1, 1]}, "run again on", [True], [True]),
    (
        "momentum",
        [],
        {"args.0": [3, 1], "norm.running_mean": [1], "norm.weight": [1]},
        "the candidate's call",
        [True, False],
        [True, False],
    ),
    ("scaled", [], {"args.0": [1, 1]}, "the part of what was", [True, False], [True, False]),
    ("rate", [], {"first.weight": [1, 1]}, "the part of what was", [True, False], [True, False]),
    ("gelu once", [], {"args.0": [1, 1]}, "the part of what was", [True], [True]),
]


@pytest.mark.parametrize(
    ("fault", "more", "inputs", "come_from", "ends", "original"),
    FAULTS,
    ids=[one[0] for one in FAULTS],
)
def test_smaller_inputs_fail_as_the_recorded_ones_do(
    sound: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    more: list[str],
    inputs: dict[str, list[int]],
    come_from: str,
    ends: list[bool],
    original: list[bool],
) -> None:
    # Given a fault that comparing names
    _train(tmp_path / fault, fault)
    runs = [str(sound), str(tmp_path / fault), *more]

    # When smaller inputs are looked for, and a test is written
    folder = tmp_path / "proof"
    main(["replay", *runs, "--shrink", "--write-test", str(folder), "--json"])
    said = capsys.readouterr()
    found = json.loads(said.out)["smaller_inputs"]

    # Then there are some, and where the results on them come from is said
    assert found["found"]
    kept = {one["name"]: one["kept"] for one in found["inputs"]}
    assert {name: kept[name] for name in inputs} == inputs
    assert found["results_come_from"].startswith(come_from)

    # And the tests on them end as those on all inputs, which are kept beside
    assert "It is on the smaller inputs; original/test_" in said.err
    assert list(_ends(folder)) == ends
    assert list(_ends(folder / "original")) == original
    page = (folder / "README.md").read_text()
    assert "The inputs are a part of those that were recorded:" in page
    assert f"to {next(iter(inputs.values()))}" in page
    assert "a part of those" not in (folder / "original" / "README.md").read_text()


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


def test_a_recorded_result_of_all_inputs_is_cut_nowhere(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a mean that was wrong once, which nothing here makes again
    _train(tmp_path / "mean", "mean once")
    folder = tmp_path / "proof"
    command = ["replay", str(tmp_path / "mean"), "--only", "*mean", "--shrink"]

    # When smaller inputs are looked for
    assert main([*command, "--write-test", str(folder)]) == 1
    said = " ".join(capsys.readouterr().out.split())

    # Then there are none, since every element has a part in it, and the test is on all inputs
    assert "The inputs were not made smaller: its results were made elsewhere, and no part" in said
    assert not (folder / "original").exists()
    assert json.loads((folder / "facts.json").read_text())["limits"]


def test_where_nothing_fails_nothing_is_made_smaller(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a sound call is to fail on smaller inputs
    assert main(["replay", str(sound), "--only", "*gelu", "--shrink"]) == 0

    # Then it does not
    assert "The inputs were not made smaller: nothing of it is beyond" in capsys.readouterr().out


def test_shrinking_and_another_dtype_is_one_sentence(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(sound), "--whole", "--shrink", "--dtype", "float16"]) == 2
    assert "--shrink and --dtype: inputs are made smaller in their" in capsys.readouterr().err


# --- the search ----------------------------------------------------------------------------------


def _searched(
    extents: dict[tuple[int, int], int], fails: Callable[[dict[Any, Any]], bool | None]
) -> dict[tuple[int, int], tuple[int, int]]:
    def of_cut(cut: Cut) -> bool | None:
        kept = {axis: (0, extent) for axis, extent in extents.items()}
        return fails(
            kept | {(index, axis): (start, stop) for index, axis, start, stop in cut.ranges}
        )

    cut = Search(extents, of_cut, lambda: True).smallest()
    return {(index, axis): (start, stop) for index, axis, start, stop in cut.ranges}


def test_one_element_is_found() -> None:
    # Given a fault in column 37 of 100 alone
    found = _searched({(0, 0): 100}, lambda kept: kept[0, 0][0] <= 37 < kept[0, 0][1])
    assert found == {(0, 0): (37, 38)}


def test_a_fault_from_so_many_elements_on_keeps_them() -> None:
    found = _searched({(0, 0): 100}, lambda kept: kept[0, 0][1] - kept[0, 0][0] >= 33)
    ((start, stop),) = found.values()
    assert stop - start == 33


def test_axes_that_belong_together_are_cut_together() -> None:
    # Given a product whose rows, columns and inner extent are all 16
    extents = {(0, 0): 16, (0, 1): 16, (1, 0): 16, (1, 1): 16}

    def fails(kept: dict[Any, Any]) -> bool | None:
        return kept[0, 1][0] <= 5 < kept[0, 1][1] if kept[0, 1] == kept[1, 0] else None

    # When it fails for inner element 5 alone
    found = _searched(extents, fails)

    # Then that is kept of both, and one row and one column
    assert found[0, 1] == found[1, 0] == (5, 6)
    assert {stop - start for start, stop in found.values()} == {1}


def test_few_of_many_axes_of_one_extent_are_found() -> None:
    # Given a recurrent layer whose batch, features and hidden extent are all 64
    batch = [(0, 0), (1, 1), (2, 1)]
    others = [(0, 2), (1, 2), (2, 2), (3, 1), (4, 1)]

    def fails(kept: dict[Any, Any]) -> bool | None:
        same = len({kept[axis] for axis in batch}) == 1
        return kept[0, 0][0] <= 7 < kept[0, 0][1] if same else None

    # When only its batch can be cut
    found = _searched(
        dict.fromkeys([*batch, *others], 64),
        lambda kept: None if any(kept[axis] != (0, 64) for axis in others) else fails(kept),
    )

    # Then that is
    assert found == dict.fromkeys(batch, (7, 8))


def test_without_time_nothing_is_tried() -> None:
    search = Search({(0, 0): 4}, lambda cut: pytest.fail("there is no time"), lambda: False)
    assert search.smallest() == Cut()


def test_a_part_keeps_the_order_of_its_memory(sound: Path) -> None:
    # Given a weight that lay column after column
    rank = open_recording(sound).ranks["rank0"]
    record = next(
        record
        for call in rank.calls(0)
        for record in call.records
        if record.shape == (16, 8) and record.content.loader is not None
    )
    record.layout = Layout((1, 16))

    # When rows 2 to 5 of it are taken
    part = Parts().of(record, ((2, 5), (0, 8)))

    # Then they lie column after column, without what lay between, and hold the same
    assert part.layout == Layout((1, 3))
    assert (part.load() == record.load()[2:5]).all()
