"""Questions about recorded calls: each has somebody who answers it, and believes no answer of another form."""

from __future__ import annotations

import pytest

from lockstep.replay import questions
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.process import answered_here
from lockstep.replay.process.messages import answer_in
from lockstep.replay.questions import Imports, Question

QUESTIONS = [
    one
    for name, one in vars(questions).items()
    if isinstance(one, type)
    and issubclass(one, Question)
    and name[0] != "_"
    and one is not Question
]


def test_every_question_has_one_who_answers_it() -> None:
    assert set(QUESTIONS) == set(answered_here._ANSWERS)


@pytest.mark.parametrize("said", ["1", "true", '"\\u001b"', "[1]", '{"kind": 1}'])
@pytest.mark.parametrize(
    "kind", [one for one in QUESTIONS if one is not Imports], ids=lambda one: one.__name__
)
def test_an_answer_of_another_form_is_none(kind: type[Question[object]], said: str) -> None:
    with pytest.raises(CannotReplay, match="gave no answer"):
        answer_in(f'{{"answer": {said}}}'.encode(), kind.read)
