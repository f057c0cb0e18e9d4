"""More evidence never acquits in silence: what sketches convict, whole tensors convict, or say what overruled it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.errors import CorruptError, ExitCode
from lockstep.core.finding import CallPair, Comparison, Evidence, Kind, Verdict
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import AGREES, Judgement, Operation
from lockstep.measure.measured_pair import Measured
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import Recording, open_recording

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WEIGHTS = ("stats", "sketch", "tensors")


class Net(nn.Module):
    """Two products with a bias; what stands between them may be altered."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 8)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))


def recorded(
    path: Path,
    *,
    dtype: torch.dtype | None = None,
    between: Callable[[Tensor], Tensor] = lambda x: x,
    **options: Any,
) -> Path:
    """Two steps of a small training, in 16 bits under autocast where a dtype is given."""
    torch.manual_seed(0)
    model = Net(between)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    inputs = [torch.randn(128, 64) for _ in range(2)]
    with lockstep.record(path, model=model, steps="0:2", **{"save": "tensors", **options}):
        for x in inputs:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = model(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@contextmanager
def truncating(dtype: torch.dtype) -> Iterator[None]:
    """Cut the digits of every product with a bias off, instead of rounding to nearest."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is there already
        library = torch.library.Library("aten", "IMPL")
        kernel = torch.library.get_kernel("aten::addmm", "CPU")
        shown = torch.finfo(torch.float32).bits - 9 - (7 if dtype is torch.bfloat16 else 10)

        def addmm(keys: Any, bias: Tensor, x: Tensor, w: Tensor, **settings: Any) -> Any:
            if x.dtype != dtype:
                return kernel.call_boxed(keys, bias, x, w, **settings)
            whole = kernel.call_boxed(keys, bias.float(), x.float(), w.float(), **settings)
            return (whole.view(torch.int32) & -(1 << shown)).view(torch.float32).to(dtype)

        library.impl("addmm", addmm, "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def with_weight(path: Path, weight: str) -> Recording:
    """A recording as if it had been made with less: whole tensors hold all that a sketch holds, and so on."""
    return open_recording(path, read_sketches=weight != "stats")


def convictions(reference: Path, candidate: Path) -> dict[str, Comparison]:
    """What is said of two recordings with whole tensors, by each weight."""
    return {
        weight: lockstep.compare_recordings(
            with_weight(reference, weight),
            with_weight(candidate, weight),
            read_tensors=weight == "tensors",
        )
        for weight in WEIGHTS
    }


def never_acquitted_in_silence(found: dict[str, Comparison]) -> bool:
    """Whether no weight with more evidence agrees where one with less convicts, without saying so."""
    verdicts = [found[weight].verdict for weight in WEIGHTS]
    first = next((n for n, one in enumerate(verdicts) if one is Verdict.DIVERGED), len(verdicts))
    return all(
        found[weight].verdict is not Verdict.AGREE
        or any("overrules" in note for note in found[weight].notes)
        for weight in WEIGHTS[first:]
    )


@pytest.mark.parametrize(("name", "fault"), [("bf16", "truncates"), ("fp16", "scale")])
def test_a_16_bit_product_that_rounds_otherwise_is_convicted_by_sketches_and_by_whole_tensors(
    tmp_path: Path, name: str, fault: str
) -> None:
    # Given a training under autocast, and one whose products truncate, or are 0.3 % too large
    dtype = DTYPES[name]
    reference = recorded(tmp_path / "reference", dtype=dtype)
    if fault == "scale":
        wrong = "wrong:first/torch.nn.functional.linear:scale:1.003"
        candidate = recorded(tmp_path / "candidate", dtype=dtype, emulate=wrong)
    else:
        with truncating(dtype):
            candidate = recorded(tmp_path / "candidate", dtype=dtype)
    # When they are compared by each weight
    found = convictions(reference, candidate)
    # Then the product is named by sketches and by whole tensors
    assert never_acquitted_in_silence(found)
    for weight in ("sketch", "tensors"):
        assert found[weight].verdict is Verdict.DIVERGED
        assert found[weight].origins[0].module == "first"
        assert {one.kind for one in found[weight].origins} == {Kind.FAULT}
    assert "misrounded" in found["tensors"].origins[0].reason


def test_a_sound_training_in_16_bits_is_accused_by_no_weight(tmp_path: Path) -> None:
    # Given the same training once more, on two threads
    threads = torch.get_num_threads()
    reference = recorded(tmp_path / "reference", dtype=torch.bfloat16)
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        candidate = recorded(tmp_path / "candidate", dtype=torch.bfloat16)
    finally:
        torch.set_num_threads(threads)
    # When they are compared, then nothing is accused, nothing overruled
    for comparison in convictions(reference, candidate).values():
        assert comparison.verdict is Verdict.AGREE
        assert comparison.notes == ()


class Convicting(ErrorModel):
    """Finds whatever differs beyond what is explained."""

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        return self._convicted(output)

    def passage(self, sources: Sequence[Measured], target: Measured, **_: Any) -> Judgement:
        return self._convicted(target)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        return self._convicted(output)

    def _convicted(self, output: Measured) -> Judgement:
        return AGREES if output.equal else Judgement(0.0, 0.0, beyond_floor=True, unexplained=True)


def test_a_re_run_that_acquits_says_which_judgement_it_overrules(tmp_path: Path) -> None:
    # Given two sound trainings that differ by rounding, and a judge that convicts whatever differs
    nudge = 1.0 + 2.0**-22
    reference = recorded(tmp_path / "reference")
    candidate = recorded(
        tmp_path / "candidate", emulate=f"wrong:first/torch.nn.functional.linear:scale:{nudge}"
    )
    assert lockstep.compare_recordings(reference, candidate, judge=Convicting()).origins
    # When whole tensors are run again, then that acquits, and says whom and how often
    judge = LocalErrorJudge(Convicting())
    found = lockstep.compare_recordings(reference, candidate, judge=judge)
    overruled = [one for one in found.findings if one.overrules]
    (note,) = (one for one in found.notes if "overrules" in one)
    assert overruled
    assert f"{len(overruled)} tensors differ by more than the error model allows" in note
    assert "double precision" in note
    assert "torch.nn.functional.linear" in note
    # And its twin with a judge that finds them inside their tolerance overrules nothing
    twin = lockstep.compare_recordings(reference, candidate)
    assert not any(one.overrules for one in twin.findings)
    assert not any("overrules" in one for one in twin.notes)
    assert "overrules" not in headline(twin)


def test_statistics_alone_do_not_show_the_order_of_rows_and_that_is_said(tmp_path: Path) -> None:
    # Given a training of which only statistics were recorded, and one whose rows stand the other way round
    reference = recorded(tmp_path / "reference", save="stats")
    turned = recorded(tmp_path / "turned", save="stats", between=lambda x: x.flip(0))
    # When they are compared, then what agrees by statistics alone is counted in the headline
    found = lockstep.compare_recordings(reference, turned)
    said = headline(found)
    count = sum(one.metrics.evidence is Evidence.STATISTICS for one in found.findings)
    assert found.verdict is not Verdict.AGREE or f"{count} by statistics alone" in said
    # And its twin, equal bit by bit, says nothing of the kind
    again = recorded(tmp_path / "again", save="stats")
    assert "statistics alone" not in headline(lockstep.compare_recordings(reference, again))


@pytest.mark.parametrize("weight", ["stats", "sketch", "tensors"])
def test_a_lone_call_that_may_change_the_training_is_no_agreement_by_the_fixed_rule(
    tmp_path: Path, weight: str
) -> None:
    # Given small activations, and the same times 1.25: by thresholds they agree
    reference = recorded(tmp_path / "reference", save=weight, between=lambda x: x.mul(1e-3))
    candidate = recorded(
        tmp_path / "candidate", save=weight, between=lambda x: x.mul(1e-3).mul(1.25)
    )
    # When the fixed rule compares them, then it cannot say that they do
    found = lockstep.compare_recordings(reference, candidate, rule="fixed")
    assert found.verdict is Verdict.INCOMPARABLE
    assert found.exit_code() is ExitCode.FAILED
    assert "no partner" in headline(found)
    # And a call on which nothing depends is none of these
    looked_at = recorded(tmp_path / "looked_at", save=weight, between=norm_beside)
    twin = lockstep.compare_recordings(reference, looked_at, rule="fixed")
    assert twin.verdict is Verdict.AGREE


def norm_beside(x: Tensor) -> Tensor:
    """The same activations; the mean of them is taken and thrown away."""
    small = x.mul(1e-3)
    small.detach().mean()
    return small


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["first"]}, "all but first (--only)"),
        ({"skip": ["first"]}, "first (--skip)"),
        ({}, ""),
    ],
)
def test_the_headline_says_which_part_was_recorded(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    # Given two recordings of a part of a model, or of all of it
    reference = recorded(tmp_path / "reference", **options)
    candidate = recorded(tmp_path / "candidate", **options)
    # When they agree, then the headline says what was left out
    said = headline(lockstep.compare_recordings(reference, candidate))
    assert said.startswith("AGREE")
    assert (f"not recorded: {words}" in said) if words else ("not recorded" not in said)


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_equal_digests_do_not_spare_whole_tensors_from_being_looked_at(
    tmp_path: Path, side: str
) -> None:
    # Given two recordings that are equal bit by bit, of which one's tensors were overwritten afterwards
    paths = {name: recorded(tmp_path / name) for name in ("reference", "candidate")}
    assert lockstep.compare_recordings(*paths.values()).verdict is Verdict.AGREE
    (shard, *_) = sorted(paths[side].rglob("tensors-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-64:] = bytes(64)
    shard.write_bytes(data)
    # When they are compared, then that is said, with the file
    with pytest.raises(CorruptError, match=rf"{shard.name}: was changed after it was written"):
        lockstep.compare_recordings(*paths.values())
    # And a comparison that reads no tensor goes by what was recorded of them
    found = lockstep.compare_recordings(*paths.values(), read_tensors=False)
    assert found.verdict is Verdict.AGREE
