"""Print the result of `lockstep bisect`, as text and as values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lockstep.terminal import Page, add_line, add_paragraph, counted, enveloped, shell_line
from lockstep_tune.bisecting import Found, Outcome, Trial
from lockstep_tune.configurations import KIND
from lockstep_tune.searching import Answer
from lockstep_tune.switches import SWITCHES, State


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    found = answer.last
    first = answer.searched[0]
    if found.first is not None and found.before is not None:
        span = "".join(f" or {one.state}" for one in found.between)
        adds = found.ladder.adds.get(found.first.state, "")
        cause = f": {adds}" if adds else ""
        within = " and ".join(answer.smallest) or found.ladder.name
        return f"FOUND: {within}: {found.before.state} agrees, {found.first.state}{span} differs{cause}"
    if first.agrees_throughout:
        if answer.kind == "variable":
            names = [one.name for one in first.ladder.states]
            return f"AGREE: the numbers agree in each state that was run: {'; '.join(names)}"
        return "AGREE: the command agrees with the reference as it is; there is nothing to search"
    if first.untold is not None:
        return f"NOT TOLD: {first.untold.state} could not be compared: {first.untold.words}"
    return (
        f"NOT FOUND: the numbers differ in the state '{first.ladder.states[0].name}' too; `lockstep compare` with a"
        " recording of the command shows where they part"
    )


def render(answer: Answer, trials: Sequence[Trial], command: Sequence[str]) -> Page:
    """The answer, each trial, and how to run the command so that it agrees."""
    text = Page()
    add_paragraph(text, headline(answer), first="")
    if answer.alone is not None:
        add_paragraph(text, f"{answer.alone.state}: {answer.alone.outcome.value}", indent="  ")
    for sentence in _after_nothing(answer, trials):
        add_paragraph(text, sentence, indent="    ", first="  ")
    if answer.together:
        add_paragraph(
            text,
            f"it changes the numbers only together with {' and '.join(answer.together)}",
            indent="  ",
        )
    for one in answer.searched[1:]:
        add_paragraph(text, _finer(one), indent="    ", first="  ")
    add_line(text, "")
    for trial in trials:
        short = trial.short or trial.words
        add_paragraph(
            text, f"{trial.outcome.value}: {trial.state}: {short}", indent="    ", first="  "
        )
    add_line(text, f"  {counted(len(trials), 'trial')}")
    state = _last_that_agrees(answer)
    if state is not None and answer.kind == KIND:
        names = answer.smallest or (answer.last.ladder.name.removeprefix(f"{KIND} "),)
        add_line(text, "")
        add_paragraph(
            text, f"What next: give {', '.join(names)} the value of the good file", first=""
        )
    elif state is not None and (state.environment or state.python or state.command):
        words = [f"{name}={value}" for name, value in state.environment.items()]
        base = state.command or tuple(command)
        again = [state.python or base[0], *base[1:]]
        add_line(text, "")
        add_line(text, "What next: run it in the last state that agrees")
        add_line(text, f"  {shell_line(['env', *words, *again] if words else again)}")
    return text


def _after_nothing(answer: Answer, trials: Sequence[Trial]) -> list[str]:
    """Where nothing was found: what the comparison of the safest state names, and what was not searched."""
    if answer.last.first is not None or answer.searched[0].agrees_throughout:
        return []
    safest = {one.ladder.states[0].name for one in answer.searched}
    named = [
        f"{one.state} differs: {one.words}"
        for one in trials
        if one.state in safest and one.outcome is Outcome.DIFFERS
    ]
    return [*named, _NOT_SEARCHED]


_NOT_SEARCHED = (
    "Not searched: packages and Python (--python), commits (--commits), variables that you do not give (--env),"
    " configuration files (--config GOOD..BAD) and other files that the script reads"
)


def _finer(found: Found) -> str:
    if found.first is None or found.before is None:
        return f"within {found.ladder.name}: no state of it explains the difference alone"
    adds = found.ladder.adds.get(found.first.state, "")
    return (
        f"within {found.ladder.name}: {found.before.state} agrees, {found.first.state} differs"
        + (f": {adds}" if adds else "")
    )


def _last_that_agrees(answer: Answer) -> State | None:
    found = answer.last
    if found.before is None:
        return None
    return next((one for one in found.ladder.states if one.name == found.before.state), None)


def as_values(answer: Answer, trials: Sequence[Trial]) -> dict[str, Any]:
    """The same for JSON."""
    return enveloped(
        {
            "headline": headline(answer),
            "switches": [
                {"name": one, "what": SWITCHES.get(one, answer.kind)} for one in answer.smallest
            ],
            "together_with": list(answer.together),
            "searched": [
                {
                    "what": one.ladder.name,
                    "agrees": None if one.before is None else one.before.state,
                    "differs": None if one.first is None else one.first.state,
                    "adds": None if one.first is None else one.ladder.adds.get(one.first.state),
                    "not_told": [between.state for between in one.between],
                }
                for one in answer.searched
            ],
            "trials": [{**dataclasses.asdict(one), "outcome": one.outcome.value} for one in trials],
        }
    )
