"""What came of running a command with the original and with the migrated files, on one screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.core.finding import Comparison, UniformChange, Verdict
from lockstep.report.comparison.verdict_words import headline
from lockstep.report.paragraphs import WIDTH
from lockstep_migrate.plan import Plan
from lockstep_migrate.verify.copies import Ground, Linked
from lockstep_migrate.verify.screen import (
    Result,
    Verification,
    print_verification,
    render_verification,
)
from lockstep_migrate.verify.trials import Trial
from lockstep_migrate.verify.verification import _Verifier

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


# -- what a run that failed says


def trial(folder: Path, code: int = 0, said: str = "", steps: int = 0) -> Trial:
    """A run of the command that ended with a code, after some steps and last words."""
    folder.mkdir()
    (folder / "err").write_text(said)
    ranks = {0: SimpleNamespace(complete_steps=steps)} if steps else {}
    recording = SimpleNamespace(ranks=ranks, path=folder / "recording")
    recorded = SimpleNamespace(ended=SimpleNamespace(code=code), recording=recording)
    ground = Ground(folder, folder, folder, frozenset(), frozenset(), {})
    return Trial(cast("Any", recorded), folder / "err", folder / "err", ground, Linked({}))


NO_CUDA = "AssertionError: Torch not compiled with CUDA enabled"


@pytest.mark.parametrize(
    ("target", "original", "migrated", "result", "words"),
    [
        ("neutral", (1, NO_CUDA), (0, "", 3), Result.UNPROVEN,
         ["does not run here", "It asks for CUDA", "The migrated files do run here"]),
        ("neutral", (1, "No such file: 'x'"), (1, "No such file: 'x'"), Result.UNPROVEN,
         ["does not run here", "The migrated files do not run here either (exit code 1)"]),
        ("npu", (0, "", 3), (1, "No module named 'torch_npu'"), Result.UNPROVEN,
         ["are for npu, which is not here", "lockstep record, lockstep compare"]),
        ("neutral", (0, "", 3), (1, "has no attribute 'no_such'"), Result.FAILED,
         ["end with exit code 1, the original with 0", "no_such"]),
    ],
    ids=["needs CUDA", "fails anyway", "no such device", "fails now"],
)  # fmt: skip
def test_a_run_that_failed_is_told_by_its_last_words(
    tmp_path: Path, target: str, original: Any, migrated: Any, result: Result, words: list[str]
) -> None:
    runs = SimpleNamespace(
        original=trial(tmp_path / "original", *original),
        migrated=trial(tmp_path / "migrated", *migrated),
    )
    plan = Plan(target, (), ())

    found = _Verifier(plan, cast("Any", None), ("python",), cast("Any", runs)).verification()

    text = render_verification(found).plain
    assert found.result is result
    assert [word for word in words if word not in " ".join(text.split())] == []
    assert ("asks for CUDA" in text) == (original[1] == NO_CUDA)
