"""The ranks of one training, as text and as values for JSON."""

from __future__ import annotations

from typing import Any

from lockstep.terminal import Page, add_line, add_more, add_paragraph, printable
from lockstep_check.ranks.agreement import RankAnswers, facts

_MOST = 6


def headline(answers: RankAnswers) -> str:
    """The answer in one sentence."""
    of = f"{len(answers.ranks)} ranks in {len(answers.steps)} recorded steps"
    wrong = [fact.title for name, fact in facts().items() if name in answers.wrong and fact.counts]
    alike = len(answers.looked_at - answers.wrong.keys())
    unknown = f"; {len(answers.unknown)} not known" if answers.unknown else ""
    if wrong:
        return f"RANKS PART, first of all by {wrong[0]}: {of}; {alike} other things as they must be{unknown}"
    return f"RANKS ARE AS THEY MUST BE in {alike} things: {of}{unknown}"


def render(answers: RankAnswers) -> Page:
    """The headline, what is wrong, and what is not known."""
    text = Page()
    add_paragraph(text, headline(answers), indent="  ", first="")
    for name, fact in facts().items():
        if name not in answers.wrong:
            continue
        add_line(text, "")
        add_line(text, fact.title + ("" if fact.counts else " (does not count)"))
        words = list(answers.wrong[name])
        for one in words[:_MOST]:
            add_paragraph(text, printable(one), indent="      ", first="  ")
        add_more(text, len(words) - _MOST, indent="  ", more="(--json lists them)")
        add_paragraph(text, f"means: {fact.meaning}", indent="    ", first="  ")
        add_paragraph(text, f"cure: {fact.cure}", indent="    ", first="  ")
    if answers.unknown:
        add_line(text, "")
        add_line(text, "Not known")
    for name, why in answers.unknown.items():
        add_paragraph(text, f"{facts()[name].title}: {printable(why)}", indent="    ", first="  ")
    for note in answers.notes:
        add_paragraph(text, f"Note: {printable(note)}", first="")
    return text


def as_values(answers: RankAnswers) -> dict[str, Any]:
    """The same for JSON, everything in full."""
    return {
        "differs": answers.differs,
        "ranks": list(answers.ranks),
        "steps": list(answers.steps),
        "facts": [
            {
                "fact": name,
                "title": fact.title,
                "counts": fact.counts,
                "state": _state(answers, name),
                "wrong": list(answers.wrong.get(name, ())),
                "unknown": answers.unknown.get(name, ""),
                "meaning": fact.meaning,
                "cure": fact.cure,
                "source": fact.source,
            }
            for name, fact in facts().items()
        ],
        "notes": answers.notes,
    }


def _state(answers: RankAnswers, name: str) -> str:
    if name in answers.wrong:
        return "wrong"
    known = name in answers.looked_at and name not in answers.unknown
    return "as it must be" if known else "unknown"
