"""What of a script makes two runs of it incomparable: shuffling, augmentation, dropout, seeds, kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.wings.check.data_files import filled, rows_of
from lockstep.wings.check.scripts.reading import Called, Script, read_script

_FILE = Path(__file__).with_name("randomness.yaml")
_MOST_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """A place of a script.

    Parameters
    ----------
    rule
        The row's `id`.
    text
        The line.
    says, edit
        Why it makes runs incomparable, and what to write instead.
    """

    file: str
    line: int
    rule: str
    text: str
    says: str
    edit: str
    source: str


class Rule:
    """One row of the table.

    Parameters
    ----------
    row
        As the file has it.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self.name: str = row["id"]
        self.calls = _matcher(row.get("calls", ()))
        self.methods = frozenset(row.get("methods", ()))
        missing = row.get("missing", ())
        self._missing = _matcher([missing] if isinstance(missing, str) else missing)
        self.is_missing = bool(missing)

    def places(
        self, script: Script, project: Sequence[str]
    ) -> Iterator[tuple[ast.AST, Mapping[str, str]]]:
        """Where it is met; `project` are the names of all calls of all scripts."""
        if self.is_missing and any(
            self._missing(name) or self._missing(name.lstrip(".")) for name in project
        ):
            return
        for called in script.calls:
            blanks = self._blanks(called) if self._is_called(called) else None
            if blanks is not None:
                yield called.node, blanks
                if self._row.get("first_only"):
                    return
        names = self._row.get("assigns", ())
        for assigned in script.assigned:
            if assigned.name in names and _is_true(assigned.node.value):
                yield assigned.node, {}
        if "loops_over" in self._row:
            yield from ((one, {}) for one in script.loops if _is_a_set(one))

    def _is_called(self, called: Called) -> bool:
        name = called.name
        known = self.calls(name) if not name.startswith(".") else name[1:] in self.methods
        return known and not set(called.around) & set(self._row.get("inside", ()))

    def _blanks(self, called: Called) -> Mapping[str, str] | None:
        """What fills the words of a call that has the arguments which the rule is about; None where it has not."""
        node, row = called.node, self._row
        if "when_any" in row:
            given = {one.arg: one.value for one in node.keywords}
            for keyword in row["when_any"]:
                if keyword in given and _is_a_share(given[keyword]):
                    return {"keyword": keyword}
            return None
        if row.get("arguments") == "none":
            return None if node.args or node.keywords else {}
        if "unless_first" in row and node.args and _constant(node.args[0]) in row["unless_first"]:
            return None
        positions = dict(row.get("positions", {}))
        if ".functional." in called.name:
            positions |= row.get("functional_positions", {})
        wanted = row.get("when", {}).items()
        return (
            {}
            if all(_holds(node, name, how, positions.get(name)) for name, how in wanted)
            else None
        )

    def finding(self, file: str, line: int, text: str, blanks: Mapping[str, str]) -> ScriptFinding:
        """In words."""
        row = self._row
        return ScriptFinding(
            file, line, self.name, text, row["says"], filled(row["edit"], blanks), row["source"]
        )


@cache
def rules() -> tuple[Rule, ...]:
    """Every row."""
    return tuple(map(Rule, rows_of(_FILE)))


def look_at_scripts(sources: Mapping[str, str]) -> tuple[list[ScriptFinding], dict[str, str]]:
    """Look at scripts of one project.

    Parameters
    ----------
    sources
        What each file holds.

    Returns
    -------
    tuple
        What was found, by file and line; and why a file was not looked at.
    """
    scripts: dict[str, Script] = {}
    failed: dict[str, str] = {}
    for file, source in sources.items():
        try:
            scripts[file] = read_script(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = (
                f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            )
            failed[file] = f"is no Python of this version ({_reason(error)}{line})"
    project = [called.name for script in scripts.values() for called in script.calls]
    found = {
        (file, node.lineno, rule.name): rule.finding(
            file, node.lineno, _line(sources[file], node.lineno), blanks
        )
        for file, script in scripts.items()
        for rule in rules()
        for node, blanks in rule.places(script, project)
        if isinstance(node, (ast.expr, ast.stmt))
    }
    return [found[key] for key in sorted(found)], failed


def _reason(error: Exception) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__


def _line(source: str, number: int) -> str:
    lines = source.splitlines()
    text = lines[number - 1].strip() if number <= len(lines) else ""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def _matcher(patterns: Sequence[str]) -> Any:
    """Whether a full name matches any of the patterns."""
    if not patterns:
        return lambda name: False
    return re.compile("|".join(translate(pattern) for pattern in patterns)).match


def _holds(node: ast.Call, name: str, how: str, position: int | None) -> bool:
    given = {one.arg: one.value for one in node.keywords}
    value = given.get(name)
    if value is None and position is not None and position < len(node.args):
        value = node.args[position]
    if None in given and value is None:
        return how != "present"  # **options may hold it
    if how == "absent":
        return value is None or (_constant(value) is None and isinstance(value, ast.Constant))
    if (
        how == "positive"
    ):  # what is left out has its default, which is a probability above 0 for p alone
        return name == "p" if value is None else _is_positive(value)
    return value is not None and _is_true(value)


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else _NOT_CONSTANT


_NOT_CONSTANT = object()


def _is_true(node: ast.expr) -> bool:
    """Whether a value is true, as far as is known."""
    value = _constant(node)
    return value is _NOT_CONSTANT or bool(value)


def _is_positive(node: ast.expr) -> bool:
    value = _constant(node)
    return value is _NOT_CONSTANT or (isinstance(value, (int, float)) and value > 0)


def _is_a_share(node: ast.expr) -> bool:
    """Whether a value is a probability above 0, as far as is known."""
    value = _constant(node)
    return isinstance(value, float) and 0.0 < value < 1.0


def _is_a_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "set"
