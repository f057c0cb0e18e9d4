"""A class of operators that rounds alike is told from one operator that rounds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.cli.main import main
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulate
from lockstep.report.comparison.screen import headline


class Net(nn.Module):
    """Five layers with a residual; `round_in` rounds what goes into the named ones, `in_tf32` inside of one of them."""

    def __init__(self, round_in: dict[str, torch.dtype], in_tf32: str = "") -> None:
        super().__init__()
        self.enter = nn.Linear(24, 48)
        self.first, self.second = nn.Linear(48, 48), nn.Linear(48, 48)
        self.norm, self.leave = nn.LayerNorm(48), nn.Linear(48, 24)
        self.round_in, self.in_tf32 = round_in, in_tf32

    def _layer(self, name: str, value: Tensor) -> Tensor:
        layer: nn.Linear = getattr(self, name)
        if name in self.round_in:
            dtype = self.round_in[name]
            with torch.no_grad():
                layer.weight.copy_(layer.weight.to(dtype))
            value = value + (value.to(dtype).to(value.dtype) - value).detach()
        with emulate("tf32") if name == self.in_tf32 else nullcontext():
            return layer(value)  # type: ignore[no-any-return]

    def forward(self, value: Tensor) -> Tensor:
        hidden = torch.tanh(self._layer("enter", value))
        hidden = hidden + self._layer("second", torch.tanh(self._layer("first", hidden)))
        return self._layer("leave", self.norm(hidden))


def train(
    path: Path,
    save: str = "sketch",
    round_in: dict[str, torch.dtype] | None = None,
    in_tf32: str = "",
) -> lockstep.Recording:
    torch.manual_seed(0)
    model, batch = Net(round_in or {}, in_tf32), torch.randn(32, 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return lockstep.open(path)


@pytest.fixture
def against(tmp_path: Path) -> Callable[..., Comparison]:
    """Compares the plain training with one on an emulated device or with rounded layers."""

    def compare(profile: str = "", save: str = "sketch", **options: object) -> Comparison:
        reference = train(tmp_path / "reference", save)
        if profile:
            with emulate(profile):
                candidate = train(tmp_path / "candidate", save)
        else:
            candidate = train(tmp_path / "candidate", save, **options)  # type: ignore[arg-type]
        return lockstep.compare_recordings(reference, candidate)

    return compare


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("npu-fp16", "fp16 or TF32"),
        ("tf32", "fp16 or TF32"),
        ("npu-bf16", "bf16"),
        ("hf32", "HF32"),
    ],
)
def test_from_sketches_a_device_that_rounds_all_operands_has_no_culprit(
    against: Callable[..., Comparison], profile: str, words: str
) -> None:
    found = against(profile)
    assert (found.verdict, found.origins) == (Verdict.DIVERGED, ())
    (change,) = found.uniform
    assert change.name == f"matmul inputs round to {words} (estimated)"
    assert {site.module for site in change.members} == {"enter", "first", "second", "leave"}


@pytest.mark.parametrize("profile", ["npu-fp16", "npu-bf16"])
def test_from_whole_tensors_it_is_known_exactly(
    against: Callable[..., Comparison], profile: str
) -> None:
    found = against(profile, save="tensors")
    assert found.origins == ()
    assert found.judged_by == "local-error"
    name = found.uniform[0].name
    assert profile.removeprefix("npu-") in name
    assert "estimated" not in name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize("layer", ["enter", "first", "leave"])
def test_one_layer_that_rounds_is_a_fault(
    against: Callable[..., Comparison], layer: str, save: str
) -> None:
    found = against(save=save, round_in={layer: torch.float16})
    assert found.uniform == ()
    assert found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_another_order_of_summation_is_noise(against: Callable[..., Comparison], save: str) -> None:
    found = against("reorder", save=save)
    assert (found.verdict, found.uniform) == (Verdict.AGREE, ())


def test_an_open_change_of_dtype_is_a_uniform_change_of_precision(tmp_path: Path) -> None:
    # Given the same training in single precision and under autocast
    reference = train(tmp_path / "reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        candidate = train(tmp_path / "candidate")

    # Then the class of operators is named, as for a device that rounds without a word, and no operator is at fault
    found = lockstep.compare_recordings(reference, candidate)
    assert (found.verdict, found.origins) == (Verdict.DIVERGED, ())
    assert any("bfloat16 instead of float32 (linear" in change.name for change in found.uniform)


# --- dtypes that the script asks for ------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Two blocks with a residual, of which the second may run under autocast by itself."""

    def __init__(self, *, second_in_half: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            for _ in range(2)
        )
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        if second_in_half:
            self.around = lambda: torch.autocast("cpu", torch.bfloat16)

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        value = value + self.blocks[0](value)
        with self.around():
            value = value + self.blocks[1](value)
        out: Tensor = self.leave(value)
        return out


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    directory = tmp_path_factory.mktemp("mixed")

    def run(
        *,
        second_in_half: bool = False,
        model_in: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
    ) -> Path:
        path = directory / f"{second_in_half}-{model_in}-{autocast}"
        if path.exists():
            return path
        torch.manual_seed(0)
        model = Mixed(second_in_half=second_in_half).to(model_in)
        batch, target = torch.randn(6, 8).to(model_in), torch.randn(6, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with lockstep.record(path, model=model, steps="0:2", save="tensors"):
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", autocast) if autocast else nullcontext():
                    out = model(batch)
                nn.functional.mse_loss(out.float(), target).backward()
                optimizer.step()
        return path

    return run


@pytest.mark.parametrize("whole", [False, True], ids=["sketch", "tensors"])
def test_one_block_under_autocast_is_a_difference_of_set_up(
    mixed: Callable[..., Path], whole: bool
) -> None:
    # Given one block that the candidate runs under autocast
    found = lockstep.compare_recordings(mixed(), mixed(second_in_half=True), read_tensors=whole)
    # Then its first layer is named, with both dtypes and where they are found
    origin, *others = found.origins
    assert (found.verdict, found.uniform, others) == (Verdict.DIVERGED, (), [])
    assert (origin.kind, origin.phase, origin.module) == (Kind.SETUP, Phase.FORWARD, "blocks.1.1")
    assert "bfloat16 in the candidate and float32 in the reference" in origin.reason
    assert "in part of the model only: " in origin.reason
    assert "blocks.0" not in origin.reason


@pytest.mark.sampled(3)
@pytest.mark.parametrize("whole", [False, True], ids=["sketch", "tensors"])
@pytest.mark.parametrize(
    ("how", "dtype"),
    [("model_in", torch.bfloat16), ("autocast", torch.bfloat16), ("autocast", torch.float16)],
    ids=["bfloat16 model", "bfloat16 autocast", "float16 autocast"],
)
def test_a_whole_model_in_another_dtype_is_a_uniform_change(
    mixed: Callable[..., Path], how: str, dtype: torch.dtype, whole: bool
) -> None:
    found = lockstep.compare_recordings(mixed(), mixed(**{how: dtype}), read_tensors=whole)
    assert (found.verdict, found.origins) == (Verdict.DIVERGED, ())
    (change,) = found.uniform
    name = str(dtype).removeprefix("torch.")
    what = "parameters, linear" if how == "model_in" else "linear"
    assert change.name.startswith(f"results are {name} instead of float32 ({what}")
    assert {"enter", "blocks.0.1", "blocks.1.3", "leave"} <= {one.module for one in change.members}


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 1)])
def test_another_precision_throughout_stops_a_shell_that_is_strict(
    mixed: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
) -> None:
    # Given a candidate of which no operator is at fault, but all round to fewer bits
    paths = str(mixed()), str(mixed(autocast=torch.float16))
    # Then a script goes on unless it asks for the reference's precision
    assert main(["compare", *options, *paths]) == code
    # And the first line neither says that they agree, nor that an operator leaves the reference
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "ANOTHER PRECISION throughout, no operator at fault: results are float16 instead of float32"
    )
    assert "DIVERGED" not in printed
    assert "AGREE" not in printed


