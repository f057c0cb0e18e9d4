"""Edits of a call's arguments are as small as they can be, and refuse what they cannot see."""

from __future__ import annotations

import ast

import pytest

from lockstep_migrate.engine.arguments import (
    ArgumentEdits,
    CannotRewriteError,
    appended,
    removals,
)
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.plan import apply, merged


def call_of(code: str) -> tuple[ModuleScopes, ast.Call]:
    scopes = ModuleScopes(SourceText(code.encode(), code, "utf-8"), ast.parse(code))
    call = next(node for node in scopes.nodes if isinstance(node, ast.Call))
    return scopes, call


def carried_out(code: str, steps: str) -> str:
    scopes, call = call_of(code)
    edits = ArgumentEdits(scopes, call, lambda text: text).carry_out(steps.split())
    return apply(code, merged(edits))


@pytest.mark.parametrize(
    ("before", "steps", "after"),
    [
        ("f()", "first=X", "f(X)"),
        ("f( )", "first=X", "f(X )"),
        ("f(a)", "first=X", "f(X, a)"),
        ("f(\n    a,\n)", "first=X", "f(X, \n    a,\n)"),
        ("f(*a)", "first=X", "f(X, *a)"),
        ("f(# why\n a)", "first=X", "f(X, # why\n a)"),
        ("(f)(a)", "first=X", "(f)(X, a)"),
        ("f()", "keyword:k=X", "f(k=X)"),
        ("f(a)", "keyword:k=X", "f(a, k=X)"),
        ("f(a,)", "keyword:k=X", "f(a, k=X,)"),
        ("f((a))", "keyword:k=X", "f((a), k=X)"),
        ("f(( # why (not)\n a))", "keyword:k=X", "f(( # why (not)\n a), k=X)"),
        ("f((a # why :)\n ))", "keyword:k=X", "f((a # why :)\n ), k=X)"),
        ("f(a, ( # why\n (b)))", "names=j;k", "f(j=a, k=( # why\n (b)))"),
        ("f(k=1)", "keyword:k=X", "f(k=1)"),
        ("f(a, b)", "names=;k", "f(a, k=b)"),
        ("f(a, (b))", "names=j;k", "f(j=a, k=(b))"),
        ("f(a, k=1, b=2)", "drop=k", "f(a, b=2)"),
        ("f(k=1)", "drop=k", "f()"),
        ("f(a, k=1)", "drop=k", "f(a)"),
        ("f(k=1, a=2)", "drop=k", "f(a=2)"),
        ("f(a, k=1, l=2)", "drop=k;l", "f(a)"),
        ("f(k=1, a=3, l=2)", "drop=k;l", "f(a=3)"),
        ("f(a, k=(1),)", "drop=k", "f(a,)"),
        ("f(a, k=1)", "drop=k keyword:j=X", "f(a, j=X)"),
        ("f(k=1)", "drop=k keyword:j=X", "f(j=X)"),
        ("f(k=True)", "only=k:True drop=k", "f()"),
        ("f()", "only=k:True", "f()"),
        ("f(2)", "wrap=.to(X)", "f(2).to(X)"),
        ("f(a, b)", "first=X names=j;k", "f(X, j=a, k=b)"),
        ("f(k=(1), b=2)", "rename=k:l", "f(l=(1), b=2)"),
        ("f(1)", "takes=k rename=k:l", "f(1)"),
        ("f(k=1)", "alone takes=k call=g(1)", "g(1)"),
    ],
)
def test_steps(before: str, steps: str, after: str) -> None:
    result = carried_out(before, steps)
    assert result == after
    ast.parse(result)


@pytest.mark.parametrize(
    ("code", "steps", "reason"),
    [
        ("f(**a)", "keyword:k=X", r"inside the \*\*"),
        ("f(*a)", "names=j;k", r"inside a \*"),
        ("f(a, b, c)", "names=j;k", "more positional"),
        ("f(a, b)", "names=;k drop=k", "gives k by position"),
        ("f(k=False)", "only=k:True", "k=True"),
        ("f(k=x)", "only=k:True", "k=True"),
        ("f(a for a in b)", "keyword:k=X", "without brackets"),
        ("x = f()", "alone call=g()", "result is used"),
        ("f()", "takes=k", "other than k"),
        ("f(j=1)", "takes=k", "other than k"),
        ("f(1, j=1)", "takes=k", "other than k"),
        ("f(*k)", "takes=k", "other than k"),
    ],
)
def test_what_cannot_be_seen_is_refused(code: str, steps: str, reason: str) -> None:
    with pytest.raises(CannotRewriteError, match=reason):
        carried_out(code, steps)


@pytest.mark.parametrize(
    ("before", "gone", "after"),
    [
        ("f(a, b, c)", [0], "f(b, c)"),
        ("f(a, b, c)", [1], "f(a, c)"),
        ("f(a, b, c)", [2], "f(a, b)"),
        ("f(a, b, c)", [0, 1, 2], "f()"),
        ("f(a, b, c)", [0, 2], "f(b)"),
        ("f(a,\n  (b),  # why\n  c)", [1], "f(a,\n  c)"),
        ("f(a, b, c)", [], "f(a, b, c)"),
    ],
)
def test_removals_take_the_commas_that_belong_to_them(
    before: str, gone: list[int], after: str
) -> None:
    scopes, call = call_of(before)
    edits = removals(scopes, call, [call.args[number] for number in gone])
    assert apply(before, merged(edits)) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(k=X)"),
        ("f(a for a in b)", "f((a for a in b), k=X)"),
        ("f( a for a in (b) )", "f(( a for a in (b) ), k=X)"),
        ("f((a for a in b))", "f((a for a in b), k=X)"),
        ("f((a for a in b), c)", "f((a for a in b), c, k=X)"),
    ],
)
def test_a_generator_that_gets_a_neighbour_gets_brackets(before: str, after: str) -> None:
    result = apply(before, merged(appended(*call_of(before), "k=X")))
    assert result == after
    ast.parse(result)
