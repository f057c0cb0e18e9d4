"""Symptoms of a training and the checks for each, in order; the texts stand in `symptoms.yaml`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lockstep.errors import UsageError
from lockstep.terminal import nearest_names

_FILE = Path(__file__).with_name("symptoms.yaml")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    stage: settings, code, model, data, run or result: in this order they are gone through.
    check: What to ask.
    command: The command of Lockstep that answers it, as it is typed.
    """

    stage: str
    check: str
    command: str


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom of a training, with checks in order; `also` has other words for it."""

    name: str
    title: str
    checks: tuple[Check, ...]
    also: tuple[str, ...] = ()


def symptoms() -> list[Symptom]:
    """All that there are."""
    rows: list[dict[str, Any]] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return [
        Symptom(
            row["name"],
            row["title"],
            tuple(Check(**one) for one in row["checks"]),
            tuple(row["also"]),
        )
        for row in rows
    ]


def symptom_called(text: str) -> Symptom:
    """The one of that name, that is also called so, or the only one that has these words in its name, title or `also`.

    Where none has them all, it is the one with the longest name in `also` whose words all lie in the text.

    Several that have them are not told apart, but where their title alone has them all.

    Raises UsageError with the nearest names, where there is none or more than one.
    """
    known = symptoms()
    words = text.lower().replace("-", " ").split()
    found = [one for one in known if one.name == text.lower() or " ".join(words) in one.also]
    for has in (_words, _all_words):
        found = found or [one for one in known if words and all(word in has(one) for word in words)]
    found = found or _said_within(set(words), known)
    if len(found) == 1:
        return found[0]
    names = [one.name for one in found or known]
    near = ", ".join(nearest_names(text, names)) or ", ".join(names)
    what = "no symptom" if not found else "more than one symptom"
    raise UsageError(f"there is {what} {text!r}; nearest: {near}")


def _said_within(typed: set[str], known: Sequence[Symptom]) -> list[Symptom]:
    """Those of which a name from `also` lies in a text, whole; of several the ones with the longest such name."""
    longest = {
        one.name: max(
            (
                len(name.split())
                for name in (one.name.replace("-", " "), *one.also)
                if set(name.split()) <= typed
            ),
            default=0,
        )
        for one in known
    }
    most = max(longest.values(), default=0)
    return [one for one in known if most and longest[one.name] == most]


def _words(symptom: Symptom) -> str:
    return f"{symptom.name.replace('-', ' ')} {symptom.title}".lower()


def _all_words(symptom: Symptom) -> str:
    return " ".join([_words(symptom), *symptom.also])


def overview(all_symptoms: Sequence[Symptom]) -> str:
    """The symptoms, a line each."""
    width = max(len(one.name) for one in all_symptoms)
    rows = [f"  {one.name:<{width}}  {one.title}" for one in all_symptoms]
    return "\n".join(
        [
            "Which symptom does your training show?",
            *rows,
            "",
            "lockstep guide SYMPTOM lists the checks.",
        ]
    )


def told(symptom: Symptom, *, width: int) -> str:
    """Return the checks of a symptom, numbered, each with its command on a line that can be pasted."""
    lines = [f"{symptom.title}: check in this order"]
    for number, one in enumerate(symptom.checks, 1):
        head = f"{number}. {one.stage}: "
        lines += textwrap.wrap(
            head + one.check, width, subsequent_indent="   ", break_on_hyphens=False
        )
        lines.append(f"     {one.command}")
    return "\n".join(lines)


_HEAD = """# Guide

Find your symptom, and check in the given order. `lockstep guide` prints the same; `make docs` makes this page.
`train.py` stands for your script, `ref` for a recording of a run that you trust, `cand` for one of the run in question.
"""


def page() -> str:
    """`docs/guide.md`: a section a symptom."""
    return "\n".join([_HEAD, *(_section(one) for one in symptoms())])


def _section(symptom: Symptom) -> str:
    rows = [
        f"{number}. **{one.stage}.** {one.check}\n   `{one.command}`"
        for number, one in enumerate(symptom.checks, 1)
    ]
    head = f"## {symptom.title[0].upper()}{symptom.title[1:]}"
    return "\n".join([head, "", f"`lockstep guide {symptom.name}`", "", *rows, ""])
