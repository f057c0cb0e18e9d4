"""Names that the two runs use for the same thing: the mapping file, written by hand, and those found for a rank.

```yaml
# reference name: candidate name. A * stands for any text, the same on both sides; quote a name that
# begins with it.
modules:
  encoder.layer.*: blocks.*
  pooler: head.pool
parameters:
  norm.gain: norm.weight
operators:
  vendor.fused_norm: torch.nn.functional.layer_norm
# of two frameworks: what optimizers keep, and how tensors lie (`lockstep.core.tensor_layouts`)
states: {exp_avg: momentum}
layouts: {encoder.conv.weight: OIHW -> HWIO}    # of parameters, by the reference's name
activations: [NCHW -> NHWC]
guesses:    # of `lockstep map`: used for nothing until you move a line to its section above
  modules: {act: relu}
```

A module stands for everything below it; "" is the model. An operator is called by its full name or, where that is
unmistakable, by the last part of it. `a + b: c` says that a parameter of the candidate is the sum of two.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import yaml

from lockstep.align.module_trees import Node, module_tree
from lockstep.align.names import BY_FILE, SUM, NameMap
from lockstep.align.renames import find_renames
from lockstep.core.errors import UsageError
from lockstep.core.records import Content
from lockstep.core.selection import nearest_names
from lockstep.core.site import CallKind
from lockstep.core.text import listed
from lockstep.store.reader import RankRecording

if TYPE_CHECKING:
    from lockstep.core.tensor_layouts import Layout

_SECTIONS = ("modules", "parameters", "operators", "states")
_KEYS = (*_SECTIONS, "layouts", "activations", "guesses")


@dataclass(frozen=True, slots=True)
class Names:
    """The names in a recording, or in one rank of it."""

    modules: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()

    def __or__(self, other: Names) -> Names:
        return Names(
            self.modules | other.modules,
            self.parameters | other.parameters,
            self.operators | other.operators,
            self.states | other.states,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: a name or pattern of the reference and that of the candidate."""

    section: str
    reference: str
    candidate: str

    def partners(self, reference: Names, candidate: Names) -> Iterator[tuple[str, str]]:
        """Reference name and candidate name of everything that the rule puts together."""
        ours, theirs = getattr(reference, self.section), getattr(candidate, self.section)
        left = dict(_matching(self.reference, ours, self.section))
        for name, filling in _matching(self.candidate, theirs, self.section):
            for known, other in left.items():
                if filling == other:
                    yield known, name


_LARGEST_BYTES = 1 << 20
"""Of a mapping file: tens of thousands of names, each written by hand."""


