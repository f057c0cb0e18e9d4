"""A verdict from running both programs again: spellings agree, and what a spelling hides is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from law_trainings import (
    Forward,
    after,
    after_detached,
    after_hooked,
    after_logged,
    after_times,
    before,
    by_nine,
    by_threes,
    recorded,
    scaled_by_hand,
)
from torch.nn import functional as F

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.laws import Law
from lockstep.core.remarks import On
from lockstep.core.site import Phase
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import headline


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("laws") / "reference", before)


def compared(reference: Path, candidate: Path) -> Comparison:
    """Compare, and see that no law failed for a fault of its own."""
    found = lockstep.compare_recordings(reference, candidate)
    assert found.laws is not None
    assert not [one for one in found.laws.not_judged if "Error:" in one]
    return found


@pytest.mark.parametrize("forward", [after, after_logged], ids=["spelled", "logged"])
def test_two_spellings_agree_by_the_laws(forward: Forward, reference: Path, tmp_path: Path) -> None:
    # Given a factor that stands behind a product in place of before it
    candidate = recorded(tmp_path / "candidate", forward)
    # When either is the reference
    for pair in ((reference, candidate), (candidate, reference)):
        found = compared(*pair)
        # Then every step was run again, and every law holds
        assert found.verdict is Verdict.AGREE
        assert found.laws is not None
        assert (found.laws.verdict, found.laws.steps) == ("agree", 2)


MISTAKES = {
    "a factor of 1.000001": (after_times(1 + 1e-6), Law.PROGRAM, Phase.FORWARD),
    "a factor of 1.01": (after_times(1.01), Law.PROGRAM, Phase.FORWARD),
    "half of a gradient": (after_detached(0.5), Law.PROGRAM, Phase.BACKWARD),
    "a hundred-thousandth of a gradient": (after_detached(1e-5), Law.PROGRAM, Phase.BACKWARD),
    "a hook": (after_hooked(0.7), Law.KERNELS, Phase.BACKWARD),
    "a hook of 1.0001": (after_hooked(1.0001), Law.KERNELS, Phase.BACKWARD),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_behind_another_spelling_is_found(
    name: str, reference: Path, tmp_path: Path
) -> None:
    # Given the other spelling with a mistake
    forward, law, phase = MISTAKES[name]
    candidate = recorded(tmp_path / "candidate", forward)
    # When the two are compared
    found = compared(reference, candidate)
    # Then a law says so, and the origin is a line of the model
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {one.breach.law for one in found.laws.breaches} == {law}
    assert (found.origins[0].step, found.origins[0].phase) == (0, phase)
    assert "law_trainings.py" in found.origins[0].source


def test_a_lost_gradient_is_named_at_the_layer_that_gets_less(
    reference: Path, tmp_path: Path
) -> None:
    # Given a gradient of which half is lost on its way to a layer
    candidate = recorded(tmp_path / "candidate", after_detached(0.5))
    # When it is compared, then it is named there, with the calls of either run after it
    origin = compared(reference, candidate).origins[0]
    assert (origin.module, origin.op) == ("enter", "torch.nn.functional.linear")
    assert "lerp" in origin.reason
    assert "mul" in origin.reason


@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_a_weight_that_changes_by_itself_is_told_at_every_weight(save: str, tmp_path: Path) -> None:
    # Given a weight that one run multiplies between two steps, past every recorded call
    one = recorded(tmp_path / "one", before, save=save)
    twin = recorded(tmp_path / "twin", after, save=save)
    other = recorded(tmp_path / "other", after, save=save, tail=scaled_by_hand(1 + 1e-6))
    # When they are compared
    found = lockstep.compare_recordings(one, other)
    # Then digests tell it, and the sound twin is not accused of it
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    broken = [one.breach for one in found.laws.breaches if one.breach.law is Law.CONTINUITY]
    assert [(one.run, one.name) for one in broken] == [("candidate", "w")]
    assert not [
        one
        for one in (lockstep.compare_recordings(one, twin).laws or found.laws).breaches
        if one.breach.law is Law.CONTINUITY
    ]


def test_what_both_runs_change_by_hand_is_no_breach(tmp_path: Path) -> None:
    # Given a weight that both runs change between steps
    one, two = (
        recorded(tmp_path / name, forward, tail=scaled_by_hand(0.5))
        for name, forward in (("one", before), ("two", after))
    )
    # When they are compared, then neither is at fault
    assert compared(one, two).verdict is Verdict.AGREE


def test_a_factor_shows_in_16_bit_below_its_rounding(tmp_path: Path) -> None:
    # Given two spellings in bfloat16, and a factor far below its unit roundoff
    one, twin, wrong = (
        recorded(tmp_path / name, forward, dtype=torch.bfloat16)
        for name, forward in (
            ("one", before), ("twin", after), ("wrong", after_times(1 + 1e-4)),
        )
    )  # fmt: skip
    # When they are compared, then the spelling agrees and the factor does not: programs know no dtype
    assert compared(one, twin).verdict is Verdict.AGREE
    found = compared(one, wrong)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {one.breach.law for one in found.laws.breaches} == {Law.PROGRAM}


def test_json_holds_both_verdicts(reference: Path, tmp_path: Path) -> None:
    # Given a gradient that is changed where no recorded call shows it
    candidate = recorded(tmp_path / "candidate", after_hooked(0.7))
    # When the comparison is written as JSON
    said = json.loads(json.dumps(comparison_json(compared(reference, candidate))["laws"]))
    # Then it holds what the laws say, and the verdict by pairs of calls
    assert said["verdict"] == "diverged"
    assert said["without"] in ("agree", "diverged", "incomparable")
    assert {one["law"] for one in said["breaches"]} == {"K"}


def test_another_loss_is_found_where_no_gradient_was_recorded(tmp_path: Path) -> None:
    # Given recordings of the loss alone, by its mean and by its sum
    def train(path: Path, reduction: str) -> Path:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3)
        only = "torch.nn.functional.cross_entropy"
        with lockstep.record(path, model=net, steps="0", save="tensors", only=only):
            labels = torch.tensor([0, 2, 1])
            F.cross_entropy(net(torch.randn(3, 4)), labels, reduction=reduction).backward()
        return path

    runs = [train(tmp_path / one, one) for one in ("mean", "sum")]
    # Then the two are no multiple of each other, and either agrees with itself
    assert lockstep.compare_recordings(*runs).verdict is Verdict.DIVERGED
    twin = train(tmp_path / "twin", "sum")
    assert lockstep.compare_recordings(runs[1], twin).verdict is Verdict.AGREE


def with_little_memory(*pair: Path) -> Comparison:
    return compare_recordings(*map(lockstep.open, pair), memory_bytes=1 << 20)


def test_steps_that_are_not_run_again_are_told_in_the_headline(
    reference: Path, tmp_path: Path
) -> None:
    # Given less memory than running a step again takes
    candidate = recorded(tmp_path / "candidate", before)
    scaled = recorded(tmp_path / "scaled", after_logged)
    found = with_little_memory(reference, scaled)
    # Then the headline says that pairs decided, and a note why
    assert "judged by pairs of calls alone" in headline(found)
    assert [one for one in found.notes if one.facts.why is On.BY_PAIRS and "--memory" in one]
    # And of what is equal bit by bit nobody asks it
    same = with_little_memory(reference, candidate)
    assert not [one for one in same.notes if one.facts.why is On.BY_PAIRS]


@pytest.mark.parametrize("off", [1.0, 1 + 1e-6])
def test_a_setting_that_two_calls_share_is_no_difference(tmp_path: Path, off: float) -> None:
    # Given a factor of nine in two calls of one operator, and in one call with another setting
    runs = recorded(tmp_path / "two", by_threes), recorded(tmp_path / "one", by_nine(off))
    # Then they agree, and a factor that is off by a millionth does not
    expected = Verdict.AGREE if off == 1.0 else Verdict.DIVERGED
    assert compared(*runs).verdict is expected
    assert compared(*runs[::-1]).verdict is expected
