"""A recording that ends early, or was asked to look at less: the rest is compared, and what is missing is no fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_run import Array, TinyRun, recording
from torch import nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.core.not_compared import WhyNot
from lockstep.core.records import Call
from lockstep.core.site import Phase, Role
from lockstep.store.reader import Recording

# --- a recording that ends, at every moment of a step -------------------------------------------


def ended(call: Call) -> int:
    """When the row of a call is written."""
    own = [one.sequence for one in call.records if one.site.phase is call.site.phase]
    return max([call.sequence, *own])


def moments(calls: list[Call]) -> list[int]:
    return sorted({one.sequence for call in calls for one in call.records})


def until(calls: list[Call], moment: int) -> list[Call]:
    """What is on disk of a step where the writer was stopped at a moment."""
    kept = [call for call in calls if ended(call) <= moment]
    return [
        replace(call, records=tuple(record for record in call.records if record.sequence <= moment))
        for call in kept
    ]


def cut(run: TinyRun, moment: int, why: str = "--max-bytes 100 reached") -> Recording:
    """The run as a recording whose last step ends at a moment."""
    run.steps[-1] = until(run.steps[-1], moment)
    found = recording(run)
    rank: Any = found.ranks["rank0"]
    rank.complete_steps = tuple(range(len(run.steps) - 1))
    rank.manifest.stopped_because = why
    return found


def last_bit(value: Array) -> Array:
    noise = np.random.default_rng(1).integers(-1, 2, value.shape)
    return (value * (1 + noise * 2.0**-24)).astype(np.float32)


def doubled(value: Array) -> Array:
    return 2 * value


MOMENTS = moments(TinyRun().steps[0])[8:]
"""Of the first step, but for its parameters and batch."""


def test_the_moments_span_all_phases() -> None:
    phases = {record.site.phase for call in TinyRun().steps[0] for record in call.records}
    assert phases == set(Phase)
    assert len(MOMENTS) > 30


@pytest.mark.sampled(3)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_sound_run_that_is_cut_anywhere_is_no_fault_and_no_agreement(moment: int) -> None:
    # Given a sound candidate that computes with other noise, and whose recording ends at some moment
    def whole() -> TinyRun:
        return TinyRun(steps=2)

    def noisy() -> TinyRun:
        return TinyRun(steps=2, alter={"fc1": last_bit})

    end = moments(TinyRun(steps=2).steps[1])[0] + moment - MOMENTS[0]
    for comparison in (
        compare_recordings(recording(whole()), cut(noisy(), end)),
        compare_recordings(cut(noisy(), end), recording(whole())),
    ):
        # Then nothing is an origin, and it is not called an agreement
        assert comparison.origins == ()
        assert comparison.missing == 0
        assert comparison.verdict is Verdict.INCOMPARABLE
        # And it is said where the comparison ends, and why
        (sentence,) = comparison.not_compared
        assert sentence.startswith("rank0: step 1 was compared up to where the ")
        assert "--max-bytes 100 reached" in sentence
    # And so it is where both end, not at the same moment
    both = compare_recordings(cut(whole(), end), cut(noisy(), end + 7))
    assert (both.origins, both.missing, both.verdict) == ((), 0, Verdict.INCOMPARABLE)
    assert "both recordings end in it" in both.not_compared[0]


@pytest.mark.parametrize("place", ["fc1", "relu", "grad fc2", "grad fc1.weight", "update"])
def test_a_fault_before_the_end_is_named_and_one_after_it_is_not_agreed_to(place: str) -> None:
    named = [_origins(place, moment) for moment in MOMENTS]
    # Then from some moment on it is the origin, as it is in a whole recording
    whole = compare_recordings(
        recording(TinyRun()), recording(TinyRun(alter={place: doubled}))
    ).origins
    first = next(number for number, one in enumerate(named) if one)
    assert {one.module for found in named[first:] for one in found} == {whole[0].module}
    assert all(found[0].phase is whole[0].phase for found in named[first:])
    assert first < len(MOMENTS) - 1


def _origins(place: str, moment: int) -> Any:
    comparison = compare_recordings(
        recording(TinyRun()), cut(TinyRun(alter={place: doubled}), moment)
    )
    expected = Verdict.DIVERGED if comparison.origins else Verdict.INCOMPARABLE
    assert comparison.verdict is expected
    assert "the candidate's recording ends in it" in comparison.not_compared[0]
    return comparison.origins


def test_a_branch_of_the_graph_that_is_cut_before_the_end_is_still_a_fault() -> None:
    # Given a candidate that sends no gradient back through its relu
    candidate = TinyRun()
    candidate.steps[0] = [
        replace(
            call,
            records=tuple(
                one
                for one in call.records
                if not (one.role is Role.GRAD_INPUT and call.site.op.endswith("relu"))
            ),
        )
        for call in candidate.steps[0]
    ]
    # When the reference's recording ends in the optimizer's part
    last = moments(candidate.steps[0])[-4]
    comparison = compare_recordings(cut(TinyRun(), last), recording(candidate))
    # Then it is named, as backward had come to its end on both sides
    assert comparison.verdict is Verdict.DIVERGED
    assert "the graph is cut here" in comparison.origins[0].reason


def test_recordings_that_both_end_between_steps_make_no_agreement() -> None:
    def stopped(**changes: Any) -> Recording:
        found = recording(TinyRun(steps=2))
        rank: Any = found.ranks["rank0"]
        for name, value in changes.items():
            setattr(rank, name, value)
        return found

    for changes, why in (
        ({"is_closed": False}, "the run was cut off"),
        ({"is_closed": True}, ""),
    ):
        both = stopped(**changes), stopped(**changes)
        comparison = compare_recordings(*both, allow_crash=True)
        assert comparison.not_compared == tuple(
            f"rank0: the {side}'s recording ends after step 1: {why}"
            for side in ("reference", "candidate")
            if why
        )
        assert comparison.verdict is (Verdict.INCOMPARABLE if why else Verdict.AGREE)
        # And the steps that are asked for and whole may agree
        asked = compare_recordings(*both, steps={0, 1}, allow_crash=True)
        assert asked.verdict is Verdict.AGREE


def test_two_runs_that_end_by_themselves_at_the_same_place_may_agree() -> None:
    # Given runs whose last step is never ended: an evaluation with gradients on, or the same exception
    moment = moments(TinyRun(steps=2).steps[1])[12]

    def ending(moment: int, **options: Any) -> Recording:
        return cut(TinyRun(steps=2, **options), moment, why="")

    # Then they agree over all that there is, as far as it does agree
    same = compare_recordings(ending(moment), ending(moment, alter={"fc1": last_bit}))
    assert (same.verdict, same.not_compared) == (Verdict.AGREE, ())
    faulty = compare_recordings(ending(moment), ending(moment, alter={"fc1": doubled}))
    assert faulty.verdict is Verdict.DIVERGED
    # And where one comes further than the other, or alone comes to that step, it is said
    further = compare_recordings(ending(moment), ending(moment + 15))
    assert (further.verdict, further.origins) == (Verdict.INCOMPARABLE, ())
    assert "the run ended in the middle of a step" in further.not_compared[0]
    alone = compare_recordings(recording(TinyRun(steps=1)), ending(moment))
    assert alone.not_compared == ("rank0: step 1 is only in the candidate, and incomplete",)
    assert alone.verdict is Verdict.INCOMPARABLE


def test_steps_after_the_end_are_told_of_together() -> None:
    candidate: Any = recording(TinyRun(steps=1))
    candidate.ranks["rank0"].is_closed = False
    comparison = compare_recordings(recording(TinyRun(steps=4)), candidate, allow_crash=True)
    (sentence,) = comparison.not_compared
    assert sentence == (
        "rank0: steps 1-3 are complete only in the reference; the candidate's recording ends before: the run was"
        " cut off"
    )
    facts = sentence.facts
    assert (facts.why, facts.names, facts.count) == (WhyNot.STEPS_ALONE, ("1-3",), 3)
    assert (facts.side, facts.rank, facts.step) == ("reference", "rank0", 1)


# --- real recordings ----------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.drop = nn.Dropout(0.1)
        self.slope = slope

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.embed(x)) * mask
        x = self.drop(torch.tanh(self.body(x)) * self.slope) + x
        return self.head(x)


def recorded(path: Path, *, slope: float = 1.0, **options: Any) -> Path:
    torch.manual_seed(0)
    model = Net(slope)
    optimizer = torch.optim.AdamW(model.parameters())
    mask = (torch.rand(16) > 0.2).float()
    with lockstep.record(path, model=model, steps="0:3", **options):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 8), mask).square().mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a recording takes by default."""
    return recorded(tmp_path_factory.mktemp("extent") / "ref")


