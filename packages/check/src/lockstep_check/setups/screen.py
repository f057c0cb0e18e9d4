"""Two set-ups beside each other, as text and as values for JSON."""

from __future__ import annotations

from typing import Any

from lockstep.compare import SetupDifference
from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_more,
    add_paragraph,
    add_table,
    counted,
    listed,
    printable,
    spans,
)
from lockstep_check.machine.findings import known_variables
from lockstep_check.setups.answers import Answer, Answers, State
from lockstep_check.setups.aspects import QUESTIONS

_MOST_DIFFERENCES = 6
_GIVEN = ("variables", "configuration", "environment", "versions")
"""Aspects of what a training is given from outside: what differs in others may be their effect."""
_QUESTIONS = (Column("question"), Column("answer"), Column("by"))


def differs(answers: Answers) -> bool:
    """Whether the set-ups differ in anything that counts."""
    return answers.differs


def headline(answers: Answers) -> str:
    """The answer in one sentence."""
    found = answers.answers()
    counts = {state: [one for one in found if one.state is state] for state in State}
    counting = [one for one in counts[State.DIFFERS] if one.aspect.counts]
    unknown = f"; {len(counts[State.UNKNOWN])} not known" if counts[State.UNKNOWN] else ""
    same = counted(len(counts[State.SAME]), "aspect")
    if not counting:
        beside = len(counts[State.DIFFERS])
        verbs = "differs and does" if beside == 1 else "differ and do"
        told = f"; {beside} more {verbs} not count" if beside else ""
        return f"NOTHING DIFFERS in {same} of the two set-ups{told}{unknown}{_steps(answers)}"
    first = counting[0].aspect.title
    many = counted(len(counting), "aspect")
    return f"DIFFERS in {many}, first of all {first}{_causes(counting)}; {same} the same{unknown}"


def _causes(counting: list[Answer]) -> str:
    """What the script was given otherwise, where the first aspect may be its effect."""
    if counting[0].aspect.name in _GIVEN:
        return ""
    given = [
        one.name
        for answer in counting
        if answer.aspect.name in _GIVEN
        for one in answer.differences
    ]
    return f", perhaps by {printable(listed(given))}" if given else ""


def _steps(answers: Answers) -> str:
    """Return which recorded steps were looked at, and what of them one run alone has."""
    steps = answers.steps
    if not steps:
        return "; no step was looked at"
    alone = f"; {listed(answers.alone, 1)}" if answers.alone else ""
    return f"; looked at {'steps' if len(steps) > 1 else 'step'} {spans(steps, 3)}{alone}"


def render(answers: Answers, *, limit: int) -> Page:
    """The headline, what differs, the eight questions, and what is not known."""
    text = Page()
    add_paragraph(text, headline(answers), indent="  ", first="")
    found = answers.answers()
    different = [one for one in found if one.state is State.DIFFERS]
    for one in different[:limit]:
        add_line(text, "")
        _add_difference(text, one)
    if len(different) > limit:
        add_line(text, "")
    add_more(text, len(different) - limit)
    add_line(text, "")
    add_line(text, "Eight questions before anything is dumped")
    rows = [(words, *_answer_to(number, found)) for number, words in QUESTIONS.items()]
    add_table(text, _QUESTIONS, rows, indent="  ")
    unknown = [one for one in found if one.unknown]
    if unknown:
        add_line(text, "")
        add_line(text, "Not known")
    for one in unknown:
        part = "in part: " if one.differences else ""
        add_paragraph(
            text, f"{one.aspect.title}: {part}{printable(one.unknown)}", indent="    ", first="  "
        )
    for note in (*answers.notes, *answers.alone):
        add_paragraph(text, f"Note: {printable(note)}", first="")
    if answers.what_next is not None:
        add_line(text, "")
        add_line(text, f"What next: {answers.what_next.words}")
        add_line(text, f"  {printable(answers.what_next.command)}")
    return text


def _add_difference(text: Page, one: Answer) -> None:
    add_line(text, one.aspect.title + ("" if one.aspect.counts else " (does not count)"))
    for difference in one.differences[:_MOST_DIFFERENCES]:
        add_paragraph(text, _words(difference), indent="      ", first="  ")
        if variable := known_variables().get(difference.name):
            add_paragraph(text, variable.meaning, indent="      ")
    add_more(
        text, len(one.differences) - _MOST_DIFFERENCES, indent="  ", more="(--json lists them)"
    )
    add_paragraph(text, f"means: {one.aspect.meaning}", indent="    ", first="  ")
    add_paragraph(text, f"cure: {one.aspect.cure}", indent="    ", first="  ")


def _words(one: SetupDifference) -> str:
    if one.reference == one.candidate == "-":
        return printable(one.name)
    return printable(
        f"{one.name}: {one.reference} in the reference, {one.candidate} in the candidate"
    )


def _answer_to(number: int, found: list[Answer]) -> tuple[str, str]:
    """The state of one question, and the aspects that made it."""
    asked = [one for one in found if one.aspect.question == number]
    for state in (State.DIFFERS, State.UNKNOWN):
        made = [one.aspect.title for one in asked if one.state is state and one.aspect.counts]
        if made:
            return state.value, ", ".join(made)
    return State.SAME.value, ""


def as_values(answers: Answers) -> dict[str, Any]:
    """The same for JSON, everything in full."""
    found = answers.answers()
    return {
        "differs": differs(answers),
        "aspects": [_values(one) for one in found],
        "questions": [
            {"question": words, "answer": _answer_to(number, found)[0]}
            for number, words in QUESTIONS.items()
        ],
        "notes": answers.notes,
        "steps": answers.steps,
        "steps_of_one_run": answers.alone,
        "what_next": None if answers.what_next is None else answers.what_next.command,
    }


def _values(one: Answer) -> dict[str, Any]:
    aspect = one.aspect
    return {
        "aspect": aspect.name,
        "title": aspect.title,
        "state": one.state.value,
        "counts": aspect.counts,
        "differences": [
            {"what": each.name, "reference": each.reference, "candidate": each.candidate}
            for each in one.differences
        ],
        "unknown": one.unknown,
        "meaning": aspect.meaning,
        "cure": aspect.cure,
        "source": aspect.source,
    }
