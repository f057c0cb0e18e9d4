"""Find the lines of a script that make two runs incomparable: shuffling, augmentation, dropout, seeds, kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_check.data_files import filled, rows_of
from lockstep_check.scripts.reading import Called, Script, read_script
from lockstep_check.scripts.values import Project, Values

_FILE = Path(__file__).with_name("randomness.yaml")
_MOST_CHARACTERS = 120
_MOST_CALLS = 3
_UNREACHED = "unreached"


_EVALUATION = re.compile(
    r"(?<![a-z])((val|valid|validation|test|eval|evaluation|dev)(?![a-z])|(val|test|eval)(set|loader|data|ds|dl))"
)
"""Words of names that say that what they name is not trained on."""


class Told(Enum):
    """Whether a place makes runs incomparable."""

    YES = "yes"
    NOT_TOLD = "could not be told"
    """It may: a value that decides is not known from the scripts."""
    NO = "no"


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """A place of a script.

    rule: The row's `id`.
    text: The line.
    says, edit: Why it makes runs incomparable, and what to write instead.
    certain: False where what decides is not known, so that it could not be told.
    """

    file: str
    line: int
    rule: str
    text: str
    says: str
    edit: str
    source: str
    certain: bool = True


Place = tuple[ast.AST, Mapping[str, str], Told]


class Rule:
    """One row of the table.

    row: As the file has it.
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._row = row
        self.name: str = row["id"]
        self.calls = _matcher(row.get("calls", ()))
        self.methods = frozenset(row.get("methods", ()))
        missing = row.get("missing", ())
        self._missing = _matcher([missing] if isinstance(missing, str) else missing)
        self._behind = _matcher(row.get("behind", ()))
        self._not_calls = _matcher(row.get("not_calls", ()))
        self.is_missing = bool(missing)

    def places(self, script: Script, project: Project) -> Iterator[Place]:
        """Where it is met, or may be."""
        lacks, unreached = self._lacks(project) if self.is_missing else (Told.YES, "")
        if lacks is Told.NO:
            return
        for called in script.calls:
            if not self._is_called(called):
                continue
            told, blanks = self._arguments(called, project)
            if told is not Told.NO:
                blanks = {**blanks, _UNREACHED: unreached}
                unsure = self._row.get("unsure") or Told.NOT_TOLD in (told, lacks)
                yield called.node, blanks, Told.NOT_TOLD if unsure else Told.YES
                if self._row.get("first_only"):
                    return
        yield from self._other_places(script, project)

    def _other_places(self, script: Script, project: Project) -> Iterator[Place]:
        names = self._row.get("assigns", ())
        for assigned in script.assigned:
            if assigned.name in names:
                told = _told(project.values(assigned.node.value, assigned.scope), bool)
                if told is not Told.NO:
                    yield assigned.node, {}, told
        if "loops_over" in self._row:
            yield from ((one, {}, Told.YES) for one in script.loops if _is_a_set(one))

    def _lacks(self, project: Project) -> tuple[Told, str]:
        """Whether the project never makes any of the calls that it should; and what of one that is not come to."""
        calls = [
            called
            for script in project.scripts.values()
            for called in script.calls
            if self._missing(called.name) or self._missing(called.name.lstrip("."))
        ]
        answers = [project.reached(called.scope) for called in calls]
        if True in answers:
            return Told.NO, ""
        told = Told.NOT_TOLD if None in answers else Told.YES
        where = ", ".join(f"{one.scope.file}:{one.node.lineno}" for one in calls[:_MOST_CALLS])
        how = "may not be" if told is Told.NOT_TOLD else "is not"
        return told, f" {where} would do it, and {how} come to with the defaults." if calls else ""

    def _is_called(self, called: Called) -> bool:
        name = called.name
        known = self.calls(name) if not name.startswith(".") else name[1:] in self.methods
        if not known or self._not_calls(name):
            return False
        return not set(called.around) & set(self._row.get("inside", ()))

    def _arguments(self, called: Called, project: Project) -> tuple[Told, Mapping[str, str]]:
        """Whether a call has the arguments that the rule is about, and what fills its words."""
        node, row = called.node, self._row
        if row.get("repeats") and not project.repeats(called.scope):
            return Told.NO, {}
        if row.get("unless_evaluation") and _is_for_evaluation(called):
            return Told.NO, {}
        if "when_any" in row:
            return self._any_share(called, project)
        if "behind" in row:
            seeds = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "seed")]
            behind = (name for seed in seeds for name in project.calls_behind(seed, called.scope))
            return Told.YES if any(map(self._behind, behind)) else Told.NO, {}
        if row.get("arguments") == "none":
            return Told.NO if node.args or node.keywords else Told.YES, {}
        if "unless_first" in row and node.args:
            first = project.values(node.args[0], called.scope)
            return _told(first, lambda value: value not in row["unless_first"]), {}
        positions = dict(row.get("positions", {}))
        if ".functional." in called.name:
            positions |= row.get("functional_positions", {})
        wanted = row.get("when", {}).items()
        answers = [_holds(called, project, name, how, positions.get(name)) for name, how in wanted]
        return _all(answers), {}

    def _any_share(self, called: Called, project: Project) -> tuple[Told, Mapping[str, str]]:
        given = {one.arg: one.value for one in called.node.keywords}
        not_told: tuple[Told, Mapping[str, str]] = (Told.NO, {})
        for keyword in self._row["when_any"]:
            if keyword in given:
                told = _told(project.values(given[keyword], called.scope), _is_a_share)
                if told is Told.YES:
                    return told, {"keyword": keyword}
                if told is Told.NOT_TOLD:
                    not_told = (told, {"keyword": keyword})
        return not_told

    def finding(
        self, file: str, line: int, text: str, blanks: Mapping[str, str], told: Told
    ) -> ScriptFinding:
        """In words."""
        row = self._row
        says = row["says"] + blanks.get(_UNREACHED, "")
        edit, certain = filled(row["edit"], blanks), told is Told.YES
        return ScriptFinding(file, line, self.name, text, says, edit, row["source"], certain)


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
            scripts[file] = read_script(source, file)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = (
                f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            )
            failed[file] = f"is no Python of this version ({_reason(error)}{line})"
    project = Project(scripts)
    found = {
        (file, node.lineno, rule.name): rule.finding(
            file, node.lineno, _line(sources[file], node.lineno), blanks, told
        )
        for file, script in scripts.items()
        for rule in rules()
        for node, blanks, told in rule.places(script, project)
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


def _holds(called: Called, project: Project, name: str, how: str, position: int | None) -> Told:
    node = called.node
    given = {one.arg: one.value for one in node.keywords}
    value = given.get(name)
    if value is None and position is not None and position < len(node.args):
        value = node.args[position]
    if None in given and value is None:
        return Told.NOT_TOLD if how != "absent" else Told.YES  # **options may hold it
    if how == "absent":
        absent = value is None or project.values(value, called.scope) == frozenset([None])
        return Told.YES if absent else Told.NO
    if value is None:  # it has its default, which is a probability above 0 for p alone
        return Told.YES if how == "positive" and name == "p" else Told.NO
    return _told(project.values(value, called.scope), _is_positive if how == "positive" else bool)


def _told(values: Values, harmful: Callable[[Any], bool]) -> Told:
    """Whether any of the values that may be is one that does harm."""
    if values is None:
        return Told.NOT_TOLD
    return Told.YES if any(map(harmful, values)) else Told.NO


def _all(answers: Sequence[Told]) -> Told:
    if Told.NO in answers:
        return Told.NO
    return Told.NOT_TOLD if Told.NOT_TOLD in answers else Told.YES


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _is_a_share(value: object) -> bool:
    """Whether a value is a probability above 0."""
    return isinstance(value, float) and 0.0 < value < 1.0


def _is_for_evaluation(called: Called) -> bool:
    """Whether a loader is named as one whose samples are not trained on."""
    words = [called.target, *(ast.unparse(one) for one in called.node.args[:1])]
    words += [ast.unparse(one.value) for one in called.node.keywords if one.arg == "dataset"]
    return any(_EVALUATION.search(word.lower()) for word in words)


def _is_a_set(node: ast.expr) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "set"
