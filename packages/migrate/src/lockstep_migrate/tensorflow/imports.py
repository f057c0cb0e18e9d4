"""Imports that nothing needs any more."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.statements import deletion, is_exported, without_names
from lockstep_migrate.tensorflow.script import Script


def find_imports(script: Script) -> None:
    """Remove imports whose uses are all gone; list those of Horovod that have to stay."""
    needless: dict[ast.stmt, list[ast.alias]] = {}
    for binding in script.imports:
        if binding.alias is None:
            continue
        uses = script.scopes.uses(binding)
        left = [node for node in uses if not script.is_gone(node)]
        if uses and not left and not is_exported(script.scopes, binding.name):
            needless.setdefault(script.scopes.statement(binding.alias), []).append(binding.alias)
        elif binding.qualified.startswith("horovod"):
            reason = "stays for the uses of it that are listed" if left else "is not used"
            script.list(binding.alias, "import", reason, "remove it when they are gone")
    for statement, aliases in needless.items():
        if isinstance(statement, ast.Import | ast.ImportFrom):
            _without(script, statement, aliases)


def _without(
    script: Script, statement: ast.Import | ast.ImportFrom, aliases: list[ast.alias]
) -> None:
    """Take names out of an import statement, or the statement away."""
    if len(aliases) == len(statement.names):
        inner = not isinstance(script.parent(statement), ast.Module)
        edits = dict.fromkeys(aliases, deletion(script.scopes, statement, empties=inner))
    else:
        edits = without_names(script.scopes, statement, aliases)
    for alias, edit in edits.items():
        script.rewrite(alias, "import", "nothing uses it any more", [edit], span=edit.span)
