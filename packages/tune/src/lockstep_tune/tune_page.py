"""The page of `lockstep tune`: how much faster, each knob with its verdict, and the edit."""

from __future__ import annotations

from pathlib import Path

from lockstep.page import Block, Card, Code, Command, Commands, Grid, Page, Sentences, Verdict
from lockstep_tune import tuning
from lockstep_tune.profile import time_text
from lockstep_tune.settings import settings_text
from lockstep_tune.tune_screen import Answer, headline, left_words, speed_words


def tune_page(answer: Answer, command: str, apply: str) -> Page:
    """Compose the page.

    command: What was tuned.
    apply: The command that applies the settings.
    """
    tuned = answer.tuned
    is_faster = tuned.speed is not None and tuned.speed.low > 1.0
    words = headline(answer)
    facts = [("One step as it is", time_text(answer.told.step_s * 1e6))]
    facts += [("Faster, 95% interval", str(tuned.speed))] if tuned.speed is not None else []
    facts += [
        (verdict.value.capitalize(), str(count))
        for verdict in tuning.Verdict
        if (count := sum(one.verdict is verdict for one in tuned.tried))
    ]
    verdict = Verdict(
        "agree" if is_faster else "setup", "better" if is_faster else "origin", "Tune",
        f"{len(tuned.tried)} knobs", words, "", facts,
    )  # fmt: skip
    titles = ("knob", "on top of", "verdict", "faster", "why")
    rows = [
        (one.name, one.on, one.verdict.value, speed_words(one), one.words) for one in tuned.tried
    ]
    left = [Card("Not tried", (Sentences(left_words(answer)),))] if answer.left else []
    return Page(
        title=f"{words} · Lockstep",
        areas=(
            verdict,
            Card("Each knob", (Grid(titles, rows),)),
            *left,
            Card(
                "Settings",
                (
                    _code("tuned.yaml", settings_text(tuned.settings)),
                    Commands((Command("Apply them", apply),)),
                ),
            ),
            Card("The edit, to have it without run-tuned", _edit(answer)),
        ),
        about=command,
    )


def _edit(answer: Answer) -> list[Block]:
    diff: list[Block] = [_code("diff", answer.diff)] if answer.diff else []
    return [*diff, Sentences(answer.sentences, empty="" if diff else "Nothing is to be changed.")]


def _code(title: str, text: str) -> Code:
    return Code(title, list(enumerate(text.splitlines(), 1)), ())


PAGE = Path("tune.html")