def _read(path: Path) -> str:
    """A file of the user's: a regular one of a sensible size, whatever a link leads to."""
    file = os.open(
        path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    )  # a pipe would wait for its writer
    with os.fdopen(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UsageError(f"{path}: is not a regular file; give a YAML file")
        data = opened.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise UsageError(
            f"{path}: is larger than {_LARGEST_BYTES} bytes, so it is not a list of names"
        )
    return data.decode("utf-8")


@dataclass(frozen=True)
class NameMapping:
    """Names of the reference with those of the candidate, as a mapping file gives them.

    modules, parameters, operators, states: Candidate name by reference name; either may hold `*`.
    layouts: Layout in words by the reference's name of a parameter, which may hold `*`.
    activations: Layouts in words of all other tensors.
    guesses: Sections of lines that were proposed and that nobody has confirmed; they are not used.
    where: Where it was written, for messages.

    Raises UsageError if the two names of a line have different numbers of `*`, or a layout is none.
    """

    modules: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    activations: tuple[str, ...] = ()
    guesses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    where: str = "mapping"

    def __post_init__(self) -> None:
        for words in (*self.layouts.values(), *self.activations):
            _layout_of(words, self.where)
        for rule in self.rules():
            if rule.reference.count("*") != rule.candidate.count("*"):
                raise UsageError(
                    f"{self.where}: {rule.section}: {rule.reference!r} and {rule.candidate!r} have"
                    " different numbers of *; each * stands for the same text on both sides"
                )

    @classmethod
    def read(cls, path: str | Path) -> NameMapping:
        """Read a mapping file; nothing in it is executed.

        Raises UsageError if the file cannot be read, is not valid YAML, or holds something other than names.
        """
        try:
            value = yaml.safe_load(_read(Path(path)))
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be read ({error.strerror}); give a YAML file"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{path}: is not valid YAML ({_problem(error)})") from error
        if not isinstance(value, dict):
            raise UsageError(f"{path}: holds none of {_listed(_KEYS)}; {_EXAMPLE}")
        for section, names in value.items():
            _check_section(path, section, names)
        activations = value.pop("activations", ())
        listed = [activations] if isinstance(activations, str) else activations
        return cls(**value, activations=tuple(listed), where=str(path))

    def rules(self) -> Iterator[Rule]:
        """Every line."""
        for section in _SECTIONS:
            for reference, candidate in getattr(self, section).items():
                yield Rule(section, reference, candidate)

    def check(self, reference: Names, candidate: Names) -> None:
        """Check that every line means something in these two recordings.

        Raises UsageError if a name matches nothing, or an operator's short name matches several.
        """
        for rule in self.rules():
            sides = (
                (rule.reference, "reference", reference),
                (rule.candidate, "candidate", candidate),
            )
            for pattern, side, names in sides:
                for one in pattern.split(SUM):
                    self._check_name(rule, one, side, getattr(names, rule.section))
            if SUM not in rule.reference and not any(rule.partners(reference, candidate)):
                raise UsageError(
                    f"{self.where}: {rule.section}: no name that {rule.reference!r} matches in the"
                    f" reference has its counterpart {rule.candidate!r} in the candidate"
                )
        for pattern in self.layouts:
            self._check_name(
                Rule("layouts", pattern, ""), pattern, "reference", reference.parameters
            )

    def _check_name(self, rule: Rule, pattern: str, side: str, names: Collection[str]) -> None:
        found = [name for name, _ in _matching(pattern, names, rule.section)]
        if not found:
            near = nearest_names(pattern, names)
            hint = f"nearest: {', '.join(near)}" if near else "there is none at all"
            raise UsageError(
                f"{self.where}: {rule.section}: {pattern!r} matches nothing in the {side}"
                f" (a line reads `reference: candidate`); {hint}"
            )
        if len(found) > 1 and "*" not in pattern:
            raise UsageError(
                f"{self.where}: {rule.section}: {pattern!r} may be {' or '.join(sorted(found))} in"
                f" the {side}; give the full name"
            )

    def names_between(self, reference: Names, candidate: Names) -> NameMap:
        """Return the candidate's names in the reference's words, for the names that these two hold."""
        found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
        for rule in self.rules():
            for ours, theirs in rule.partners(reference, candidate):
                found[rule.section].setdefault(theirs, ours)
            if SUM in rule.reference and rule.candidate in candidate.parameters:
                found[rule.section].setdefault(rule.candidate, rule.reference)
        found_by = {name: BY_FILE for names in found.values() for name in names}
        declared = {
            name: _layout_of(words)
            for pattern, words in self.layouts.items()
            for name, _ in _matching(pattern, reference.parameters, "parameters")
        }
        return NameMap(
            found["modules"], found["parameters"], found["operators"], {}, found_by, found["states"],
            declared, tuple(map(_layout_of, self.activations)),
        )  # fmt: skip

    def unconfirmed(self) -> str:
        """What of it is not used, or not compared whole, in a clause; "" where there is nothing such."""
        said = []
        if count := sum(map(len, self.guesses.values())):
            lines = "1 guess" if count == 1 else f"{count} guesses"
            said.append(
                f"not used: {lines} of {self.where}; move what is right to its section above"
            )
        if sums := [name for name in self.parameters if SUM in name]:
            firsts = listed([name.split(SUM)[0] for name in sums])
            said.append(f"update of {listed(sums)}: compared by that of {firsts}")
        return "; ".join(said)


