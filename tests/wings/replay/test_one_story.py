"""An origin run again tells what comparing told: never that all is sound where it named a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.cli.main import main
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.wings.replay.chosen_calls import Chosen
from lockstep.wings.replay.replayed_call import replayed


class Net(torch.nn.Module):
    """A norm that keeps statistics, an activation, and what a script may do to its result."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16, momentum=momentum)
        self.last = torch.nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, fault: str) -> torch.Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        if fault == "spoiled":
            with torch.no_grad():
                hidden.view(-1)[3] += 1
        if fault == "bias":
            return F.linear(hidden, self.last.weight)
        return self.last(hidden * 1.01 if fault == "scaled" else hidden)


class Once(TorchDispatchMode):
    """A kernel that is wrong while the training runs, and sound when it is run again."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 1.02 if func is torch.ops.aten.gelu.default else result


def _train(folder: Path, fault: str = "") -> None:
    torch.manual_seed(0)
    model = Net(0.2 if fault == "momentum" else 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 if fault == "rate" else 0.01)
    emulate = "npu-fp16" if fault == "rounded" else ""
    with lockstep.record(folder, model=model, steps="0:2", save="tensors", emulate=emulate):
        for _ in range(2):
            optimizer.zero_grad()
            with Once() if fault == "transient" else nullcontext():
                loss = model(torch.randn(6, 8), fault).square().mean()
            loss.backward()
            optimizer.step()
            if fault == "between":
                with torch.no_grad():
                    model.first.weight.mul_(1.01)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference."""
    folder = tmp_path_factory.mktemp("stories") / "sound"
    _train(folder)
    return folder


SAME = "what comparing named stands"
STORIES = [
    # fault, exit code, what is said, how the tests of the written folder end
    ("momentum", 0, "called otherwise: momentum 0.1 in the reference, 0.2 in the", [True, False]),
    ("rate", 0, "called otherwise: lr 0.01 in the reference, 0.02 in the candidate", [True, False]),
    ("scaled", 0, "calls torch.Tensor.mul where the reference calls torch.nn.func", [True, False]),
    ("spoiled", 1, SAME, [True]),
    ("between", 1, "first.weight becomes another one behind its update", [True]),
    (
        "transient",
        1,
        "the candidate's call is at fault: transient, not reproduced: another result",
        [True],
    ),
    ("bias", 0, " a tensor in the reference, none in the candidate. Each gives", [True]),
    ("rounded", 0, "here as at its other sites: what the candidate recorded", [True, False]),
]


@pytest.mark.parametrize(
    ("fault", "code", "words", "ends"), STORIES, ids=[one[0] for one in STORIES]
)
def test_replay_and_its_test_say_what_compare_says(
    sound: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    code: int,
    words: str,
    ends: list[bool],
) -> None:
    # Given a fault that comparing names
    _train(tmp_path / fault, fault)

    # When its origin is run again, and written down
    folder = tmp_path / "proof"
    assert main(["replay", str(sound), str(tmp_path / fault), "--write-test", str(folder)]) == code
    said = " ".join(capsys.readouterr().out.split())
    page = (folder / "README.md").read_text()

    # Then one story is told, in the code too, and the page says why, where the test passes
    assert said.startswith("ANOTHER PRECISION" if fault == "rounded" else "DIVERGED")
    assert words in said
    assert ("That explains why the runs part." in said) is (code == 0)
    assert ("This test cannot show it, because" in said) is (ends == [True])
    assert ("This test cannot show it, because" in page) is (ends == [True])
    assert list(_ends(folder)) == ends


def _ends(folder: Path) -> Iterator[bool]:
    """Whether each test of a written folder passes."""
    (test,) = folder.glob("test_*.py")
    values: dict[str, Any] = {"__file__": str(test), "__name__": test.stem}
    exec(compile(test.read_text(), test, "exec"), values)
    for name in [name for name in values if name.startswith("test_")]:
        with _caught() as failed:
            values[name]()
        yield not failed


@contextmanager
def _caught() -> Iterator[list[AssertionError]]:
    found: list[AssertionError] = []
    try:
        yield found
    except AssertionError as error:
        found.append(error)


