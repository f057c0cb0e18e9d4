"""`lockstep audit` of a recording: each fault of a kernel or an update is named, its sound twin stays silent."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.cli.main import main


class Doubled(torch.autograd.Function):
    """An operator of the script's own."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


class Net(torch.nn.Module):
    """Operators that sum, that move, that choose and that drop."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.drop = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.nn.functional.gelu(self.norm(self.first(x))))
        chosen = torch.topk(hidden, 8, dim=-1).values.sum(-1, keepdim=True)
        return self.last(Doubled.apply(hidden)) + chosen + 0.1 * torch.rand(4)


class Broken(TorchDispatchMode):
    """A kernel whose result is one percent too large."""

    def __init__(self, kernel: Any) -> None:
        super().__init__()
        self._kernel = kernel

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is self._kernel:
            result.mul_(1.01)
        return result


class TooFar(torch.optim.SGD):
    """Moves the first parameter a tenth too far."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        parameter = self.param_groups[0]["params"][0]
        before = parameter.clone()
        inspect.unwrap(torch.optim.SGD.step)(self, closure)  # its own wrappers call hooks
        parameter.add_(parameter - before, alpha=0.1)


TooFar.__name__ = TooFar.__qualname__ = "SGD"
TooFar.__module__ = torch.optim.SGD.__module__


def train(
    folder: Path,
    *,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    save: Any = "tensors",
    low: bool = False,
) -> Path:
    """Record two steps."""
    torch.manual_seed(0)
    model = Net()
    descent = optimizer(model.parameters(), lr=0.1, momentum=0.9)  # type: ignore[call-arg]
    with lockstep.record(folder, model=model, steps="0:2", save=save), around():
        for _ in range(2):
            descent.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                loss = model(torch.randn(12, 16)).float().square().mean()
            loss.backward()
            descent.step()
    return folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound training."""
    return train(tmp_path_factory.mktemp("sound") / "run")


def audited(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, Any]:
    """Exit code and JSON of an audit."""
    code = main(["audit", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_training_is_silent_and_what_was_not_judged_is_named(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # When a sound training is audited
    code, found = audited(capsys, sound)

    # Then nothing is beyond its floor, in either step, forward, backward and update
    assert code == 0
    assert found["verdict"] == "sound"
    assert found["beyond"] == []
    assert found["steps"] == [0, 1]
    assert found["judged"] > 80
    # and the script's own operator, of which nobody knows what it computes, is named with the reason
    reasons = {one["op"].rpartition(".")[2]: one["reason"] for one in found["not_judged"]}
    assert list(reasons) == ["Doubled"]
    assert "is not an operator of torch" in reasons["Doubled"]

    # and in the sentence that is printed
    assert main(["audit", str(sound)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        f"SOUND in 2 steps: of {found['judged']} results of {found['calls']} calls"
    )
    assert "results could not be judged" in printed


def test_a_sound_training_under_autocast_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = audited(capsys, train(tmp_path / "run", low=True))

    assert (code, found["beyond"]) == (0, [])


FAULTS: dict[str, tuple[dict[str, Any], str, str, set[str]]] = {
    "forward": (
        {"around": lambda: Broken(torch.ops.aten.gelu.default)},
        "",
        "torch.nn.functional.gelu",
        {"output"},
    ),
    "backward": (
        {"around": lambda: Broken(torch.ops.aten.gelu_backward.default)},
        "",
        "torch.nn.functional.gelu",
        {"grad_input"},
    ),
    "update": ({"optimizer": TooFar}, "first", "torch.optim.SGD", {"param_after"}),
}


@pytest.mark.parametrize("name", ["forward", "backward", "update"])
def test_a_fault_of_a_kernel_or_an_update_is_named_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    # Given a training whose kernel, or update, is wrong
    options, module, op, roles = FAULTS[name]
    recording = train(tmp_path / "run", **options)

    # When it is audited
    code, found = audited(capsys, recording)

    # Then just that operator is beyond its floor, in both steps, and this machine's own kernel is not
    assert code == 1
    assert found["verdict"] == "beyond"
    places = {(one["module"], one["op"], one["role"]) for one in found["beyond"]}
    assert places == {(module, op, role) for role in roles}
    (one,) = found["beyond"]
    assert (one["times"], one["judged"], one["steps"]) == (2, 2, [0, 1])
    assert one["recorded"]["excess"] > 1.0
    assert one["host"]["sound"]

    # and it is printed with its line and how far off it is
    assert main(["audit", str(recording)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("BEYOND ITS FLOOR in 2 steps: 2 of ")
    assert f"{module or '(model)'} / {op} #0" in printed
    assert f"{Path(__file__).name}:" in printed
    assert "times what is allowed" in printed


def test_steps_operators_and_modules_are_chosen(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, whole = audited(capsys, sound)
    _, first = audited(capsys, sound, "--steps", "1")
    _, linear = audited(capsys, sound, "--only", "linear", "--steps", "0")
    _, last = audited(capsys, sound, "--only", "last", "--steps", "0")

    assert first["steps"] == [1]
    assert first["judged"] < whole["judged"]
    assert linear["calls"] == 2
    assert last["calls"] == 3  # the operator, and an update of each parameter


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "7"], "has no such step; it has 0-1"),
        (
            ["--only", "liner"],
            "matches no module and no operator; nearest: torch.nn.functional.linear",
        ),
        (["--only", "lst"], "matches no module and no operator; nearest: last"),
        (["--ranks", "rank3"], "has no rank3; it has rank0"),
        (["--", "python"], "give either a recording, or a training's command"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(
    sound: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["audit", str(sound), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_whole_tensors_the_command_is_printed_that_records_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = train(tmp_path / "run", save="sketch")

    assert main(["audit", str(recording)]) == 2
    said = capsys.readouterr().err
    assert "no call was saved whole" in said
    # of the whole training, not of whatever operator comes first
    assert "record --save tensors --steps 0" in said

    # and of a printed site, its module
    site = "norm / torch.nn.functional.layer_norm #0, forward"
    assert main(["audit", str(recording), "--only", site]) == 2
    assert "record --only norm --save tensors" in capsys.readouterr().err


def test_where_nothing_can_be_judged_the_code_says_so(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(sound), "--only", "*Doubled"]) == 2
    assert capsys.readouterr().out.startswith("nothing was judged; ")


def test_a_damaged_recording_ends_in_a_sentence(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a recording with a shard whose numbers were changed
    damaged = tmp_path / "damaged"
    shutil.copytree(sound, damaged)
    shard = next(iter(sorted((damaged / "rank0").glob("tensors-*.safetensors"))))
    data = bytearray(shard.read_bytes())
    data[-40:] = bytes(40)
    shard.write_bytes(data)

    # Then that is what is said
    assert main(["audit", str(damaged)]) == 2
    assert shard.name in capsys.readouterr().err


def test_what_overflows_its_dtype_on_sound_inputs_is_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given squares of which one is beyond what fp32 holds
    with lockstep.record(tmp_path / "run", save="tensors", steps="0:1"):
        squares = torch.square(torch.tensor([1.5, 3e25] * 8))
    assert squares.isinf().sum() == 8

    # Then Inf is what a sound kernel gives
    code, found = audited(capsys, tmp_path / "run", "--only", "square")
    assert (code, found["judged"], found["beyond"]) == (0, 1, [])


def test_the_headline_says_how_many_of_the_steps_were_looked_at(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(sound), "--steps", "0"]) == 0
    assert capsys.readouterr().out.startswith("SOUND in 1 of 2 steps: of ")
    assert main(["audit", str(sound), "--every", "2"]) == 0
    assert capsys.readouterr().out.startswith("SOUND in 1 of 2 steps: of ")


def test_a_recording_has_no_time_to_share(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(sound), "--budget", "20%"]) == 2
    assert "--budget is a share of a training's time" in capsys.readouterr().err


class Draws(torch.nn.Module):
    """Whole numbers and decisions that are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.Generator().manual_seed(3)
        target = torch.randint(0, 2, (6,)) + torch.randint(0, 2, (6,), generator=own)
        target = target + torch.multinomial(torch.ones(6, 2), 1).squeeze(1)
        kept = torch.bernoulli(torch.full((6, 4), 0.5))
        return torch.nn.functional.cross_entropy(self.layer(x) * kept, target)


