"""Rules that a user brings in a JSON file: other arguments, other function names, other module names.

The format is that of the vendor's own conversion tool::

    {"rules": {
        "ArgsModifyRule":       [{"func_name": "name", "arg_idx": 0, "arg_new": "new_argument"}],
        "FuncNameModifyRule":   [{"old_name": "func", "new_name": "new_func"}],
        "ModuleNameModifyRule": [{"old_name": "amp", "new_name": "new_amp", "parent_module": "torch.cuda"}]}}

`lockstep.wings.migrate.torch.user` applies them. Rules whose result another rule would change again are refused, so
that migrating twice gives what migrating once gives.
"""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lockstep.core.errors import UsageError

RULES: Mapping[str, str] = {
    "user/ArgsModifyRule": "Your rule: another argument.",
    "user/FuncNameModifyRule": "Your rule: another function name.",
    "user/ModuleNameModifyRule": "Your rule: another module name.",
}
"""What each rule does, in words."""


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """Replace one positional argument of every call of a function.

    Parameters
    ----------
    function
        Its name, bare or dotted.
    index
        Which argument, from 0.
    new
        The expression to write.
    """

    function: str
    index: int
    new: str


@dataclass(frozen=True, slots=True)
class FunctionRule:
    """Give a function another name.

    Parameters
    ----------
    old
        Its name, bare or dotted.
    new
        A bare name replaces the last part; a dotted one is the full name of another function.
    """

    old: str
    new: str

    @property
    def result(self) -> str:
        """The new name in full, as far as the old one is."""
        parent = self.old.rpartition(".")[0]
        return self.new if "." in self.new or not parent else f"{parent}.{self.new}"


@dataclass(frozen=True, slots=True)
class ModuleRule:
    """Give a module another name.

    Parameters
    ----------
    old
        Its last name, such as `amp`.
    new
        The name in its place.
    parent
        Full name of the module that holds it, such as `torch.cuda`; empty for a top-level module.
    """

    old: str
    new: str
    parent: str

    @property
    def path(self) -> str:
        """The full old name."""
        return f"{self.parent}.{self.old}" if self.parent else self.old

    @property
    def result(self) -> str:
        """The full new name."""
        return f"{self.parent}.{self.new}" if self.parent else self.new


@dataclass(frozen=True, slots=True)
class UserRules:
    """All rules of one file."""

    arguments: tuple[ArgumentRule, ...] = ()
    functions: tuple[FunctionRule, ...] = ()
    modules: tuple[ModuleRule, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no rule."""
        return not (self.arguments or self.functions or self.modules)


def read_user_rules(path: Path) -> UserRules:
    """Read a file of rules.

    Raises
    ------
    UsageError
        If the file cannot be read or is not of the format; it says which rule and which key.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is no UTF-8 text; save the rules as UTF-8") from error
    return parse_user_rules(text, str(path))


def parse_user_rules(text: str, file: str) -> UserRules:
    """The rules of a JSON text; `file` is how messages call it.

    Raises
    ------
    UsageError
        If the text is not of the format.
    """
    try:
        value = json.loads(text, object_pairs_hook=partial(_unique, file))
    except json.JSONDecodeError as error:
        raise UsageError(f"{file}:{error.lineno}: is no JSON ({error.msg})") from error
    except RecursionError as error:
        raise UsageError(f"{file}: is nested too deeply for a file of rules") from error
    families = _families(value, file)
    rules = UserRules(
        _read(families, "ArgsModifyRule", _argument_rule, file),
        _read(families, "FuncNameModifyRule", _function_rule, file),
        _read(families, "ModuleNameModifyRule", _module_rule, file),
    )
    _check_together(rules, file)
    return rules


_FAMILIES = ("ArgsModifyRule", "FuncNameModifyRule", "ModuleNameModifyRule")
_Rule = TypeVar("_Rule", ArgumentRule, FunctionRule, ModuleRule)


class _FormatError(ValueError):
    """One rule is not of the format."""


def _unique(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys occur once: of two, JSON readers would drop the first in silence."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UsageError(
                f"{file}: the key {key!r} stands twice in one object; keep one of them"
            )
        found[key] = value
    return found


def _families(value: Any, file: str) -> Mapping[str, Any]:
    form = f'expected {{"rules": {{...}}}} with {", ".join(_FAMILIES)}'
    if not isinstance(value, dict) or not isinstance(value.get("rules"), dict):
        raise UsageError(f"{file}: is no file of rules; {form}")
    for where, keys, known in (
        ("", value.keys(), ("rules",)),
        ("rules: ", value["rules"].keys(), _FAMILIES),
    ):
        unknown = [key for key in keys if key not in known]
        if unknown:
            raise UsageError(f"{file}: {where}unknown key {unknown[0]!r}; {form}")
    families: dict[str, Any] = value["rules"]
    return families


def _read(
    families: Mapping[str, Any], family: str, build: Callable[[dict[str, Any]], _Rule], file: str
) -> tuple[_Rule, ...]:
    entries = families.get(family, [])
    if not isinstance(entries, list):
        raise UsageError(f"{file}: {family}: expected a list of rules")
    rules = []
    for number, entry in enumerate(entries, start=1):
        try:
            if not isinstance(entry, dict):
                raise _FormatError("expected an object")
            rules.append(build(entry))
        except _FormatError as error:
            raise UsageError(f"{file}: {family}, rule {number}: {error}") from error
    return tuple(dict.fromkeys(rules))


def _argument_rule(entry: dict[str, Any]) -> ArgumentRule:
    _check_keys(entry, "func_name", "arg_idx", "arg_new")
    index, new = entry["arg_idx"], entry["arg_new"]
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise _FormatError(f"arg_idx is {index!r}; expected a whole number from 0")
    if not isinstance(new, str) or not _is_argument(new):
        raise _FormatError(f"arg_new is {new!r}; expected one Python expression as a string")
    return ArgumentRule(_dotted(entry, "func_name"), index, new.strip())


def _function_rule(entry: dict[str, Any]) -> FunctionRule:
    _check_keys(entry, "old_name", "new_name")
    return FunctionRule(_dotted(entry, "old_name"), _dotted(entry, "new_name"))


def _module_rule(entry: dict[str, Any]) -> ModuleRule:
    _check_keys(entry, "old_name", "new_name", "parent_module")
    parent = "" if entry["parent_module"] == "" else _dotted(entry, "parent_module")
    for key in ("old_name", "new_name"):
        if "." in _dotted(entry, key):
            raise _FormatError(
                f"{key} is {entry[key]!r}; expected the last name alone, what holds it as parent_module"
            )
    return ModuleRule(entry["old_name"], entry["new_name"], parent)


def _check_keys(entry: dict[str, Any], *keys: str) -> None:
    missing = [key for key in keys if key not in entry]
    if missing:
        raise _FormatError(f"lacks {', '.join(missing)}")
    unknown = [key for key in entry if key not in keys]
    if unknown:
        raise _FormatError(f"unknown key {unknown[0]!r}; expected {', '.join(keys)}")


def _dotted(entry: dict[str, Any], key: str) -> str:
    name = entry[key]
    if not isinstance(name, str) or not all(map(_is_name, name.split("."))):
        raise _FormatError(
            f"{key} is {name!r}; expected a name such as relu or torch.nn.functional.relu"
        )
    return name


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)


