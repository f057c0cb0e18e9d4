"""Rules that a user brings in a JSON file: other arguments, other function names, other module names.

The format is that of the vendor's own conversion tool::

    {"rules": {
        "ArgsModifyRule":       [{"func_name": "name", "arg_idx": 0, "arg_new": "new_argument"}],
        "FuncNameModifyRule":   [{"old_name": "func", "new_name": "new_func"}],
        "ModuleNameModifyRule": [{"old_name": "amp", "new_name": "new_amp", "parent_module": "torch.cuda"}]}}

Each becomes one row: a name, and what takes its place; `lockstep_migrate.torch.user_matching` finds the places.
Rules whose result another rule would change again are refused, so that migrating twice gives what migrating once gives.
"""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError

ARGUMENT, FUNCTION, MODULE = "ArgsModifyRule", "FuncNameModifyRule", "ModuleNameModifyRule"
_KEYS = {
    ARGUMENT: ("func_name", "arg_idx", "arg_new"),
    FUNCTION: ("old_name", "new_name"),
    MODULE: ("old_name", "new_name", "parent_module"),
}
_FORM = f'expected {{"rules": {{...}}}} with {", ".join(_KEYS)}'


@dataclass(frozen=True, slots=True)
class UserRule:
    """One row.

    family: What the file calls rules of this kind.
    old: The name of a function, bare or dotted, or the full name of a module.
    new: A bare name replaces the last part, a dotted one is another function; for an argument its new text.
    index: Which argument, from 0.
    """

    family: str
    old: str
    new: str
    index: int = -1

    @property
    def identifier(self) -> str:
        """What reports call the rule."""
        return f"user/{self.family}/{self.old}"

    @property
    def moves(self) -> bool:
        """Whether the new name is not just another last part."""
        return self.family == FUNCTION and "." in self.new

    @property
    def result(self) -> str:
        """The new name in full, as far as the old one is."""
        parent = self.old.rpartition(".")[0]
        return self.new if self.moves or not parent else f"{parent}.{self.new}"

    @property
    def reason(self) -> str:
        """The rule in words."""
        if self.family == ARGUMENT:
            return f"your rule: argument {self.index} of {self.old} is {self.new}"
        return f"your rule: {self.old} is {self.result}"


UserRules = tuple[UserRule, ...]


def read_user_rules(path: Path) -> UserRules:
    """Read a file of rules.

    Raises UsageError if the file cannot be read or is not of the format; it says which rule and which key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text; save the rules as UTF-8") from error
    return parse_user_rules(text, str(path))


def parse_user_rules(text: str, file: str) -> UserRules:
    """The rules of a JSON text; `file` is how messages call it. Raises UsageError if the text is not of the format."""
    try:
        value = json.loads(text, object_pairs_hook=partial(_unique, file))
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{error.lineno}: is not JSON ({error.msg})") from error
    except RecursionError as error:
        raise UsageError(f"{file}: is nested too deeply for a file of rules") from error
    if not isinstance(value, dict) or not isinstance(value.get("rules"), dict):
        raise UsageError(f"{file}: is not a file of rules; {_FORM}")
    for where, keys, known in (("", value, ["rules"]), ("rules: ", value["rules"], [*_KEYS])):
        for key in keys:
            if key not in known:
                raise UsageError(f"{file}: {where}unknown key {key!r}; {_FORM}")
    rules = tuple(dict.fromkeys(_rules(value["rules"], file)))
    _check_together(rules, file)
    return rules


def _unique(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys occur once: of two, JSON readers would drop the first in silence."""
    names = [key for key, _ in pairs]
    for key in names:
        if names.count(key) > 1:
            reason = f"the key {key!r} stands twice in one object; keep one of them"
            raise UsageError(f"{file}: {reason}")
    return dict(pairs)


def _rules(families: dict[str, Any], file: str) -> Iterator[UserRule]:
    for family in _KEYS:
        entries = families.get(family, [])
        if not isinstance(entries, list):
            raise UsageError(f"{file}: {family}: expected a list of rules")
        for number, entry in enumerate(entries, start=1):
            problem = _problem(family, entry)
            if problem:
                raise UsageError(f"{file}: {family}, rule {number}: {problem}")
            if family == ARGUMENT:
                new = entry["arg_new"].strip()
                yield UserRule(family, entry["func_name"], new, entry["arg_idx"])
            else:
                parent = entry.get("parent_module", "")
                old = f"{parent}.{entry['old_name']}" if parent else entry["old_name"]
                yield UserRule(family, old, entry["new_name"])


def _problem(family: str, entry: Any) -> str:
    """What is wrong with one rule; nothing where it is of the format."""
    if not isinstance(entry, dict):
        return "expected an object"
    keys = _KEYS[family]
    missing = [key for key in keys if key not in entry]
    unknown = [key for key in entry if key not in keys]
    if missing:
        return f"lacks {', '.join(missing)}"
    if unknown:
        return f"unknown key {unknown[0]!r}; expected {', '.join(keys)}"
    for key, value in entry.items():
        if key == "arg_idx":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                return f"arg_idx is {value!r}; expected a whole number from 0"
        elif key == "arg_new":
            if not isinstance(value, str) or not _is_argument(value):
                return f"arg_new is {value!r}; expected one Python expression as a string"
        elif not (key == "parent_module" and value == "") and not _is_dotted(value):
            return f"{key} is {value!r}; expected a name such as relu or torch.nn.functional.relu"
        elif family == MODULE and key != "parent_module" and "." in value:
            return (
                f"{key} is {value!r}; expected the last name alone, what holds it as parent_module"
            )
    return ""


def _is_dotted(name: Any) -> bool:
    words = name.split(".") if isinstance(name, str) else [""]
    return all(word.isidentifier() and not keyword.iskeyword(word) for word in words)


def _is_argument(text: str) -> bool:
    """Whether a text is one argument wherever it stands in a call."""
    try:
        call = ast.parse(f"f(0, {text}, 0)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    plain = isinstance(call, ast.Call) and len(call.args) == 3 and not call.keywords
    return plain and not isinstance(call.args[1], ast.Starred)  # type: ignore[attr-defined]


def _check_together(rules: UserRules, file: str) -> None:
    """Refuse rules that contradict each other, or of which one changes the result of another."""
    found: dict[tuple[str, str, int], str] = {}
    for rule in rules:
        other = found.setdefault((rule.family, rule.old, rule.index), rule.new)
        if other != rule.new:
            what = f"argument {rule.index} of {rule.old}" if rule.family == ARGUMENT else rule.old
            raise UsageError(f"{file}: {what} becomes both {other} and {rule.new}; keep one rule")
    for rule in rules:
        again = next((one for one in rules if _changes_again(one, rule)), None)
        if again:
            raise UsageError(
                f"{file}: {again.family} {again.old} would change {rule.result} again, which is the result of another"
                " rule; write the final name in the first rule"
            )


def _changes_again(other: UserRule, rule: UserRule) -> bool:
    """Whether another rule would change the result of a rule for a name."""
    if ARGUMENT in (rule.family, other.family):
        return False
    if other.family == FUNCTION:
        bare = "." not in other.old or "." not in rule.result
        same = bare and other.old.rpartition(".")[2] == rule.result.rpartition(".")[2]
        return rule.family == FUNCTION and (other.old == rule.result or same)
    # A module rule that holds for the old name too is applied together with this one.
    together = f"{rule.old}.".startswith(f"{other.old}.") and other is not rule
    under = f"{rule.result}.".startswith(f"{other.old}.")
    if under and not (together and "." not in rule.new):
        return True
    return rule.family == MODULE and other.old.startswith(f"{rule.result}.")
