"""Calls that one run makes and the other does not are named, with their line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from small_training import Loop, against_sound, compared

from lockstep.core.finding import Comparison, Verdict
from lockstep.locate.unaligned_calls import CalledFrom, words_for
from lockstep.report.comparison.csv import write_csv
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.lone_calls import unaligned_sentences

SOURCE = "tests/locate/small_training.py"


def line_of(code: str) -> str:
    """`file:line` of a line of the training."""
    lines = (Path(__file__).parent / "small_training.py").read_text().splitlines()
    return f"{SOURCE}:{1 + next(n for n, line in enumerate(lines) if code in line)}"


MISTAKES = {
    "division": (Loop(divide=False), "reference", "torch.Tensor.div", "loss = loss / 2"),
    "residual": (
        Loop("no residual"),
        "reference",
        "torch.Tensor.add",
        'y = y if self.mistake == "no residual"',
    ),
    "detach": (Loop("detached"), "candidate", "torch.Tensor.detach", "y = y.detach()"),
    "buffer": (
        Loop("no buffer update"),
        "reference",
        "torch.Tensor.mul_",
        "self.mean.mul_(0.9).add_",
    ),
    "clip": (Loop(clip=None), "reference", "torch._foreach_norm", "clip_grad_norm_"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_names_what_one_run_leaves_out(name: str) -> None:
    # Given a candidate that leaves one line of the training out, or does one more
    loop, side, op, code = MISTAKES[name]
    # When the two are compared
    found = against_sound(loop)
    # Then the call, its line and the side are listed, in words and as JSON
    calls = [one for one in found.unaligned_calls if one.op == op and one.side == side]
    assert [one.source for one in calls] == [line_of(code)]
    assert all(one.count >= 2 for one in calls)
    other = "candidate" if side == "reference" else "reference"
    said = "\n".join(unaligned_sentences(found))
    assert f"the {side} calls " in said
    assert f"the {other} does not" in said
    assert line_of(code) in said
    listed = comparison_json(found)["unaligned_calls"]
    assert {"side": side, "op": op, "source": line_of(code)}.items() <= next(
        one.items() for one in listed if one["op"] == op
    )


@pytest.mark.parametrize("name", ["division", "residual", "detach", "buffer", "clip"])
def test_an_origin_behind_such_calls_names_them(name: str) -> None:
    # Given a call that one run leaves out, or does more
    loop, side, op, code = MISTAKES[name]
    # When it is compared
    found = against_sound(loop)
    # Then the first origin says so
    assert found.verdict is Verdict.DIVERGED
    reason = found.origins[0].reason
    assert f"the {side} calls {op}" in reason
    assert line_of(code) in reason


@pytest.mark.parametrize("side", ["Reference", "Candidate"])
def test_a_call_of_one_run_only_has_its_row_in_a_table(side: str, tmp_path: Path) -> None:
    # Given a division that one of the runs forgot
    runs = Loop(), Loop(divide=False)
    found = compared(*(runs if side == "Reference" else runs[::-1]))
    # When every pair is written
    write_csv(found, tmp_path / "pairs.csv")
    with (tmp_path / "pairs.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["Operator"] == "torch.Tensor.div"]
    # Then the rows of its two calls stand on the side that has them, with the user's line
    other = "Candidate" if side == "Reference" else "Reference"
    forward = [row for row in rows if (row["Step"], row["Role"]) == ("0", "output")]
    assert [row["Call"] for row in forward] == ["0", "1"]
    assert {row["Source"] for row in rows} == {line_of("loss = loss / 2")}
    assert all("torch.Tensor.div" in row[f"{side} Name"] for row in rows)
    assert {(row[f"{other} Name"], row["Outcome"]) for row in rows} == {("", "missing")}


def test_another_class_at_the_same_path_is_said() -> None:
    # Given an activation of another class, which is written out
    found = against_sound(Loop("other activation"))
    # Then both classes are named, at the origin too, and both sides' calls stand in one sentence
    assert [(one.module, one.candidate.rpartition(".")[2]) for one in found.other_classes] == [
        ("blocks.0.act", "WrittenGelu"),
        ("blocks.1.act", "WrittenGelu"),
    ]
    assert "Gelu in the reference and a small_training.WrittenGelu" in found.origins[0].reason
    listed = comparison_json(found)["other_classes"]
    assert listed[0] == {
        "module": "blocks.0.act",
        "reference": "small_training.Gelu",
        "candidate": "small_training.WrittenGelu",
    }
    written = [one for one in unaligned_sentences(found) if "where the candidate calls" in one]
    assert len(written) == 1
    assert written[0].startswith("blocks.0.act, blocks.1.act: the reference calls")
    assert "torch.nn.functional.gelu" in written[0]


def test_nothing_is_listed_where_both_do_the_same() -> None:
    # Given the same training twice, once with another learning rate
    found: Comparison = against_sound(Loop(lr=2e-2))
    # Then no call is without partner
    assert found.unaligned_calls == ()
    assert found.other_classes == ()
    assert unaligned_sentences(found) == []


SOFTMAX, LINEAR = ("torch.softmax", "net.py:25"), ("torch.nn.functional.linear", "net.py:30")


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        ([SOFTMAX], [], "the reference calls torch.softmax at net.py:25; the candidate does not"),
        (
            [SOFTMAX],
            [SOFTMAX],
            "both call torch.softmax at net.py:25, and these calls could not be paired",
        ),
        (
            [SOFTMAX] * 3,
            [SOFTMAX],
            "both call torch.softmax at net.py:25, 3 times in the reference and 1 in the candidate",
        ),
        (
            [SOFTMAX],
            [SOFTMAX, LINEAR],
            "the candidate calls torch.nn.functional.linear at net.py:30; the reference does not",
        ),
        (
            [SOFTMAX],
            [LINEAR],
            f"the reference calls torch.softmax at net.py:25, where the candidate calls {LINEAR[0]} at net.py:30",
        ),
    ],
)
def test_what_both_runs_call_from_one_line_is_told_of_neither_alone(
    reference: list[CalledFrom], candidate: list[CalledFrom], words: str
) -> None:
    assert words_for(reference, candidate) == words


def test_a_run_that_calls_an_operator_elsewhere_is_not_said_to_never_call_it() -> None:
    words = words_for([], [SOFTMAX], elsewhere={"torch.softmax"})
    assert words.endswith("; the reference does not at this place")
    assert not words_for([], [SOFTMAX], elsewhere={"torch.exp"}).endswith("place")
