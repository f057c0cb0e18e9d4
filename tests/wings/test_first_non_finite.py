"""Where the first NaN or inf is made, for `overflow`, the shell and older tools alike; and what is none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.reading.first_non_finite import Part, Source, sources_of
from lockstep_interop_names.faces.api_calls import ApiNumbers, passes_of
from lockstep_interop_names.faces.overflows import overflows_in
from lockstep_watch.observed import Memory, ObservedStep

INF = float("inf")


class Net(torch.nn.Module):
    """One hidden layer; `between` is what happens to its result."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(x)))


def unchanged(x: torch.Tensor) -> torch.Tensor:
    return x


def found_in(
    path: Path,
    between: Callable[[torch.Tensor], torch.Tensor] = unchanged,
    *,
    loss: Callable[[torch.Tensor], torch.Tensor] = lambda y: y.square().mean(),
    batch: Callable[[torch.Tensor], torch.Tensor] = unchanged,
    behind: Callable[[torch.nn.Module], None] = lambda model: None,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    scale: float | None = None,
    level: str = "api",
) -> list[Source]:
    """What is found in one recorded step of a training with these parts."""
    torch.manual_seed(0)
    model = Net(between)
    optimizer = make(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    half = torch.autocast("cpu", torch.float16) if scale else contextlib.nullcontext()
    with lockstep.record(path, model=model, steps="0:1", save="stats", level=level):
        with half:
            value = loss(model(batch(torch.randn(16, 4))))
        scaler.scale(value).backward()
        behind(model)
        scaler.step(optimizer)
        scaler.update()
    rank = lockstep.open(path).ranks["rank0"]
    return sources_of(ObservedStep(rank, "rank0", 0, Memory()))


FAULTS = {
    "log of zero": ({"between": lambda x: x.relu().log()}, "torch.Tensor.log", Part.FORWARD),
    "sqrt in backward": (
        {"between": lambda x: x.relu().sqrt()}, "torch.Tensor.sqrt", Part.BACKWARD,
    ),
    "where hides it from forward": (
        {"between": lambda x: torch.where(x > 0, x, torch.zeros_like(x)).sqrt()},
        "torch.Tensor.sqrt", Part.BACKWARD,
    ),
    "softmax of a row that is masked whole": (
        {"between": lambda x: x.masked_fill(torch.ones_like(x) > 0, -INF).softmax(-1)},
        "torch.Tensor.softmax", Part.FORWARD,
    ),
    "exp overflows": ({"between": lambda x: (x * 1e4).exp()}, "torch.Tensor.exp", Part.FORWARD),
    "a batch with NaN": (
        {"batch": lambda x: x.index_fill(0, torch.tensor([3]), float("nan"))}, "batch", Part.BATCH,
    ),
    "clipping": (
        {"behind": lambda model: [one.grad.div_(0.0) for one in model.parameters()]},
        "torch.Tensor.div_", Part.BEHIND_BACKWARD,
    ),
    "the update": (
        {"make": lambda parameters, lr: torch.optim.SGD(parameters, lr=3e38), "loss": lambda y: 100 * y.square().sum()},
        "torch.optim.SGD", Part.UPDATE,
    ),
    "forward in half precision, whatever the scaler does": (
        {"between": lambda x: x * 60000 * 60000, "scale": 65536.0}, "torch.Tensor.mul", Part.FORWARD,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FAULTS)
def test_the_operator_is_named_that_makes_it(what: str, tmp_path: Path) -> None:
    # Given a training in which one operator makes NaN or inf of finite numbers
    settings, operator, part = FAULTS[what]
    # When its step is looked at
    found = found_in(tmp_path / "rec", **settings)
    # Then that operator comes first
    assert found
    assert (found[0].call.site.op, found[0].part) == (operator, part)


SOUND = {
    "nothing": {},
    "a mask": {
        "between": lambda x: (x + torch.zeros_like(x).masked_fill(x > 0.5, -INF)).softmax(-1)
    },
    "a mask from the logarithm of zero": {
        "between": lambda x: (x + (x < 9).float().log()).softmax(-1)
    },
    "a logarithm that nobody uses": {"between": lambda x: [x.detach().relu().log(), x][1]},
    "the least and the most as a start": {
        "between": lambda x: x + torch.full_like(x, INF).minimum(x.detach())
    },
    "a factor that is too large": {"scale": 2.0**30},
}


@pytest.mark.parametrize("what", SOUND)
def test_what_does_no_harm_is_none(what: str, tmp_path: Path) -> None:
    # Given a sound training, with an inf that is meant or that a scaler makes for a while
    # When its step is looked at
    found = found_in(tmp_path / "rec", **SOUND[what])
    # Then there is nothing
    assert found == []


def test_modules_are_told_without_operators(tmp_path: Path) -> None:
    # Given a training of which only modules are recorded, one of which makes inf
    # When its step is looked at
    found = found_in(tmp_path / "rec", lambda x: (x * 1e4).exp(), level="module")
    # Then the module stands first that hands it on
    assert found
    assert found[0].call.site.module in ("", "last")


@pytest.mark.parametrize("what", ["log of zero", "sqrt in backward", "a mask"])
def test_the_shell_and_the_faces_of_older_tools_name_the_same(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a recorded step in which an operator makes NaN or inf, or (the twin) a mask of inf is made on purpose
    settings, operator, part = FAULTS.get(what, (SOUND.get(what), "", None))
    found = found_in(tmp_path / "rec", **settings)
    calls = lockstep.open(tmp_path / "rec").ranks["rank0"].calls(0)
    # When the checks of older tools look at it, and the shell
    overflowing = [one.call.site.op for one in overflows_in(passes_of(calls, ApiNumbers()), calls)]
    assert main(["shell", str(tmp_path / "rec"), "-c", "overflow"]) == 0
    printed = capsys.readouterr().out
    # Then they name what `overflow` names, first, or nothing
    assert (
        overflowing[:1] == [one.call.site.op for one in found[:1]] == ([operator] if part else [])
    )
    told = [line for line in printed.splitlines() if line.startswith("made first at step 0, rank0")]
    assert len(told) == len(found[:1])
    assert all(operator in line and line.endswith(f", {found[0].part.value}") for line in told)
    assert "results of" in printed.splitlines()[0]
