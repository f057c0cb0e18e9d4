"""A user's own rules, carried out on a module before the built-in ones, so that they win at the same place.

What a name means:

- A *dotted* function name (`torch.nn.functional.relu`) is that very function, however the module imports it: called,
  passed on or used as a decorator.
- A *bare* function name (`relu`) is an imported function of that name, a builtin, or a method that is called. It is
  never a function that the file defines or that comes from the user's own package by a relative import; where the
  file itself defines a method or an attribute of that name, calls on `self` are its own and others are listed.
- A module is found by its full name, in imports and in every chain of names that begins with it.

An argument is counted by position. Where it is behind a `*`, given by keyword or not given, nothing tells which
parameter it is: the call is listed.
"""

from __future__ import annotations

import ast

from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.torch.user.calls import Call
from lockstep.wings.migrate.torch.user.chains import Chain
from lockstep.wings.migrate.torch.user.imports import Statement
from lockstep.wings.migrate.torch.user.names import Names


def find_user_rules(unit: Unit) -> None:
    """Claim every place that a user's rules name."""
    rules = unit.settings.user_rules
    if rules.is_empty:
        return
    names = Names(unit, rules)
    # What an earlier run wrote at the head is no script of the user's.
    head = {
        node
        for statement in unit.scopes.tree.body
        if unit.header.is_ours(statement)
        for node in ast.walk(statement)
    }
    nodes = [node for node in unit.scopes.nodes if node not in head]
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            Statement(names, node).claim()
    # Arguments first: what a new argument replaces is nobody else's.
    for node in nodes:
        if isinstance(node, ast.Call):
            Call(names, node).claim()
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and names.is_whole_chain(node):
            Chain(names, node).claim()
