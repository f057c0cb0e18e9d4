"""What came of running a command with the original and with the migrated files, on one screen."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from lockstep.core.finding import Comparison, UniformChange, Verdict
from lockstep.report.comparison.verdict_words import headline
from lockstep.report.paragraphs import WIDTH
from lockstep.wings.migrate.verify.screen import (
    Result,
    Verification,
    print_verification,
    render_verification,
)
from lockstep.wings.migrate.verify.verification import _Verifier

DIVERGED = Comparison(
    reference="original",
    candidate="migrated",
    verdict=Verdict.DIVERGED,
    judged_by="error-model",
    origins=(),
    findings=(),
    inherited=3,
    compared=0,
    missing=0,
    unaligned_reference=0,
    unaligned_candidate=0,
    not_compared=(),
    notes=(),
)


@pytest.mark.parametrize("result", Result)
def test_the_first_words_and_the_exit_code_go_together(result: Result) -> None:
    text = render_verification(Verification(result, "so it is")).plain
    assert text == f"{result.words}: so it is"
    good = result in (Result.VERIFIED, Result.AGREES, Result.SAME_OUTPUT)
    assert (result.exit_code == 0) is good
    assert ("green" in result.style) is good


def test_a_difference_has_its_place_and_what_was_migrated_there() -> None:
    verification = Verification(
        Result.DIFFERS,
        "not the same",
        comparison=DIVERGED,
        behind=("net.py:3 (line 2 of the original): relu -> gelu  [user]",),
        notes=("kept " * 40,),
    )
    lines = render_verification(verification).plain.splitlines()
    assert lines[:3] == [
        "DIFFERS: not the same",
        "",
        "DIVERGED: 3 tensors differ, but none can be named the first",
    ]
    assert lines[lines.index("Migrated there") + 1].strip().startswith("net.py:3")
    assert lines[-1].strip().startswith("kept kept")
    assert max(map(len, lines)) <= WIDTH


def test_what_a_command_said_can_do_nothing_to_the_terminal() -> None:
    verification = Verification(Result.UNPROVEN, "it said:", last_lines=("\x1b[31mred\r",))
    text = render_verification(verification).plain
    assert "\x1b" not in text
    assert "\r" not in text
    assert "red" in text


def test_it_can_leave_standard_output_alone(capsys: pytest.CaptureFixture[str]) -> None:
    print_verification(Verification(Result.VERIFIED, "equal"), to_error=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "VERIFIED: equal\n")


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (Verdict.AGREE, Result.AGREES),
        (Verdict.DIVERGED, Result.DIFFERS),
        (Verdict.INCOMPARABLE, Result.UNPROVEN),
    ],
)
def test_what_compare_cannot_say_is_not_verified(verdict: Verdict, result: Result) -> None:
    # Given what `compare` says of the original's recording and the migrated one's
    comparison = replace(DIVERGED, verdict=verdict)
    # When verify judges by it
    found = _Verifier._judged(cast("_Verifier", None), comparison, "as it is")
    # Then the exit code is that of `compare`
    assert found.result is result
    assert found.result.exit_code == comparison.exit_code()


def test_another_precision_throughout_is_told_as_compare_tells_it() -> None:
    change = UniformChange("matmul inputs round to fp16", ())
    comparison = replace(DIVERGED, uniform=(change,))
    found = _Verifier._judged(cast("_Verifier", None), comparison, "as it is")
    assert (found.result, found.headline) == (Result.AGREES, headline(comparison))
