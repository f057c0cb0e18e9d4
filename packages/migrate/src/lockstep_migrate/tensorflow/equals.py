"""Names of TensorFlow and Horovod, and what each becomes on the NPU, as rows of `rules.csv`.

version
    `1.15` or `2.x`; empty where the row holds for both.
name
    The function's canonical name.
rule
    The rule that decides, without its group.
action
    `rename` writes `becomes` in the function's place, `list` asks a person (`becomes` says what to use instead), `keep`
    leaves it.
becomes
    An expression: `{package.module.name}` is imported from there, `{module as alias}` is that module.
arguments
    What happens to the call's arguments, see `lockstep_migrate.engine.arguments`; such a row holds for calls
    alone. Of a `list` row: `called`, the whole call is shown. `inside`: the row holds for all that the name begins, and
    only where no other rule has decided.
reason
    Why, in words.

Of several rows of one name the first counts whose arguments can be carried out.
"""

from __future__ import annotations

import ast
import csv
import shlex
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from lockstep_migrate.engine.arguments import ArgumentEdits, CannotRewriteError
from lockstep_migrate.plan import Edit
from lockstep_migrate.tensorflow.script import Generation, Script, prefixes

_INSIDE = "inside"


class Row(NamedTuple):
    """A row of the table."""

    version: str
    name: str
    rule: str
    action: str
    becomes: str
    arguments: str
    reason: str


@lru_cache(maxsize=1)
def _rows() -> dict[tuple[str, str], list[Row]]:
    """The rows by name and version."""
    text = (resources.files(__package__) / "rules.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], list[Row]] = {}
    for row in map(Row._make, list(csv.reader(text.splitlines()))[1:]):
        for version in [row.version] if row.version else [one.value for one in Generation]:
            found.setdefault((row.name, version), []).append(row)
    return found


def has_row(name: str, generation: Generation) -> bool:
    """Whether a function has a row."""
    return (name, generation.value) in _rows()


def equal_of(name: str, generation: Generation) -> str:
    """What has the same arguments as a function on the NPU, as `NAME of MODULE`; nothing where no row tells."""
    row = _rows()[name, generation.value][0]
    module, _, last = row.becomes.strip("{}").rpartition(".")
    return f"{last} of {module}" if row.action == "rename" and not row.arguments else ""


def row_around(name: str, generation: Generation) -> Row | None:
    """The row for the longest part that a name begins with."""
    for prefix in prefixes(name):
        rows = _rows().get((prefix, generation.value), ())
        found = next((row for row in rows if row.arguments == _INSIDE), None)
        if found is not None:
            return found
    return None


def decided_by_row(script: Script, node: ast.expr) -> bool:
    """Decide about a function by its rows; whether one of them holds."""
    rows = _rows().get((script.name(node), script.generation.value), ())
    return any(_decided(script, row, node) for row in rows if row.arguments != _INSIDE)


def _decided(script: Script, row: Row, node: ast.expr) -> bool:
    call, steps = script.scopes.call_of(node), shlex.split(row.arguments)
    place = call if call is not None and steps else node
    if row.action == "list":
        script.list(place, row.rule, row.reason, row.becomes)
    elif call is None and steps:
        return False
    elif row.action == "keep":
        script.keep(place, row.rule, row.reason)
    elif call is None or not steps:
        script.rewrite(node, row.rule, row.reason, [_renamed(script, node, row)])
    else:
        try:
            edits = ArgumentEdits(script.scopes, call, script.head.fill).carry_out(steps)
        except CannotRewriteError:
            return False
        if row.becomes:
            edits.append(_renamed(script, node, row))
        else:
            script.removed(edits[0].span, [call])
        script.rewrite(call, row.rule, row.reason, edits)
    return True


def _renamed(script: Script, node: ast.expr, row: Row) -> Edit:
    return script.replaced(node, script.head.fill(row.becomes))
