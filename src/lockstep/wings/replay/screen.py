"""Print the results of re-runs as text."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.replay.calls.held_results import RECORDED, Held, Result
from lockstep.replay.calls.refusals import NO_OPERATOR
from lockstep.replay.smaller.cut import shapes_of
from lockstep.report.paragraphs import Page, add_line, add_paragraph, counted
from lockstep.report.rerun_results import add_refusals, figures
from lockstep.report.table import add_more
from lockstep.wings.replay.replayed_call import Conclusion, ReplayedCall, not_run_again
from lockstep.wings.replay.smaller_inputs import SmallerInputs
from lockstep.wings.replay.story import Story

_WORDS = {
    Conclusion.SOUND: "sound: what was recorded and what was run again is what double precision makes of the inputs",
    Conclusion.TRANSIENT: (
        "transient: what was recorded is off, and from the same inputs {machine} gives the sound result each time: a"
        " flipped bit, threads that met in a library's first call, or something that the training did to this operator"
    ),
    Conclusion.PERSISTENT: (
        "persistent: what was recorded is off, and {machine} gives it wrong again from the same inputs"
    ),
    Conclusion.SOMETIMES: "comes and goes: from the same inputs {machine} is right at times",
    Conclusion.RECORDED_OFF: "what was recorded is off; it was not run again on the device that made it",
    Conclusion.MACHINE_OFF: "{machine} is off: what was recorded is sound, and what it makes of the same inputs is not",
    Conclusion.NOT_THE_REFERENCES: "what the candidate recorded is not what the reference's call gives",
    Conclusion.NOT_RUN: "not run again",
}


_EXPLAINED = (
    "what was recorded is off, and from the same inputs {machine} gives the sound result each time: the training did"
    " here what is named above"
)


def render_sites(calls: Sequence[ReplayedCall], machine: str, *, known: bool = False) -> Page:
    """Each call with all its results: who made it, how far off it is, what it may be.

    `known` tells that it was found what the candidate computes instead, which then is no guess.
    """
    text = Page()
    for one in calls:
        _add_heading(text, one)
        if one.refused:
            add_paragraph(text, f"not run again: {one.refused}")
        for result in one.results:
            add_result(text, result)
        if one.held:
            add_paragraph(text, _words(one, machine, known=known))
        if one is not calls[-1]:
            add_line(text, "")
    add_import_advice(text, calls)
    text.rstrip()
    return text


def render_story(story: Story) -> Page:
    """Return the story of an origin's calls as text."""
    text = Page()
    add_paragraph(text, story.words, indent="")
    if story.explained:
        add_paragraph(text, "That explains why the runs part.", indent="")
    text.rstrip()
    return text


def render_smaller(found: SmallerInputs) -> Page:
    """Smaller inputs on which a call fails, or why there are none."""
    text = Page()
    if found.shrunk is not None and found.found:
        add_line(text, "Smaller inputs on which it still fails")
        shapes = shapes_of(found.one.call, found.shrunk.cut)
        for name, (before, after) in shapes.items():
            add_line(text, f"  {name}: {list(before)} to {list(after)}")
    add_paragraph(text, found.words, indent="  " if found.found else "")
    text.rstrip()
    return text


def render_all(calls: Sequence[ReplayedCall], machine: str, *, limit: int) -> Page:
    """The calls that are beyond what is allowed, in order of time, and what could not be run again."""
    text = Page()
    held = sum(len(one.held) for one in calls)
    beyond = [one for one in calls if one.worst > 1.0]
    ran = sum(bool(one.held) for one in calls)
    add_line(
        text,
        f"{counted(ran, 'call')} run again on {machine}: {counted(held, 'result')} held against double"
        f" precision, {counted(len(beyond), 'call')} beyond what is allowed",
    )
    for one in beyond[:limit]:
        add_line(text, "")
        _add_heading(text, one)
        for result in one.results:
            if any(not entry.sound for entry in result.held):
                add_result(text, result)
        add_paragraph(text, _words(one, machine))
    add_more(text, len(beyond) - limit)
    add_refusals(text, "Not run again", not_run_again(calls))
    add_import_advice(text, calls)
    return text


def _add_heading(text: Page, one: ReplayedCall) -> None:
    call = one.call
    run = f"{one.chosen.run}: " if one.chosen.run else ""
    run = "what the candidate recorded, by the reference's call: " if one.chosen.crossed else run
    rank = f"{call.rank}, " if call.rank != "rank0" else ""
    source = f"  {call.source}" if call.source else ""
    add_line(text, f"{run}{rank}step {call.step}, {call.site}{source}")


def add_import_advice(text: Page, calls: Sequence[ReplayedCall]) -> None:
    """How custom functions among the calls that were not run again may be."""
    ops = sorted({one.call.site.op for one in calls if one.refused.endswith(NO_OPERATOR)})
    if ops:
        module, _, name = ops[0].rpartition(".")
        module = "SCRIPT" if module in ("", "__main__") else module
        add_line(text, "")
        add_paragraph(
            text,
            "A custom autograd function is run again where it can be imported, and you trust it:"
            f" --import {module}:{name}",
        )


def add_result(text: Page, result: Result) -> None:
    """One result with who made it, and how far off that is."""
    again = f" (backward {result.occurrence + 1})" if result.occurrence else ""
    add_line(text, f"  {result.role.value} {result.name}{again}")
    for held, times in _runs(result.held):
        maker = f"{held.maker}, {times} times" if times > 1 else held.maker
        add_paragraph(text, figures(held), first=f"    {maker:24} ", indent=" " * 6)
    if result.refused:
        add_line(text, f"    not run again: {result.refused}")


def _runs(held: Sequence[Held]) -> list[tuple[Held, int]]:
    """What was held, re-runs that gave the same once, with how often."""
    found: dict[Held, int] = {}
    for one in held:
        found[one] = found.get(one, 0) + 1
    return list(found.items())


def _words(one: ReplayedCall, machine: str, *, known: bool = False) -> str:
    again = sum(held.maker != RECORDED for held in one.held) // max(1, len(one.results))
    words = _WORDS[one.conclusion].format(machine=machine)
    if known and one.conclusion is Conclusion.TRANSIENT:
        words = _EXPLAINED.format(machine=machine)
    return f"{words} ({counted(again, 're-run')})" if again > 1 else words
