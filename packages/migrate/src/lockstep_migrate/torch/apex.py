"""apex.amp by torch.amp: a module with the same functions takes its place, where the project calls no others."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.plan import Edit, NewFile
from lockstep_migrate.torch.table import Table, built_in
from lockstep_migrate.torch.unit import Unit

MODULE = "mixed_precision"
"""What the module is called that stands for apex.amp."""
MARK = "The functions of apex.amp that this project calls"
"""What it begins with."""

_RULE = "apex/amp"
_FUNCTIONS = listed_names("apex functions")
_ARGUMENTS = frozenset(
    {"models", "optimizers", "enabled", "opt_level", "loss_scale", "num_losses", "verbosity"}
    | {"min_loss_scale", "max_loss_scale"}
)
_MOST_POSITIONAL = 4
_LEVELS = ("O0", "O1")
_MEANING = (
    "O1 is torch.amp.autocast in the forward of the models, with results in float32, and a loss scale by apex's rule;"
    " O2 and O3 stop with an error"
)


def has_equal(table: Table) -> bool:
    """Whether a target has no apex of its own, so that torch.amp stands for it."""
    entry = table.lookup("apex.amp.initialize")
    return entry is not None and entry.table == "common"


def imports_amp(tree: ast.Module) -> bool:
    """Whether a module imports apex.amp."""
    return any(_brings_amp(node) for node in ast.walk(tree))


def needs_apex(tree: ast.Module) -> bool:
    """Whether a module uses apex.amp in a way that torch.amp has no equal for, or may go on without it."""
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names: set[str] = set()
    used: dict[ast.AST, ast.Attribute] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used[node.value] = node
        if isinstance(node, ast.Try) and any(map(_brings_amp, node.body)):
            inner = [part for handler in node.handlers for part in ast.walk(handler)]
            if not any(isinstance(part, ast.Raise) for part in inner):
                return True
        elif isinstance(node, ast.Import | ast.ImportFrom) and _brings_amp(node):
            if not isinstance(node, ast.ImportFrom) or len(node.names) > 1:
                return True
            names.add(node.names[0].asname or "amp")
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    attributes = [used.get(node) for node in uses]
    return any(
        one is None or one.attr not in _FUNCTIONS or one not in called for one in attributes
    ) or any(
        isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "initialize"
        and node.func in attributes
        and not _is_plain(node)
        for node in ast.walk(tree)
    )


def _brings_amp(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name in ("apex", "apex.amp") for alias in node.names)
    if not isinstance(node, ast.ImportFrom) or node.level:
        return False
    whole = node.module == "apex" and any(alias.name in ("amp", "*") for alias in node.names)
    return whole or (node.module or "").startswith("apex.amp")


def _is_plain(call: ast.Call) -> bool:
    """Whether `initialize` is asked for nothing that only apex has."""
    given = {item.arg: item.value for item in call.keywords}
    starred = any(isinstance(one, ast.Starred) for one in call.args)
    if starred or len(call.args) > _MOST_POSITIONAL or not given.keys() <= _ARGUMENTS:
        return False
    level = call.args[3] if len(call.args) == _MOST_POSITIONAL else given.get("opt_level")
    return not isinstance(level, ast.Constant) or level.value in _LEVELS


def find_apex(unit: Unit) -> None:
    """Import the module that stands for apex.amp, where the project can do without apex's own."""
    for node in unit.scopes.imports() if unit.amp else ():
        if not isinstance(node, ast.ImportFrom) or not _brings_amp(node):
            continue
        package = unit.amp.removesuffix(MODULE)
        package = package if package.strip(".") == "" else package.rstrip(".")
        name = node.names[0].asname or "amp"
        start = f"from {package} " if package else ""
        edit = Edit(unit.scopes.span(node), f"{start}import {MODULE} as {name}")
        unit.rewrite(node, _RULE, _MEANING, [edit], differs=True)
        for use in unit.scopes.of(ast.Attribute):
            if isinstance(use.value, ast.Name) and use.value.id == name:
                unit.keep(use, _RULE, f"{MODULE} has this function")


def new_module(path: PurePosixPath, device: str) -> NewFile:
    """The module, written for a device; for whatever there is where it is empty."""
    text = built_in(f"{MODULE}.py")
    if device:
        asked = 'getattr(torch.accelerator.current_accelerator(), "type", "cuda")'
        text = text.replace(asked, f'"{device}"')
    return NewFile(path, text.encode(), "what the project uses of apex.amp, by torch.amp")