@pytest.mark.parametrize("max_bytes", [60_000, 90_000, 150_000])
def test_a_recording_that_max_bytes_cuts_agrees_with_nothing_and_accuses_nobody(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    # Given a sound and a faulty candidate, written in small chunks until a cap is met
    monkeypatch.setattr("lockstep.store.writer._CHUNK_RECORDS", 32)
    sound = recorded(tmp_path / "sound", max_bytes=max_bytes)
    faulty = recorded(tmp_path / "faulty", max_bytes=max_bytes, slope=1.5)
    # Then the sound one is incomparable, whichever side it is, and so is its copy against itself
    for pair in ((whole, sound), (sound, whole)):
        comparison = lockstep.compare_recordings(*pair)
        assert (comparison.verdict, comparison.origins) == (Verdict.INCOMPARABLE, ())
        assert any(f"--max-bytes {max_bytes}" in one for one in comparison.not_compared)
    # And the faulty one diverges where it does, for as much as there is of it
    comparison = lockstep.compare_recordings(whole, faulty)
    if comparison.verdict is Verdict.DIVERGED:
        assert comparison.origins[0].op in ("torch.Tensor.mul", "torch.mul")
    else:
        assert comparison.verdict is Verdict.INCOMPARABLE


LESS: dict[str, dict[str, Any]] = {
    "level module": {"level": "module"},
    "only the head": {"only": ["head"]},
    "without the body": {"skip": ["body"]},
    "without updates": {"skip": ["torch.optim*"]},
    "without accumulated gradients": {"skip": ["accumulate_grad"]},
    "without relu": {"skip": ["relu"]},
    "only operators": {"only": ["torch.relu", "linear"]},
}


@pytest.mark.parametrize("options", LESS.values(), ids=LESS)
def test_what_only_one_side_looked_at_is_no_difference_and_no_agreement(
    whole: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    # Given a sound candidate of which less was recorded
    less = recorded(tmp_path / "less", **options)
    for pair in ((whole, less), (less, whole)):
        comparison = lockstep.compare_recordings(*pair)
        # Then nothing is accused, nothing counts as missing, and it is said what was left out
        assert comparison.origins == ()
        assert (comparison.unaligned_reference, comparison.unaligned_candidate) == (0, 0)
        assert comparison.verdict is Verdict.INCOMPARABLE
        (sentence,) = comparison.not_compared
        assert "were left out of the other recording" in sentence
        assert comparison.compared > 0
    # And two recordings of the same view agree
    twin = recorded(tmp_path / "twin", **options)
    assert lockstep.compare_recordings(less, twin).verdict is Verdict.AGREE


def test_a_fault_in_what_both_looked_at_is_named(whole: Path, tmp_path: Path) -> None:
    faulty = recorded(tmp_path / "faulty", slope=1.5, only=["mul", "tanh", "body", "head"])
    comparison = lockstep.compare_recordings(whole, faulty)
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.origins[0].op.endswith("mul")
    assert comparison.not_compared


def test_less_of_each_tensor_is_noted_and_may_agree(whole: Path, tmp_path: Path) -> None:
    comparison = lockstep.compare_recordings(whole, recorded(tmp_path / "stats", save="stats"))
    assert comparison.verdict is Verdict.AGREE
    assert any("--save program, the candidate with --save stats" in one for one in comparison.notes)
    # And where both kept the same, there is nothing to be noted
    same = lockstep.compare_recordings(whole, recorded(tmp_path / "same"))
    assert not any("--save" in note for note in same.notes)