@pytest.mark.parametrize("state", ["saved", "lost"])
def test_a_draw_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    # Given draws whose state was saved, or was not: a device's own generator
    torch.manual_seed(0)
    model = Draws()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if state == "lost":
        monkeypatch.setattr("lockstep.capture.rows.session.random_state", lambda _: None)
    with lockstep.record(tmp_path / "run", model=model, steps="0:1", save="tensors"):
        model(torch.randn(6, 8)).backward()
        optimizer.step()

    assert main(["audit", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "from a generator of the script's own, whose state was not saved (torch.randint)" in said
    assert "torch refuses" not in said


class Deep(torch.nn.Module):
    """Layers of which most are the script's own functions, which cannot be run again."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.first, self.own = torch.nn.Linear(16, 4), own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.own):
            x = Doubled.apply(x)
        return x


def _train_deep(folder: Path, model: torch.nn.Module, **options: Any) -> Path:
    torch.manual_seed(0)
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(folder, model=model, steps="0:1", save="tensors", **options):
        model(torch.randn(12, 16)).square().mean().backward()
        descent.step()
    return folder


@pytest.mark.parametrize(("own", "expected"), [(0, 0), (1, 0), (30, 2)])
def test_a_training_of_which_most_was_not_judged_is_not_called_sound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own: int, expected: int
) -> None:
    code, found = audited(capsys, _train_deep(tmp_path / "run", Deep(own)))

    unjudged = sum(one["count"] for one in found["not_judged"])
    assert (code == 2) is (unjudged > found["judged"])
    assert code == expected
    assert ("Doubled" in found["too_little"]) is (expected == 2)


def test_a_compiled_model_is_not_called_sound_by_its_loss_and_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = torch.compile(Deep(0), backend="eager")
    code, found = audited(capsys, _train_deep(tmp_path / "run", model))

    assert (code, found["verdict"]) == (2, "too little judged")
    assert "compiled" in found["too_little"]


def test_a_fault_is_told_although_most_was_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broken(torch.ops.aten.addmm.default):
        folder = _train_deep(tmp_path / "run", Deep(30))

    assert audited(capsys, folder)[0] == 1
