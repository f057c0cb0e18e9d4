"""Which rules are at work and with which settings; one that raises is switched off."""

from __future__ import annotations

import inspect
import runpy
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.terminal import nearest_names, words_of
from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules import BUILT_IN, Rule, name_of, settings_of


@dataclass(slots=True)
class ChosenRule:
    """A rule with its settings.

    name: As it is typed.
    function: The rule.
    settings: All of them.
    off_because: Why it was switched off, or "".
    """

    name: str
    function: Rule
    settings: dict[str, Any]
    off_because: str = ""

    def hits(self, step: ObservedStep) -> list[Hit]:
        """Return the rule's hits; if it raises, none, and the rule is off from then on."""
        if self.off_because:
            return []
        try:
            found = list(self.function(step, **self.settings))
            return [replace(hit, rule=self.name) for hit in found]
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(at.filename).name}:{at.lineno}"
            self.off_because = f"{type(error).__name__}: {words_of(error)} ({where})"
            return []


def choose(
    added: Sequence[Rule],
    *,
    only: Sequence[str] = (),
    off: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[ChosenRule]:
    """The rules of this run.

    added: Rules beside the built-in ones; one of the same name takes the place of a built-in one.
    only, off: Names of rules: these alone, without these.
    settings: As typed: `dead-relu.share=0.9`.

    Raises UsageError if a rule or a setting is unknown, or a value is no number.
    """
    rules = {name_of(rule): rule for rule in (*BUILT_IN, *added)}
    for name in (*only, *off):
        check_name(name, rules)
    chosen = [name for name in rules if (not only or name in only) and name not in off]
    found = {name: ChosenRule(name, rules[name], settings_of(rules[name])) for name in chosen}
    for text in settings:
        apply_setting(found, text)
    return list(found.values())


def check_name(name: str, known: Iterable[str]) -> None:
    """Refuse a rule that there is not. Raises UsageError with the nearest names."""
    known = list(known)
    if name not in known:
        near = "".join(
            f"; nearest: {one}" for one in [", ".join(nearest_names(name, known))] if one
        )
        raise UsageError(
            f"there is no rule {name!r}{near}; `lockstep watch --list-rules` prints all rules"
        )


def rules_in(path: Path) -> list[Rule]:
    """The rules of a file: its functions whose first argument is called `step`.

    Raises UsageError if the file cannot be run, with its line, or holds no rule.
    """
    try:
        held = runpy.run_path(str(path), run_name="lockstep_rules")
    except SyntaxError as error:
        raise UsageError(f"{path}:{error.lineno}: {error.msg}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except Exception as error:
        lines = [
            one for one in traceback.extract_tb(error.__traceback__) if one.filename == str(path)
        ]
        at = f"{path}:{lines[-1].lineno}" if lines else str(path)
        raise UsageError(f"{at}: {type(error).__name__}: {words_of(error)}") from error
    rules = [value for value in held.values() if _is_rule(value)]
    if not rules:
        raise UsageError(
            f"{path}: holds no rule; a rule is a function `def my_rule(step, *, limit=1.0)` that yields step.hit(...)"
        )
    return rules


def _is_rule(value: object) -> bool:
    if not inspect.isfunction(value) or value.__name__.startswith("_"):
        return False
    return next(iter(inspect.signature(value).parameters), "") == "step"


def apply_setting(found: dict[str, ChosenRule], text: str) -> None:
    """Give a rule another setting, as typed: `dead-relu.share=0.9`.

    Raises UsageError if the rule or the setting is unknown, or the value is no number.
    """
    left, _, value = text.partition("=")
    name, _, setting = left.strip().partition(".")
    if not (name and setting and value):
        raise UsageError(f"--set {text}: write RULE.SETTING=VALUE, as in dead-relu.share=0.9")
    check_name(name, found)
    if setting not in found[name].settings:
        has = ", ".join(found[name].settings) or "none"
        raise UsageError(f"--set {text}: rule {name} has no setting {setting!r}; it has {has}")
    default = found[name].settings[setting]
    try:
        found[name].settings[setting] = int(value) if isinstance(default, int) else float(value)
    except ValueError as error:
        raise UsageError(f"--set {text}: {value!r} is not a number") from error
