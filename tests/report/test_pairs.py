"""The table: a row per finding, an empty cell for what is not there or not known."""

from __future__ import annotations

import pytest

from lockstep.core.finding import Comparison
from lockstep.report.comparison.pairs import TITLES, table_rows

SOURCE_DOCUMENT_TITLES = (
    "Reference Name", "Candidate Name", "Reference Dtype", "Candidate Dtype", "Reference Shape",
    "Candidate Shape", "Cosine", "MaxAbsErr", "Reference Max", "Reference Min", "Reference Mean",
    "Candidate Max", "Candidate Min", "Candidate Mean", "Accuracy Reached or Not",
)  # fmt: skip


def test_every_column_of_the_source_document_is_there() -> None:
    assert set(SOURCE_DOCUMENT_TITLES) <= set(TITLES)
    assert len(set(TITLES)) == len(TITLES)


def test_a_row_says_what_was_compared_and_how_it_ended(diverged: Comparison) -> None:
    row = list(table_rows(diverged))[1]
    expected = {
        "Reference Name": "encoder.lstm / torch.nn.LSTM #0, backward, grad_input.0",
        "Candidate Name": "encoder.lstm / torch.nn.LSTM #0, backward, grad_input.0",
        "Step": 0,
        "Rank": "rank0",
        "Phase": "backward",
        "Role": "grad_input",
        "Index": 0,
        "Tensor": "args.0",
        "Reference Dtype": "float32",
        "Candidate Shape": "[4, 128]",
        "Cosine": 0.4312,
        "MaxAbsErr": 12.3,
        "KLDivergence": None,
        "NaN Mismatch": 0,
        "Evidence": "sketch (estimate)",
        "Reference Max": 2.5,
        "Candidate Norm": 8.0,
        "Difference": 0.9,
        "Margin": pytest.approx(450_000),
        "Noise Floor": None,
        "Outcome": "differ",
        "Inherited": "No",
        "Origin": "Yes",
        "Accuracy Reached or Not": "No",
        "Reason": "beyond it",
        "Source": "examples/net.py:88",
    }
    assert {title: row[title] for title in expected} == expected


def test_rows_keep_the_order_of_the_findings(diverged: Comparison) -> None:
    assert [row["Outcome"] for row in table_rows(diverged)] == [
        "agree",
        "differ",
        "differ",
        "missing",
    ]
    assert [row.origin for row in table_rows(diverged)] == [False, True, False, False]
    assert [row["Inherited"] for row in table_rows(diverged)] == ["No", "No", "Yes", "No"]


def test_a_record_without_partner_leaves_the_other_side_empty(diverged: Comparison) -> None:
    row = list(table_rows(diverged))[3]
    empty = [title for title in TITLES if row[title] is None]
    assert {title for title in TITLES if title.startswith("Reference")} <= set(empty)
    assert row["Candidate Name"] == "head / torch.nn.functional.gelu #1, forward, output.0"
    assert (row["Cosine"], row["Difference"]) == (None, None)


def test_the_fixed_rule_answers_yes_no_or_not_known(diverged: Comparison) -> None:
    answers = [row["Accuracy Reached or Not"] for row in table_rows(diverged)]
    assert answers == ["Yes", "No", "N/A", "N/A"]
