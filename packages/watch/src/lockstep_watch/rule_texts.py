"""The parts of a rule's docstring: formula, usual cause, cure and source."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep_watch.rules import Rule, name_of, settings_of

PARTS = ("Formula", "Usual cause", "Cure", "Source")
"""What the docstring of a rule has, in this order; a rule of a user's own may lack any."""

_FOR_ALL = """A rule with the setting `steps` fires when its formula holds in that many watched steps in a row, unless
it says otherwise. Norms are Euclidean; a limit that no source is given for is Lockstep's. A note is printed once and
does not change the exit code."""

_HEAD = f"""# Rules

`lockstep watch` checks each step of your training by these rules; `lockstep watch --list-rules` prints them. You
change a setting by `--set RULE.SETTING=VALUE`. {_FOR_ALL}
`make docs` makes this page from the rules' docstrings.
"""

_PART = re.compile(rf"({'|'.join(PARTS)}): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule in words.

    name: As it is typed.
    what: What it fires on, a sentence.
    settings: Each with its default.
    parts: The text of each of `PARTS` that it has.
    """

    name: str
    what: str
    settings: dict[str, Any]
    parts: dict[str, str] = field(default_factory=dict)


def text_of(rule: Rule) -> RuleText:
    """A rule in the words of its docstring.

    >>> from lockstep_watch.rules import dead_relu
    >>> text_of(dead_relu).parts["Formula"]
    'zeros / elements >= share in `steps` watched steps in a row.'
    """
    paragraphs = [" ".join(one.split()) for one in (inspect.getdoc(rule) or "").split("\n\n")]
    found = [match for one in paragraphs if (match := _PART.fullmatch(one))]
    parts = {match[1]: match[2] for match in found}
    return RuleText(name_of(rule), paragraphs[0], settings_of(rule), parts)


def rule_values(rule: Rule) -> dict[str, Any]:
    """Return a rule's words as JSON values."""
    text = text_of(rule)
    parts = {name.lower().replace(" ", "_"): words for name, words in text.parts.items()}
    return {"name": text.name, "fires_on": text.what, "settings": text.settings, **parts}


def listing(rules: Sequence[Rule], *, width: int) -> str:
    """All rules for a terminal: what each fires on, its settings, formula, cause, cure and source."""
    told = ["\n".join(_lines(text_of(rule), width)) for rule in rules]
    return "\n\n".join([textwrap.fill(_FOR_ALL, width), *told])


def _lines(text: RuleText, width: int) -> list[str]:
    lines = [text.name]
    told = [text.what] if text.what else []
    told += [f"Settings: {', '.join(_settings(text))}."] if text.settings else []
    told += [f"{name}: {text.parts[name]}" for name in PARTS if name in text.parts]
    for one in told:
        lines += textwrap.wrap(
            one, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    return lines


def page(rules: Sequence[Rule]) -> str:
    """`docs/rules.md`: a section a rule."""
    return "\n".join([_HEAD, *(_section(text_of(rule)) for rule in rules)])


def _section(text: RuleText) -> str:
    rows = [text.what]
    if text.settings:
        rows.append("Settings: " + ", ".join(f"`{one}`" for one in _settings(text)) + ".")
    rows += [f"- **{name}:** {text.parts[name]}" for name in PARTS if name in text.parts]
    head = rows[: 2 if text.settings else 1]
    return f"## {text.name}\n\n" + "\n\n".join([*head, "\n".join(rows[len(head) :])]) + "\n"


def _settings(text: RuleText) -> list[str]:
    return [
        f"{name} = {'not set' if value is None else format(value, 'g')}"
        for name, value in text.settings.items()
    ]
