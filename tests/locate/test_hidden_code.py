"""Compiled code in 16 bits: its boundary bounds nothing inside, so it does not agree, and the next step shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.commands.what_next import Manner, what_next
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.core.not_compared import WhyNot
from lockstep.judge.tolerances import UNBOUNDED
from lockstep.report.comparison.screen import headline


class Net(nn.Module):
    """A residual step with a root mean square norm, as the name says or with a mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.enter, self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.leave, self.mistake = nn.Linear(32, 4), mistake

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.enter(rows)
        size = rows.float().square().mean(0 if self.mistake == "axis" else -1, keepdim=True)
        inside = self.up(rows * torch.rsqrt(size + 1e-6))
        inside = inside if self.mistake == "activation" else F.gelu(inside)
        inside = self.down(inside)
        if self.mistake == "half of a gradient":
            inside = 0.5 * inside + 0.5 * inside.detach()
        if self.mistake == "size":
            inside = inside * 1.02
        out: Tensor = self.leave(rows + inside)
        return out


MISTAKES = ("axis", "activation", "half of a gradient", "size")


class Runs:
    """Recordings of one training, each made once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(
        self,
        mistake: str = "",
        *,
        compiled: bool = True,
        dtype: str = "bfloat16",
        save: str = "sketch",
    ) -> Path:
        path = self._folder / f"{mistake}-{compiled}-{dtype}-{save}".replace(" ", "-")
        if path.exists():
            return path
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = Net(mistake)
        called = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows, wanted = torch.randn(16, 8), torch.randint(0, 4, (16,))
        with lockstep.record(path, model=model, steps="0:2", save=save):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                    loss = F.cross_entropy(called(rows), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def compared(reference: Path, candidate: Path) -> Comparison:
    return lockstep.compare_recordings(reference, candidate)


@pytest.mark.parametrize("save", ["sketch", pytest.param("tensors", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("beside_eager", [True, False])
@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(one, marks=pytest.mark.exhaustive if one in ("axis", "size") else ())
        for one in MISTAKES
    ],
)
def test_in_16_bits_a_mistake_inside_never_agrees(
    runs: Runs, mistake: str, beside_eager: bool, save: str
) -> None:
    # Given a mistake that a tolerance of half of the result would accept
    reference = runs.of(compiled=not beside_eager, save=save)
    candidate = runs.of(mistake, save=save)
    found = compared(reference, candidate)
    # Then it is named, or the headline says that compiled code could not be judged, and how to see inside
    assert found.verdict is not Verdict.AGREE
    if found.verdict is Verdict.INCOMPARABLE:
        assert any(one.facts.why is WhyNot.COMPILED_UNBOUNDED for one in found.not_compared)
        assert "of compiled code could not be judged" in headline(found)
        assert "--compile-eager" in headline(found)


def test_the_next_step_records_what_was_compiled_with_its_inside(runs: Runs) -> None:
    # Given a run that is eager, and one whose compiled code is not judged
    reference = runs.of(compiled=False)
    candidate = runs.of("half of a gradient")
    found = compared(reference, candidate)
    # When the next step is made
    both = lockstep.open(reference), lockstep.open(candidate)
    following = what_next(found, *both, Manner())
    line = f" {following.words} {following.command}"
    # Then the compiled run alone is recorded again, and compared with the other as it is
    assert line.count(" record ") == line.count("--compile-eager") == 1
    assert f"compare {reference} {candidate}-eager" in line.replace("'", "")


def test_in_single_precision_sound_code_agrees(runs: Runs) -> None:
    # Given the same model in float32, whose results bound what is inside
    eager = runs.of(compiled=False, dtype="float32")
    found = compared(eager, runs.of(dtype="float32"))
    assert found.verdict is Verdict.AGREE
    # and beside it the mistakes
    for mistake in MISTAKES:
        faulty = compared(eager, runs.of(mistake, dtype="float32"))
        assert faulty.verdict is Verdict.DIVERGED


def test_what_is_equal_bit_by_bit_agrees_in_any_dtype(runs: Runs, tmp_path: Path) -> None:
    found = compared(runs.of(), Runs(tmp_path).of())
    assert found.verdict is Verdict.AGREE


def test_a_tolerance_of_the_whole_tensor_decides_nothing(runs: Runs) -> None:
    # Given eager runs and compiled ones, sound and with mistakes
    for mistake in ("", *MISTAKES):
        found = compared(runs.of(compiled=False), runs.of(mistake))
        # Then whatever agrees without being equal is inside a tolerance or a noise floor below its norm
        loose = [
            one
            for one in found.findings
            if one.outcome is Outcome.AGREE
            and one.difference > 0
            and one.tolerance >= UNBOUNDED
            and not one.floor < UNBOUNDED
        ]
        assert loose == []
