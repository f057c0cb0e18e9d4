"""What the script chose otherwise is set-up; the same call with another result is a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.align.settings import Setting
from lockstep.core.finding import Comparison, Kind, Origin
from lockstep.core.site import Phase
from lockstep.core.text import told_apart
from lockstep.report.comparison.screen import render_comparison

WIDTH = 8
NORM = "aten.native_layer_norm.default"


@dataclass(frozen=True)
class Choice:
    """What one script writes, as sorted pairs so that a recording can be shared."""

    of: tuple[tuple[str, Any], ...] = ()
    wrong: str = ""
    share: float = field(default=0.02)

    def __getitem__(self, name: str) -> Any:
        return dict(self.of)[name] if name in dict(self.of) else DEFAULTS[name]


DEFAULTS = {
    "eps": 1e-5,
    "f_eps": 1e-5,
    "approximate": "none",
    "dim": -1,
    "padding": True,
    "momentum": 0.1,
    "slope": 0.01,
    "start": 0,
    "shift": 1,
    "lr": 1e-2,
    "rows": 4,
    "how": "",
}


class Block(nn.Module):
    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self.choice = choice
        self.norm = nn.LayerNorm(WIDTH, eps=choice["eps"])
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.act = nn.GELU(approximate=choice["approximate"])

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.fc(self.norm(x)))
        return x + functional.layer_norm(y, (WIDTH,), eps=self.choice["f_eps"])


class Net(nn.Module):
    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self.choice = choice
        self.places = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block(choice) for _ in range(3))
        self.batch_norm = nn.BatchNorm1d(6, momentum=choice["momentum"])
        self.leave = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(torch.arange(6) + self.choice["start"])
        for block in self.blocks:
            x = block(x)
        x = self.batch_norm(x)
        x = x * functional.softmax(x, dim=self.choice["dim"])
        x = functional.avg_pool1d(x, 3, 1, 1, count_include_pad=self.choice["padding"])
        x = functional.leaky_relu(torch.roll(x, self.choice["shift"], 1), self.choice["slope"])
        out: Tensor = self.leave(x + _of_so_many_rows(x, self.choice)).mean(1)
        return out


def _of_so_many_rows(x: Tensor, choice: Choice) -> Tensor:
    """A tensor of its own extent, which the sound training does not add up."""
    rows = choice["rows"]
    if choice["how"] == "from Python":
        return x[torch.tensor([number % 4 for number in range(rows)])].sum(0)
    if choice["how"] == "broadcast":
        return torch.ones(rows if rows == 4 else 1, 1, 1)
    return torch.zeros(())


class WrongKernel(TorchDispatchMode):
    """A kernel that gives a little too much."""

    def __init__(self, name: str, share: float) -> None:
        super().__init__()
        self.name, self.share = name, share

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if str(func) == self.name:
            first = result[0] if isinstance(result, tuple) else result
            first.mul_(1 + self.share)
        return result


def train(choice: Choice) -> None:
    torch.manual_seed(0)
    model = Net(choice)
    optimizer = torch.optim.SGD(model.parameters(), lr=choice["lr"])
    inputs, targets = torch.randn(2, 4, 6, WIDTH), torch.randint(3, (2, 4))
    for place in range(2):
        optimizer.zero_grad()
        with WrongKernel(choice.wrong, choice.share):
            loss = functional.cross_entropy(model(inputs[place]), targets[place])
        loss.backward()
        optimizer.step()


@cache
def recorded(choice: Choice, save: str, level: str) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    with lockstep.record(path, steps="0:2", save=save, level=level):
        train(choice)
    return path


def compared(candidate: Choice, save: str = "sketch", level: str = "api") -> Comparison:
    return lockstep.compare_recordings(
        recorded(Choice(), save, level), recorded(candidate, save, level)
    )


def only_origin(found: Comparison) -> Origin:
    assert len(found.origins) == 1, render_comparison(found).plain
    return found.origins[0]


SETTINGS = {
    "epsilon of a module": ("eps", 1e-3, "eps is 1e-05 in the reference and 0.001 in"),
    "epsilon of a function": ("f_eps", 1e-3, "eps is 1e-05 in the reference and 0.001 in"),
    "activation": ("approximate", "tanh", 'approximate is "none" in the reference and "tanh" in'),
    "dimension": ("dim", 1, "dim is -1 in the reference and 1 in the candidate"),
    "padding": ("padding", False, "count_include_pad is true in the reference and false in"),
    "momentum": ("momentum", 0.3, "momentum is 0.1 in the reference and 0.3 in the candidate"),
    "slope": ("slope", 0.02, "negative_slope is 0.01 in the reference and 0.02 in"),
    "offset of whole numbers": ("start", 1, "argument 1 is 0 in the reference and 1 in"),
    "shift of what is moved": ("shift", 2, "argument 1 is 1 in the reference and 2 in"),
    "learning rate": ("lr", 2e-2, "lr is 0.01 in the reference and 0.02 in the candidate"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_the_script_chose_is_set_up(name: str, save: str) -> None:
    # Given a candidate that writes one setting otherwise, wherever that goes
    setting, value, words = SETTINGS[name]
    origin = only_origin(compared(Choice(((setting, value),)), save))
    # Then it is one origin, set-up and no fault, that begins with both values
    assert origin.kind is Kind.SETUP
    assert origin.reason.startswith(words)


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_one_setting_of_many_modules_is_one_cause(save: str) -> None:
    # Given a candidate in which every norm has another epsilon
    origin = only_origin(compared(Choice((("eps", 1e-3),)), save))
    # Then all of them stand at the one origin, with whole tensors as without
    assert origin.module == "blocks.0.norm"
    assert "at blocks.0.norm, blocks.1.norm, blocks.2.norm; inputs are" in origin.reason


def test_indices_read_as_python_writes_them_and_apart() -> None:
    # Given two calls that take other elements, and two with long values that begin alike
    ends = ["slice(None, None, None)", "slice(1, None, 2)"], ["slice(None, None, None)", 0]

    # Then each value is told as it is written, and of long ones what differs
    assert Setting("args.1", *ends).shown == ("[:, 1::2]", "[:, 0]")
    assert Setting("args.1", [1, 2], [1, 3]).shown == ("[1, 2]", "[1, 3]")  # no index: as before
    left, right = told_apart(f"[{'0, ' * 40}1]", f"[{'0, ' * 40}2]")
    assert (left[-3:], right[-3:]) == (" 1]", " 2]")
    assert told_apart("short", "shorn") == ("short", "shorn")


def test_only_a_re_run_tells_how_much_the_setting_makes() -> None:
    choice = Choice((("eps", 1e-3),))
    untried = "this setting was not tried alone"
    assert untried in only_origin(compared(choice)).reason
    reason = only_origin(compared(choice, "tensors")).reason
    assert untried not in reason
    assert "the result follows the candidate's own settings, not the reference's" in reason


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_the_same_call_with_another_result_is_a_fault(save: str) -> None:
    origin = compared(Choice(wrong=NORM), save).origins[0]
    assert (origin.kind, origin.phase) == (Kind.FAULT, Phase.FORWARD)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("eps", [1.001e-5, 1e-3], ids=["harmless", "harmful"])
@pytest.mark.parametrize("share", [0.02, 1e-3])
def test_a_fault_beside_another_setting_is_both(eps: float, share: float) -> None:
    # Given norms with another epsilon whose kernel is wrong besides, by more or less than that makes
    choice = Choice((("eps", eps), ("f_eps", eps)), NORM, share)
    origin = compared(choice, "tensors").origins[0]
    # Then re-runs show the fault, and the setting is said as well
    assert origin.kind is Kind.FAULT
    assert f"eps is 1e-05 in the reference and {eps:.12g} in the candidate" in origin.reason


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_another_way_to_write_a_setting_is_none(save: str) -> None:
    # Given the same dimension, counted from the other end
    assert compared(Choice((("dim", 2),)), save).origins == ()
    # Then a wrong kernel behind it is a fault
    origin = compared(Choice((("dim", 2),), "aten._softmax.default"), save).origins[0]
    assert origin.kind is Kind.FAULT


def test_gradients_around_another_setting_are_no_second_origin_where_only_modules_are_seen() -> (
    None
):
    origin = only_origin(compared(Choice((("eps", 1e-2),)), level="module"))
    assert (origin.kind, origin.module) == (Kind.SETUP, "blocks.0.norm")


def with_rows(how: str, rows: int) -> Path:
    return recorded(Choice((("how", how), ("rows", rows))), "sketch", "api")


def test_another_extent_that_python_gives_is_said_where_it_begins() -> None:
    # Given a candidate that picks more rows, by a list
    found = lockstep.compare_recordings(with_rows("from Python", 4), with_rows("from Python", 6))
    # Then the list is the origin, not the first gradient that has another shape because of it
    origin = only_origin(found)
    assert (origin.kind, origin.op) == (Kind.SETUP, "torch.tensor")
    assert origin.reason.startswith("argument 0 is [0, 1, 2, 3] in the reference and [0, 1, 2, 3,")


def test_another_extent_that_changes_nothing_is_no_origin() -> None:
    # Given ones that are broadcast in one run and spread out in the other
    found = lockstep.compare_recordings(with_rows("broadcast", 4), with_rows("broadcast", 6))
    assert found.origins == ()


def test_an_input_of_another_shape_is_not_said_to_be_equal(tmp_path: Path) -> None:
    # Given modules alone, one of which is given fewer rows
    for rows in (4, 6):
        torch.manual_seed(0)
        enter, leave, x = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), torch.randn(6, WIDTH)
        model = _Cut(enter, leave, rows)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with lockstep.record(tmp_path / str(rows), steps="0:1", level="module"):
            model(x).pow(2).mean().backward()
            optimizer.step()
    (origin, *_) = lockstep.compare_recordings(tmp_path / "4", tmp_path / "6").origins
    # Then the reason tells the input from what leads to it
    assert "inputs are bitwise equal" not in origin.reason
    assert "the tensors that lead to it are bitwise equal, this input has shape" in origin.reason


class _Cut(nn.Module):
    def __init__(self, enter: nn.Module, leave: nn.Module, rows: int) -> None:
        super().__init__()
        self.enter, self.leave, self.rows = enter, leave, rows

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(x)[: self.rows])
        return out