def _is_argument(text: str) -> bool:
    """Whether a text is one argument wherever it stands in a call."""
    try:
        call = ast.parse(f"f(0, {text}, 0)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return (
        isinstance(call, ast.Call)
        and len(call.args) == 3
        and not call.keywords
        and not isinstance(call.args[1], ast.Starred)
    )


def _check_together(rules: UserRules, file: str) -> None:
    """Refuse rules that contradict each other, or of which one changes the result of another."""
    _check_once(((rule.old, rule.new) for rule in rules.functions), file)
    _check_once(((rule.path, rule.new) for rule in rules.modules), file)
    _check_once(
        ((f"argument {rule.index} of {rule.function}", rule.new) for rule in rules.arguments), file
    )
    names: tuple[FunctionRule | ModuleRule, ...] = (*rules.functions, *rules.modules)
    for rule in names:
        again = _changed_again(rule, rules)
        if again:
            raise UsageError(
                f"{file}: {again} would change {rule.result} again, which is the result of another"
                " rule; write the final name in the first rule"
            )


def _check_once(pairs: Iterable[tuple[str, str]], file: str) -> None:
    found: dict[str, str] = {}
    for old, new in pairs:
        if found.setdefault(old, new) != new:
            raise UsageError(f"{file}: {old} becomes both {found[old]} and {new}; keep one rule")


def _changed_again(rule: FunctionRule | ModuleRule, rules: UserRules) -> str:
    """The name of a rule that would change the result of `rule`; empty if there is none."""
    last = rule.result.rpartition(".")[2]
    if isinstance(rule, FunctionRule):
        for other in rules.functions:
            bare = "." not in other.old or "." not in rule.result
            if other.old == rule.result or (bare and other.old.rpartition(".")[2] == last):
                return f"FuncNameModifyRule {other.old}"
    for module in rules.modules:
        under = f"{rule.result}.".startswith(f"{module.path}.")
        # A module rule that holds for the old name too is applied together with this one.
        old = rule.old if isinstance(rule, FunctionRule) else rule.path
        together = f"{old}.".startswith(f"{module.path}.") and module is not rule
        if under and not (together and "." not in rule.new):
            return f"ModuleNameModifyRule {module.path}"
        if isinstance(rule, ModuleRule) and module.path.startswith(f"{rule.result}."):
            return f"ModuleNameModifyRule {module.path}"
    return ""