def test_another_precision_passes_no_fault_and_nothing_unjudged(mixed: Callable[..., Path]) -> None:
    found = lockstep.compare_recordings(mixed(), mixed(autocast=torch.float16))
    assert (found.verdict, found.exit_code()) == (Verdict.DIVERGED, 0)
    # Given what was not compared beside it, or one block more that is set up otherwise
    less = replace(found, not_compared=("the gradient of a",))
    fault = lockstep.compare_recordings(mixed(), mixed(second_in_half=True))
    # Then both stop a shell
    assert (less.exit_code(), replace(found, origins=fault.origins).exit_code()) == (1, 1)
    assert headline(less).startswith(
        "DIVERGED: another precision throughout, no operator at fault in what was judged"
    )


# --- TF32 that one run alone allows -------------------------------------------------------------------------------


class Allowing:
    """Trains with TF32 allowed in the set-up or not; on a processor a layer that rounds so is emulated."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def train(self, name: str, *, allowed: bool, rounding: str = "") -> lockstep.Recording:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = allowed
        try:
            return train(self.directory / name, "tensors", in_tf32=rounding)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded counts as computed on a GPU."""
    monkeypatch.setattr("lockstep.locate.setups.precision.DEVICES", ("cpu",))


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("exchanged", [False, True], ids=["candidate", "reference"])
def test_tf32_that_one_run_alone_allows_may_show_at_some_matmuls(
    tmp_path: Path, exchanged: bool
) -> None:
    # Given a run without TF32, and one that allows it, of whose matmuls one alone rounds
    runs = Allowing(tmp_path)
    plain = runs.train("plain", allowed=False)
    allowing = runs.train("allowing", allowed=True, rounding="first")
    # When they are compared, then no operator is at fault, and the set-up is the cause
    pair = (allowing, plain) if exchanged else (plain, allowing)
    found = lockstep.compare_recordings(*pair)
    assert found.origins == ()
    (change,) = found.uniform
    run = "reference" if exchanged else "candidate"
    assert change.name == f"TF32 is allowed in the {run} alone: matmul inputs round to it"
    assert {site.module for site in change.members} == {"first"}
    words = headline(found)
    assert words.startswith("ANOTHER PRECISION in part, as set up, no operator at fault: TF32 is")
    assert f"at {len(change.members)} of {change.of} sites" in words


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize("allowed", [False, True])
def test_the_same_rounding_where_both_runs_are_set_up_alike_is_a_fault(
    tmp_path: Path, allowed: bool
) -> None:
    runs = Allowing(tmp_path)
    plain = runs.train("plain", allowed=allowed)
    found = lockstep.compare_recordings(
        plain, runs.train("other", allowed=allowed, rounding="first")
    )
    assert found.uniform == ()
    assert (found.origins[0].module, found.origins[0].kind) == ("first", Kind.FAULT)


def test_on_a_processor_what_rounds_is_a_fault_whatever_is_allowed(tmp_path: Path) -> None:
    runs = Allowing(tmp_path)
    plain = runs.train("plain", allowed=False)
    found = lockstep.compare_recordings(plain, runs.train("other", allowed=True, rounding="first"))
    assert (found.origins[0].module, found.origins[0].kind) == ("first", Kind.FAULT)