_EXAMPLE = "write for example `modules: {encoder.layer.*: blocks.*}`"


def _check_section(path: str | Path, section: object, names: object) -> None:
    if section not in _KEYS:
        raise UsageError(f"{path}: unknown key {section!r}; there are {_listed(_KEYS)}")
    if section == "activations":
        if not isinstance(names, (str, list)):
            raise UsageError(f"{path}: activations: write for example [NCHW -> NHWC]")
        return
    if section == "guesses" and isinstance(names, dict):
        for inner, guessed in names.items():
            _check_section(path, inner, guessed)
        return
    if not isinstance(names, dict):
        raise UsageError(f"{path}: {section}: not a list of `reference: candidate`; {_EXAMPLE}")
    for reference, candidate in names.items():
        if not isinstance(reference, str) or not isinstance(candidate, str):
            raise UsageError(
                f"{path}: {section}: {reference!r}: {candidate!r} are not two names; put what YAML"
                " takes for a number in quotes"
            )


def _layout_of(words: str, where: str = "layout") -> Layout:
    """A layout in words, as a value."""
    from lockstep.core.tensor_layouts import Layout  # two runs of one framework have none

    return Layout.parse(words, where)


def _matching(
    pattern: str, names: Collection[str], section: str
) -> list[tuple[str, tuple[str, ...]]]:
    """Names that match, each with what every `*` stands for."""
    if "*" not in pattern:
        exact = [name for name in names if name == pattern]
        if not exact and section == "operators":
            exact = [name for name in sorted(names) if name.rpartition(".")[2] == pattern]
        return [(name, ()) for name in exact]
    form = re.compile("(.*?)".join(re.escape(part) for part in pattern.split("*")))
    found = ((name, form.fullmatch(name)) for name in sorted(names))
    return [(name, match.groups()) for name, match in found if match is not None]


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}"


def names_between(
    reference: RankRecording, candidate: RankRecording, mapping: NameMapping | None = None
) -> NameMap:
    """Match the names of both module trees; names of a mapping file come first."""
    trees = _tree(reference), _tree(candidate)
    given = NameMap()
    if mapping is not None:
        given = mapping.names_between(names_in(reference), names_in(candidate))
    return find_renames(*trees, given)


def names_in(rank: RankRecording) -> Names:
    """Every name that a mapping file may speak of."""
    tree = _tree(rank)
    kinds = (CallKind.OPERATOR.value, CallKind.MODULE.value)
    operators = rank.call_table.filter(pl.col("kind").is_in(kinds))["op"].to_list()
    parameters = frozenset(name for node in tree.values() for name in node.tensors)
    # What another tool wrote may tell where calls are, and no modules.
    paths = {*tree, *rank.call_table["module"].unique().to_list()}
    updates = rank.calls(rank.steps[0], kind=CallKind.OPTIMIZER) if rank.steps else ()
    kept = {record.name for call in updates for record in call.records}
    states = frozenset(name.partition("|")[2] for name in kept if "|" in name)
    return Names(frozenset(paths), parameters, frozenset(operators), states)


def _tree(rank: RankRecording) -> dict[str, Node]:
    table = rank.module_table
    classes = dict(zip(table["module"].to_list(), table["module_class"].to_list(), strict=True))
    called = rank.call_table.filter(pl.col("kind") == CallKind.MODULE.value)
    for path, name in zip(called["module"].to_list(), called["op"].to_list(), strict=True):
        classes.setdefault(path, name)
    return module_tree(classes, _initial_tensors(rank))


def _initial_tensors(rank: RankRecording) -> Iterator[tuple[str, str, Content]]:
    """Parameters and buffers as they were when the recording began."""
    steps = rank.call_table.filter(pl.col("kind") == CallKind.INIT.value)["step"].unique()
    calls = [call for step in sorted(steps) for call in rank.calls(step, kind=CallKind.INIT)]
    records = [(record, call) for call in calls for record in call.records]
    for record, call in sorted(records, key=lambda item: item[0].sequence):
        yield call.site.module, record.name, record.content
