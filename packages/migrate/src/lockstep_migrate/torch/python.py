"""The engine for Python source: parse, resolve names, let every rule claim its mentions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep_migrate.advice import find_advice, may_need_advice
from lockstep_migrate.engine.own_names import OwnNames
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.choices import may_choose
from lockstep_migrate.plan import Edit, Mention
from lockstep_migrate.torch.apex import MARK as AMP_MARK
from lockstep_migrate.torch.apex import find_apex
from lockstep_migrate.torch.by_name import find_by_name
from lockstep_migrate.torch.choices import find_choices
from lockstep_migrate.torch.doubles import may_return_doubles
from lockstep_migrate.torch.helper import is_helper_module
from lockstep_migrate.torch.integers import find_integers
from lockstep_migrate.torch.kernels import find_kernels
from lockstep_migrate.torch.keywords import find_keywords, find_profiler_arguments
from lockstep_migrate.torch.ladders import find_ladders
from lockstep_migrate.torch.leftovers import find_leftovers
from lockstep_migrate.torch.libraries import find_libraries
from lockstep_migrate.torch.methods import find_methods
from lockstep_migrate.torch.names import find_names
from lockstep_migrate.torch.results import find_method_rows, find_results
from lockstep_migrate.torch.strings import find_strings
from lockstep_migrate.torch.unfollowed import find_unfollowed
from lockstep_migrate.torch.unit import Settings, Unit
from lockstep_migrate.torch.user_matching import find_user_rules
from lockstep_migrate.torch.variables import find_variables
from lockstep_migrate.torch.vocabulary import names_a_device

Rule = Callable[[Unit], None]
"""Reads a module, and claims the places that it understands."""

_RULES = (
    find_user_rules,
    find_apex,
    find_results,
    find_ladders,
    find_integers,
    find_by_name,
    find_names,
    find_kernels,
    find_methods,
    find_method_rows,
    find_profiler_arguments,
    find_choices,
    find_libraries,
    find_variables,
    find_strings,
    find_keywords,
    find_leftovers,
    find_unfollowed,
)


@dataclass(frozen=True, slots=True)
class PythonResult:
    """The findings in one module.

    mentions: In no particular order.
    additions: What the head of the module needs.
    shared: The same with the names that ask for the device imported; empty where they cannot be.
    """

    mentions: tuple[Mention, ...] = ()
    additions: tuple[Edit, ...] = ()
    shared: tuple[Edit, ...] = ()


def migrate_python(
    source: SourceText,
    settings: Settings,
    own: OwnNames,
    first: Sequence[Rule] = (),
    tree: ast.Module | None = None,
    module: str = "",
    shared: str = "",
    amp: str = "",
) -> PythonResult:
    """Find every mention of the old device in a module and decide it.

    `tree`: the module, where it has been parsed already; it is used up.
    `module`: the last part of the name that others import it by; empty where it has none.
    `shared`: the module that it can import the names from that ask for the device; empty where there is none.
    Raises SyntaxError if the module does not parse.
    """
    tree = tree or parse(source.text)
    has_rules = bool(first) or bool(settings.user_rules)
    text = source.text
    named = names_a_device(text) or any(word in text for word in settings.table.words)
    named = named or (own.moves_as_is and may_return_doubles(text))
    # Who asks for any accelerator chooses for all of them.
    named = named or ("torch.accelerator" not in text and may_choose(text))
    written = is_helper_module(text) or text.startswith(f'"""{AMP_MARK}')
    advised = settings.advice and may_need_advice(text)
    if written or not (has_rules or named or advised):
        return PythonResult()
    unit = Unit(ModuleScopes(source, tree), settings, own, module, amp)
    for rule in (*first, *_RULES, *((find_advice,) if settings.advice else ())):
        rule(unit)
    edits = [edit for mention in unit.mentions for edit in mention.edits]
    header = unit.header
    imported = header.additions(edits, shared) if shared and header.can_be_shared(edits) else ()
    return PythonResult(tuple(unit.mentions), tuple(header.additions(edits)), tuple(imported))
