"""Comparing recordings of MindSpore that were made once; MindSpore itself is not needed.

`fixtures/mindspore` holds one step of a small network, once with a cast to bfloat16 in one Cell;
`with_mindspore` beside this file records such trainings anew.
"""

from __future__ import annotations

from pathlib import Path

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.operators import Family, canonical_name, family_of
from lockstep.report.comparison.verdict_words import headline, tolerance_words

FIXTURES = Path(__file__).parent / "fixtures" / "mindspore"


def test_a_cast_in_one_cell_is_named_with_its_line() -> None:
    found = lockstep.compare_recordings(FIXTURES / "sound", FIXTURES / "bfloat16")
    assert found.verdict is Verdict.DIVERGED
    (origin,) = found.origins
    assert (origin.step, origin.module, origin.op) == (0, "half", "Half")
    assert origin.source == "small.py:34"
    assert "the candidate calls ms.Cast" in origin.reason


def test_what_a_layer_hands_on_without_rounding_is_off_by_no_number_of_times() -> None:
    (origin,) = lockstep.compare_recordings(FIXTURES / "sound", FIXTURES / "bfloat16").origins
    assert 0 < origin.finding.tolerance < 1e-30
    assert not origin.finding.rounds
    assert "noise floor" not in origin.reason
    assert tolerance_words(origin) == "no rounding is expected here"


def test_a_recording_agrees_with_itself_and_says_how_it_was_judged() -> None:
    found = lockstep.compare_recordings(FIXTURES / "sound", FIXTURES / "sound")
    assert found.verdict is Verdict.AGREE
    assert "judged without running operators of mindspore again" in headline(found)


def test_operators_of_mindspore_are_known_by_what_they_compute() -> None:
    assert canonical_name("ms.BiasAdd") == canonical_name("torch.add")
    assert family_of("ms.ReduceMean") is Family.MEAN
    assert family_of("ms.Conv2D") is Family.BILINEAR
    assert family_of("ms.SomethingElse") is Family.UNKNOWN
