"""Reasons: a sentence for people, clauses for code."""

from __future__ import annotations

import copy
import pickle

from lockstep.core.reason import About, Clause, Reason

ENTERED = Clause(About.ENTERED, "inputs are bitwise equal", difference=0.0)
LEFT = Clause(About.LEFT, "output does not agree: rel 0.1", "output", difference=0.1)
SETTING = Clause(About.SETTING, "p is 0.1 in the reference and 0.2 in the candidate", "p", "0.1", "0.2")  # fmt: skip
STREAM = Clause(About.RANDOM, "the random stream differs")


def test_a_reason_is_one_sentence_of_what_entered_what_left_and_what_else_is_known() -> None:
    reason = Reason(ENTERED, LEFT, SETTING)
    assert reason == (
        "inputs are bitwise equal, output does not agree: rel 0.1;"
        " p is 0.1 in the reference and 0.2 in the candidate"
    )
    assert reason.clauses == (ENTERED, LEFT, SETTING)


def test_reasons_are_put_together_and_taken_apart_by_what_they_are_about_never_by_their_words() -> (
    None
):
    # given a reason of several, and one of plain words
    whole = Reason(STREAM, Reason(LEFT, SETTING), "gradients; and more: of it")
    # then their clauses stand in it one after the other, and plain words are one of them, whatever marks they hold
    assert whole.clauses == (STREAM, LEFT, SETTING, Clause(About.CAUSE, "gradients; and more: of it"))  # fmt: skip
    assert whole.startswith("the random stream differs: output does not agree: rel 0.1; p is")
    # and each is found by what it is about
    assert whole.of(About.SETTING) == (SETTING,)
    assert Reason(*whole.without(About.RANDOM, About.CAUSE)).clauses == (LEFT, SETTING)
    assert not Reason().clauses
    assert Reason() == ""


def test_copies_of_a_reason_keep_its_clauses() -> None:
    reason = Reason(STREAM, LEFT)
    for other in (copy.deepcopy(reason), pickle.loads(pickle.dumps(reason))):
        assert other == reason
        assert other.clauses == reason.clauses
