"""Print the result of `lockstep tune`, as text and as values for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_paragraph,
    add_table,
    counted,
    enveloped,
    terminal_width,
)
from lockstep_tune.profile import time_text
from lockstep_tune.settings import Settings
from lockstep_tune.tuned_run import TimedRun
from lockstep_tune.tuning import TIME_UP, TOGETHER, Tried, Tuned, Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of tuning, with its context.

    tuned: The settings and each try.
    told: What the training told as it is.
    diff, sentences: What a person changes in the script.
    left: Knobs that are not tried, with the reason; none where the user has chosen what is.
    noise: How far two runs as it is are apart in the time of a step, as a share; None where the time did not allow it.
    """

    tuned: Tuned
    told: TimedRun
    diff: str
    sentences: Sequence[str]
    left: Mapping[str, str] = dataclasses.field(default_factory=dict)
    noise: float | None = None


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    tuned = answer.tuned
    left = sum(one.verdict is Verdict.LEFT for one in tuned.tried)
    late = sum(one.words == TIME_UP and not one.name.startswith(TOGETHER) for one in tuned.tried)
    not_tried = f"; the time was used up before {counted(late, 'knob')}" if late else ""
    rejected = sum(one.verdict is Verdict.NUMBERS for one in tuned.tried)
    held = f"; {rejected} faster with other numbers, rejected" if rejected else ""
    if tuned.settings == Settings():
        noisy = sum(one.verdict is Verdict.NOISY for one in tuned.tried)
        told = f"; {noisy} too noisy to tell" if noisy else ""
        word = "TOO NOISY" if noisy else "NOT DONE" if late else "NOTHING TO GAIN"
        tried = counted(len(tuned.tried) - left, "knob")
        return f"{word}: {tried} tried, none kept{told}{held}{not_tried}"
    if tuned.speed is None and any(
        one.name.startswith(TOGETHER) and one.words == TIME_UP for one in tuned.tried
    ):
        return f"NOT TIMED TOGETHER: {tuned.settings}: each is faster{held}{not_tried}"
    if tuned.speed is None or tuned.speed.low <= 1.0:
        return (
            f"TOO NOISY: {tuned.settings}: together {tuned.speed or 'they fail'}{held}{not_tried}"
        )
    return f"FASTER: {tuned.speed} with {tuned.settings}{held}{not_tried}"


def render(answer: Answer, *, limit: int) -> Page:
    """The answer, a row for each try, and the edit."""
    text = Page(terminal_width() or 100)
    add_paragraph(text, headline(answer), first="")
    told = answer.told
    add_paragraph(
        text,
        f"a step takes {time_text(told.step_s * 1e6)} as it is, with {counted(told.threads, 'thread')} on"
        f" {counted(told.cores, 'core')}, {told.device}; intervals of 95%",
    )
    if answer.noise is not None:
        add_paragraph(text, noise_words(answer.noise))
    add_line(text, "")
    columns = [Column("knob"), Column("verdict"), Column("faster"), Column("why")]
    rows = [
        (one.name, one.verdict.value, speed_words(one), one.words) for one in answer.tuned.tried
    ]
    add_table(text, columns, rows, limit=limit, width=terminal_width())
    if answer.left:
        add_line(text, "")
        add_paragraph(text, f"not tried: {'; '.join(left_words(answer))}", first="", indent="  ")
        add_line(text, "")
    for sentence in answer.sentences:
        add_paragraph(text, sentence, first="edit: ", indent="  ")
    for line in answer.diff.splitlines():
        add_line(text, line)
    return text


def noise_words(noise: float) -> str:
    """Say how far two runs of the same training are apart."""
    words = f"two runs of the training as it is differ by {noise:.1%} in the time of a step"
    if noise < _NOISY:
        return words
    return f"{words}: gains of that size cannot be told; use a quieter machine, more --repeat or more --steps"


_NOISY = 0.1


def left_words(answer: Answer) -> list[str]:
    """Which knobs are not tried, by the reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in answer.left.items():
        reasons.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]


def speed_words(tried: Tried) -> str:
    """How many times faster, "" where it was not timed to the end."""
    return "" if tried.speed is None else str(tried.speed)


def as_values(answer: Answer) -> dict[str, Any]:
    """The same for JSON; times in seconds."""
    tuned = answer.tuned
    return enveloped(
        {
            "headline": headline(answer),
            "step_s": answer.told.step_s,
            "noise": answer.noise,
            "knobs": dict(tuned.settings.knobs),
            "own": [one.name for one in tuned.settings.own],
            "speed": None if tuned.speed is None else dataclasses.asdict(tuned.speed),
            "tried": [
                {**dataclasses.asdict(one), "verdict": one.verdict.value} for one in tuned.tried
            ],
            "not_tried": dict(answer.left),
            "diff": answer.diff,
            "edits": list(answer.sentences),
        }
    )
