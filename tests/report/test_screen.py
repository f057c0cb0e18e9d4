"""The screen: stable, 100 columns, readable without colour."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

import lockstep
from lockstep.core.finding import (
    Comparison,
    Kind,
    Outcome,
    SetupDifference,
    UnalignedCalls,
    UniformChange,
    Verdict,
)
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Phase, Site
from lockstep.report.comparison.screen import WIDTH, headline, print_comparison, render_comparison

DIVERGED = """\
DIVERGED at step 0, backward of encoder.lstm (torch.nn.LSTM), examples/net.py:88
  fault: inputs agree (rel 2e-07), grad_input does not: cosine 0.43, max abs 12.3, which is 400000
  x what this operator may be off in float32
  tolerance here: rel 2e-06; the difference is 450,000 times that

Tensors
  3 compared: 1 equal bit by bit, 2 beyond tolerance (1 origin, 1 later site), 1 missing on one
  side, 1 unaligned
  judged by an error model (--all: every count and pair)

Not compared
  rank1 occurs only in the reference

Events
  step 1: loss-scale skip: the gradient scaler left the optimizer out

Notes
  step 1 of the candidate is incomplete
"""


def plain(comparison: Comparison, **options: object) -> str:
    return render_comparison(comparison, **options).plain + "\n"  # type: ignore[arg-type]


def test_a_divergence_fits_one_screen(diverged: Comparison) -> None:
    assert plain(diverged) == DIVERGED


@pytest.mark.parametrize("tolerance", [0.0, 2e-45])
def test_where_nothing_rounds_no_tolerance_is_told(diverged: Comparison, tolerance: float) -> None:
    first = diverged.origins[0]
    found = dataclasses.replace(first.finding, tolerance=tolerance)
    text = plain(
        dataclasses.replace(diverged, origins=(dataclasses.replace(first, finding=found),))
    )
    assert "  no rounding is expected here\n" in text
    assert "tolerance here" not in text


def test_agreement_is_one_line_and_its_counts(agreed: Comparison) -> None:
    first, *rest = plain(agreed).splitlines()
    assert first == "AGREE: 3 tensors compared, 2 equal bit by bit, 1 inside their tolerance"
    # the counts stand in that line, and one more says who judged
    assert rest == ["", "Tensors", "  judged by an error model (--all: every count and pair)"]
    # and each count has a line of its own where all is asked for
    assert "       1  differ inside their tolerance" in plain(agreed, show_all=True)
    assert "       2  differ beyond it" not in plain(agreed, show_all=True)


def test_what_cannot_be_compared_says_why_once(incomparable: Comparison) -> None:
    assert plain(incomparable) == (
        "INCOMPARABLE: the recordings have no step in common: 0, 1 against 10, 11\n"
    )


def test_five_next_origins_are_listed_and_the_rest_counted(many_origins: Comparison) -> None:
    lines = plain(many_origins).splitlines()
    start = lines.index("Next origins")
    assert lines[start + 1 : start + 7] == [
        "  2. step 1, data: encoder.weight, examples/net.py:88",
        "  3. step 2, init of encoder.weight (torch.nn.LSTM), examples/net.py:88",
        "  4. step 3, optimizer of encoder.weight (torch.nn.LSTM), examples/net.py:88",
        "  5. step 4, forward of encoder.lstm (torch.nn.LSTM, call 5), examples/net.py:88",
        "  6. step 5, backward of encoder.lstm (torch.nn.LSTM, call 6), examples/net.py:88",
        "  and 3 more (--json lists them)",
    ]


def test_faults_beside_the_first_stand_in_the_headline(
    many_origins: Comparison, diverged: Comparison
) -> None:
    two = dataclasses.replace(many_origins, origins=many_origins.origins[:2])
    assert headline(two).endswith(" and at 1 more origin: step 1, data: encoder.weight")
    assert headline(many_origins).endswith(
        " and at 8 more origins: step 1, data: encoder.weight first"
    )
    assert "more origin" not in headline(diverged)


def test_a_divergence_without_an_origin_names_none(diverged: Comparison) -> None:
    text = plain(dataclasses.replace(diverged, origins=()))
    assert text.startswith("DIVERGED: 1 tensors differ, but none can be named the first\n")


def test_a_uniform_change_names_its_members_and_no_culprit(diverged: Comparison) -> None:
    # Given a class of five sites that rounds in another way
    sites = tuple(Site(name, "torch.nn.functional.linear", 0, Phase.FORWARD) for name in "abcde")
    change = UniformChange("matmul inputs round to fp16", sites)

    # When it is all there is
    alone = dataclasses.replace(diverged, origins=(), uniform=(change,), not_compared=())
    text = plain(alone)

    # Then the headline is the class, and its first members are listed
    assert text.startswith(
        "ANOTHER PRECISION throughout, no operator at fault: matmul inputs round to fp16, at 5 sites\n"
    )
    assert "  matmul inputs round to fp16, at 5 sites: a, b, c, d and 1 more\n" in text


def test_another_random_stream_is_not_called_a_fault(diverged: Comparison) -> None:
    origin = dataclasses.replace(
        diverged.origins[0],
        kind=Kind.RANDOM,
        reason=Reason(Clause(About.RANDOM, "the random stream differs"), "output does not"),
    )
    text = plain(dataclasses.replace(diverged, origins=(origin, origin)))
    assert text.splitlines()[1] == "  the random stream differs: output does not"
    assert "(torch.nn.LSTM): random stream differs, examples" in text
    assert "fault" not in text


def test_the_rank_is_named_where_there_is_more_than_one(diverged: Comparison) -> None:
    moved = dataclasses.replace(diverged.origins[0], rank="rank1")
    text = plain(dataclasses.replace(diverged, origins=(moved,)))
    assert text.startswith("DIVERGED at rank1, step 0, backward of encoder.lstm")


def test_a_long_path_gets_its_own_line_and_is_never_broken(diverged: Comparison) -> None:
    source = "/data/" + "very-long-directory/" * 6 + "net.py:88"
    moved = dataclasses.replace(diverged.origins[0], source=source)
    lines = plain(dataclasses.replace(diverged, origins=(moved,))).splitlines()
    assert lines[0] == "DIVERGED at step 0, backward of encoder.lstm (torch.nn.LSTM)"
    assert lines[1] == f"     in {source}"


def test_all_pairs_are_listed_on_request(diverged: Comparison) -> None:
    table = plain(diverged, show_all=True).partition("All pairs: 4\n")[2].splitlines()
    assert [line.split()[0] for line in table] == [
        "Outcome",
        "agree",
        "differ",
        "inherited",
        "missing",
    ]
    assert table[2].split()[1:7] == ["~0.4312", ">=12.3", "~0.91", "450,000", "No", "0"]
    assert table[4].endswith("gelu #1, forward, output.0 (candidate only)")


def test_pairs_under_a_cosine_are_listed_lowest_first(diverged: Comparison) -> None:
    findings = [
        dataclasses.replace(found, metrics=dataclasses.replace(found.metrics, cosine=cosine))
        for found, cosine in zip(diverged.findings, (0.97, 0.5, 0.979, 0.98), strict=True)
    ]
    changed = dataclasses.replace(diverged, findings=tuple(findings))
    table = plain(changed, cosine=0.98).partition("Pairs with a cosine under 0.98: 3\n")[2]
    assert [line.split()[1] for line in table.splitlines()] == ["Cosine", "~0.5", "0.97", ">=0.979"]
    shorter = plain(changed, cosine=0.98, limit=1).splitlines()
    assert shorter[-2].split()[1] == "~0.5"
    assert shorter[-1] == "... and 2 more"


def test_unknown_cosines_are_said_to_be_so(diverged: Comparison) -> None:
    assert "Pairs with a cosine under 0.98: 1; 2 more have no known cosine\n" in plain(
        diverged, cosine=0.98
    )


def test_sentences_stay_within_the_width(diverged: Comparison) -> None:
    long = dataclasses.replace(diverged, notes=("a sentence of many words " * 30,))
    notes = plain(long).partition("Notes\n")[2].splitlines()
    assert max(len(line) for line in notes) <= WIDTH
    assert len(notes) > 5


def test_names_from_a_file_cannot_steer_the_terminal(hostile: Comparison) -> None:
    text = plain(hostile, show_all=True)
    assert "\x1b" not in text
    assert "\\x1b[31mred\\x1b[0m\\n" in text


def test_colour_is_only_added_on_a_terminal(diverged: Comparison) -> None:
    def printed(*, terminal: bool) -> str:
        console = Console(file=io.StringIO(), force_terminal=terminal, width=60)
        console.print(render_comparison(diverged), soft_wrap=True, highlight=False)
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert printed(terminal=False) == DIVERGED
    assert "\x1b[1;31mDIVERGED\x1b[0m" in printed(terminal=True)


def test_all_are_equal_only_where_nothing_else_is_to_be_said(agreed: Comparison) -> None:
    equal = tuple(one for one in agreed.findings if not one.difference)
    found = dataclasses.replace(agreed, findings=equal, compared=len(equal))
    assert "all equal bit by bit" in plain(found)
    assert "all equal bit by bit" not in plain(dataclasses.replace(found, missing=1))


def test_what_was_not_recorded_stands_in_the_headline(agreed: Comparison) -> None:
    assert "not recorded" not in headline(agreed)
    beside = dataclasses.replace(
        agreed, unrecorded=("trainings of other threads", "some of 2 ranks")
    )
    assert headline(beside).endswith("; not recorded: trainings of other threads, some of 2 ranks")


def test_what_was_not_judged_stands_in_the_headline(agreed: Comparison) -> None:
    # Given agreement over two steps, beside two tensors of which nothing could be said and calls without partner
    unjudged = [
        dataclasses.replace(agreed.findings[0], outcome=Outcome.INCOMPARABLE) for _ in range(2)
    ]
    found = dataclasses.replace(
        agreed,
        findings=(*agreed.findings, *unjudged),
        compared=5,
        missing=4,
        unaligned_candidate=1,
        steps=(0, 1),
    )
    # Then the headline says so, and never that all are equal
    assert " ".join(plain(found).partition("Tensors")[0].split()) == (
        "AGREE: steps 0-1, 5 tensors compared, 2 equal bit by bit, 1 inside their tolerance,"
        " 2 could not be judged, 4 without partner, 1 call unaligned"
    )


def test_nothing_compared_does_not_look_like_success(agreed: Comparison) -> None:
    bare = dataclasses.replace(agreed, findings=(), compared=0, verdict=Verdict.AGREE)
    assert plain(bare) == "AGREE: no tensor was compared\n"


def test_printing_breaks_no_line_however_narrow_the_output(
    diverged: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    print_comparison(diverged)
    assert capsys.readouterr().out == DIVERGED


@pytest.mark.parametrize("width", [80, 140])
def test_text_fits_the_terminal(diverged: Comparison, many_origins: Comparison, width: int) -> None:
    # Given comparisons with long words, and a terminal of some width
    calls = tuple(
        UnalignedCalls(
            "reference",
            "rank0",
            0,
            Phase.FORWARD,
            f"h.{n}",
            "torch.Tensor.div",
            f"train.py:{n}",
            "",
            2,
            n,
        )
        for n in range(9)
    )
    setup = (SetupDifference("packages of the environment", "a word " * 20, "2"),)
    full = dataclasses.replace(diverged, unaligned_calls=calls, setup=setup)
    # Then no line is wider, whatever is shown
    for comparison in (full, many_origins):
        text = render_comparison(comparison, width=width, show_all=True, cosine=1.0).plain
        assert [line for line in text.splitlines() if len(line) > width] == []


def test_without_a_terminal_a_pair_is_one_line(diverged: Comparison) -> None:
    lines = render_comparison(diverged, show_all=True).plain.splitlines()
    assert sum("encoder.lstm / torch.nn.LSTM" in line for line in lines) == 2
    assert all(
        line.startswith(("agree", "differ", "inherited", "missing"))
        for line in lines
        if " / torch.nn" in line
    )


def test_the_users_line_stands_before_the_librarys(diverged: Comparison) -> None:
    origin = dataclasses.replace(diverged.origins[0], source="train.py:7", library="peft/lora.py:9")
    text = plain(dataclasses.replace(diverged, origins=(origin,)))
    assert text.startswith(
        "DIVERGED at step 0, backward of encoder.lstm (torch.nn.LSTM), train.py:7 through peft/lora.py:9\n"
    )


def test_printing_a_comparison_prints_the_answer(diverged: Comparison) -> None:
    # Given the public way to compare, which loads what draws
    assert callable(lockstep.compare_recordings)
    # Then a comparison prints as the command does
    assert f"{diverged}\n" == DIVERGED


def test_calls_of_one_run_are_cut_to_the_first_unless_all_are_asked_for(agreed: Comparison) -> None:
    calls = tuple(
        UnalignedCalls(
            "candidate", "rank0", 0, Phase.FORWARD, "", f"torch.op{n}", f"a.py:{n}", "", 1, n
        )
        for n in range(8)
    )
    found = dataclasses.replace(agreed, unaligned_calls=calls)
    assert plain(found).count("the reference does not") == 6
    assert "and 2 more (--all lists them)" in plain(found)
    assert plain(found, show_all=True).count("the reference does not") == 8


def test_what_stands_behind_a_reason_is_said_too(agreed: Comparison) -> None:
    # given a comparison that is no agreement because two tensors could not be judged
    unjudged = [
        dataclasses.replace(agreed.findings[0], outcome=Outcome.INCOMPARABLE) for _ in range(2)
    ]
    found = dataclasses.replace(
        agreed,
        verdict=Verdict.INCOMPARABLE,
        findings=(*agreed.findings, *unjudged),
        not_compared=("2 gradients could not be judged",),
        steps=(0, 1),
        trained=(4, 4),
    )
    # then its headline has the reason, the steps, and what came of the others
    said = headline(found)
    assert said.startswith(
        "INCOMPARABLE: 2 gradients could not be judged; steps 0-1 of 4 trained, "
    )
    assert "2 could not be judged" in said.partition(";")[2]


def test_a_gradient_that_is_added_up_goes_by_its_parameter(diverged: Comparison) -> None:
    first, *others = diverged.origins
    added = dataclasses.replace(
        first, phase=Phase.BACKWARD, op="accumulate_grad", call=1, tensor="encoder.bias"
    )
    text = plain(dataclasses.replace(diverged, origins=(added, *others)))
    assert "backward of encoder.bias (its gradient, added up)" in text
    assert "accumulate_grad" not in text