def _train_in_half(folder: Path, *, around: bool) -> Path:
    """Two steps in bfloat16; with `around`, autocast keeps its casts of the weights over the update."""
    torch.manual_seed(0)
    model, batches = torch.nn.Linear(16, 8), torch.randn(2, 32, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    with (
        lockstep.record(folder, model=model, steps="0:2", save="tensors"),
        torch.autocast("cpu", dtype=torch.bfloat16) if around else nullcontext(),
    ):
        for batch in batches:
            with cast:
                result = model(batch).float()
            optimizer.zero_grad()
            result.square().sum(1).mean().backward()
            optimizer.step()
    return folder


def test_a_stale_weight_is_no_transient_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a candidate that computes with the weights of before the last update
    reference = _train_in_half(tmp_path / "reference", around=False)
    candidate = _train_in_half(tmp_path / "candidate", around=True)

    # When its origin is run again
    assert main(["replay", str(reference), str(candidate)]) == 1
    said = " ".join(capsys.readouterr().out.split())

    # Then the last line says what was recorded, and offers no test, which would pass
    last = said.rpartition("the candidate's call recorded ")[2]
    assert last.startswith("the result of weight and bias before the last update; ")
    assert "transient" not in said
    assert "What next" not in said


def test_members_of_a_class_are_run_again(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a run that rounds the inputs of all products
    _train(tmp_path / "rounded", "rounded")

    # When that is run again
    assert main(["replay", str(sound), str(tmp_path / "rounded"), "--json"]) == 0

    # Then each member of the class is held against the reference's call, and is off
    said = json.loads(capsys.readouterr().out)
    crossed = [call for call in said["calls"] if call["as_the_reference_calls_it"]]
    assert {call["module"] for call in crossed} == {"first", "last"}
    assert all(call["conclusion"].startswith("not what the reference's") for call in crossed)
    assert "(2 of its 2 sites run again, 2 off)" in said["story"]


def test_the_sound_twin_names_nothing(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train(tmp_path / "twin")

    assert main(["replay", str(sound), str(tmp_path / "twin")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("lockstep: AGREE: ")
    assert "no origin is named; give --only SITE" in said
    assert "\\n" not in said


def test_running_statistics_are_tested_and_page_and_test_have_one_limit(
    sound: Path, tmp_path: Path
) -> None:
    # Given a batch norm whose statistics move otherwise
    _train(tmp_path / "momentum", "momentum")
    folder = tmp_path / "proof"
    main(["replay", str(sound), str(tmp_path / "momentum"), "--write-test", str(folder)])

    # Then what fails are the statistics, by the limit that the page names
    limits = json.loads((folder / "facts.json").read_text())["limits"]
    assert {"output result", "buffer norm.running_mean", "buffer norm.running_var"} <= limits.keys()
    page = (folder / "README.md").read_text()
    for name, (limit,) in limits.items():
        if name.startswith("buffer"):
            shown = f"`{name.partition(' ')[2]}`, allowed {limit['allowed']:.3g} of its norm"
            assert shown in page
    assert page.count("allowed") == len(limits) + 2


class _Refusing:
    """Runs nothing again, for a reason of torch."""

    def is_like(self, *_: object) -> bool:
        return True

    def again(self, *_: object, **__: object) -> None:
        raise CannotReplay("torch refuses: shape '[8, 4]' is invalid for input of size 16")


@pytest.mark.parametrize("crossed", [True, False])
def test_what_torch_refuses_of_tensors_that_no_run_passed_is_told_in_words(
    sound: Path, crossed: bool
) -> None:
    # Given a call that torch refuses, of the reference with the candidate's tensors or as it was recorded
    call = next(iter(lockstep.open(sound).ranks["rank0"].calls(0)))

    # When it is run again
    one = replayed(Chosen("candidate", call, crossed=crossed), "", cast(Any, _Refusing()))

    # Then torch's own words stand where the call is one that was made
    words = "the reference's call does not run with the candidate's tensors"
    assert (one.refused == words) is crossed
    assert ("invalid for input" in one.refused) is not crossed
