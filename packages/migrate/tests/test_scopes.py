"""What a name stands for, by Python's own rules of scope."""

from __future__ import annotations

import ast

import pytest

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import SourceText, read_python


def scopes_of(code: str) -> ModuleScopes:
    return ModuleScopes(SourceText(code.encode(), code, "utf-8"), ast.parse(code))


def names_at(code: str) -> list[str]:
    """The qualified names that `HERE` may stand for, wherever it is the last attribute of a chain."""
    scopes = scopes_of(code)
    (node,) = (n for n in scopes.nodes if isinstance(n, ast.Attribute) and n.attr == "HERE")
    return [meaning.name for meaning in scopes.meanings(node)]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch\ntorch.HERE", "torch.HERE"),
        ("import torch as th\nth.HERE", "torch.HERE"),
        ("import torch.cuda\ntorch.HERE", "torch.HERE"),
        ("import torch.cuda as tc\ntc.HERE", "torch.cuda.HERE"),
        ("from torch import cuda\ncuda.HERE", "torch.cuda.HERE"),
        ("from torch.cuda import amp as a\na.HERE", "torch.cuda.amp.HERE"),
        ("from . import torch\ntorch.HERE", ".torch.HERE"),
        ("from ..a.b import c\nc.HERE", "..a.b.c.HERE"),
        ("def f():\n    import torch\n    return torch.HERE", "torch.HERE"),
        ("def f():\n    return torch.HERE\nimport torch", "torch.HERE"),
        ("try:\n    import torch\nexcept ImportError:\n    raise\ntorch.HERE", "torch.HERE"),
        ("import torch\nf = lambda x=torch.HERE, torch=1: x", "torch.HERE"),
        ("import torch\n[x for torch in torch.HERE]", "torch.HERE"),
        ("import torch\nclass A:\n    torch = 1\n    def f(self): torch.HERE", "torch.HERE"),
        ("import torch\nclass A:\n    def torch(self): torch.HERE", "torch.HERE"),
        ("import torch\n@torch.HERE\ndef f(torch): pass", "torch.HERE"),
        ("import torch\nclass A(torch.HERE):\n    torch = 1", "torch.HERE"),
        ("import torch\ndef f():\n    global torch\n    torch.HERE", "torch.HERE"),
        ("def f():\n    global t\n    import torch as t\nt.HERE", "torch.HERE"),
        ("import torch\nc = torch.cuda\nc.HERE", "torch.cuda.HERE"),
        ("import torch\na, b = torch.cuda, 1\na.HERE", "torch.cuda.HERE"),
        ("import torch\nif (c := torch.cuda): c.HERE", "torch.cuda.HERE"),
        ("import torch\n[(c := torch.cuda) for _ in x]\nc.HERE", "torch.cuda.HERE"),
        ("import torch\nf'{torch.HERE}'", "torch.HERE"),
        ("torch.HERE", "torch.HERE"),
        ("from lib import *\nthing.HERE", "lib.thing.HERE"),
    ],
)
def test_a_name_is_followed_to_what_it_stands_for(code: str, name: str) -> None:
    assert names_at(code) == [name]


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ndef f(torch): torch.HERE",
        "import torch\ndef f(*torch): torch.HERE",
        "import torch\nf = lambda torch: torch.HERE",
        "import torch\n[torch.HERE for torch in x]",
        "import torch\ndef f():\n    for torch in x: torch.HERE",
        "import torch\ndef f():\n    torch = g()\n    torch.HERE",
        "cuda.HERE",
        "def cuda(): pass\ncuda.HERE",
        "x().HERE",
        "import torch\ndef f():\n    with g() as torch: torch.HERE",
        "import torch\ndef f():\n    try: pass\n    except E as torch: torch.HERE",
        "import torch\ndef f(x):\n    match x:\n        case [torch]: torch.HERE",
    ],
)
def test_a_name_of_the_users_own_stands_for_nothing_else(code: str) -> None:
    assert names_at(code) == []


def test_a_name_may_have_several_meanings_imports_first() -> None:
    code = (
        "try:\n    from torch import amp\nexcept ImportError:\n    from apex import amp\namp.HERE"
    )
    assert names_at(code) == ["torch.amp.HERE", "apex.amp.HERE"]


def test_both_sides_of_a_conditional_count() -> None:
    code = "import torch\nm = torch.cuda if x else torch.cpu\nm.HERE"
    assert names_at(code) == ["torch.cuda.HERE", "torch.cpu.HERE"]


def test_an_assignment_carries_a_name_and_says_so() -> None:
    scopes = scopes_of("import torch\nc = torch.cuda\nc.HERE")
    (node,) = (n for n in scopes.nodes if isinstance(n, ast.Attribute) and n.attr == "HERE")
    (meaning,) = scopes.meanings(node)
    assert meaning.assigned
    assert meaning.binding is not None
    assert meaning.binding.name == "c"


def test_names_that_lead_back_to_themselves_end() -> None:
    # given a tree walk and an exchange of names, as scripts have them
    code = "import torch\na = a.left\na = a.right\nb = a\na = b\nb = torch.cuda\na.HERE\n"
    # when one of them is asked for
    found = names_at(code)
    # then it ends, and torch is among what it may be
    assert "torch.cuda.HERE" in found


def test_many_names_that_lead_to_each_other_end() -> None:
    names = [f"n{number}" for number in range(30)]
    lines = [f"{name} = {other}.x if y else {other}" for name in names for other in names]
    assert names_at("\n".join([*lines, "n0.HERE"])) == []


def test_a_long_chain_of_attributes_has_a_name() -> None:
    chain = "torch" + ".cuda" * 600 + ".HERE"
    assert names_at("import torch\n" + chain) == [chain]


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("import torch\ntorch.a\ntorch.b\ndef f(torch): torch.c", 2),
        ("import torch\ndef f():\n    def g(): torch.a", 1),
        ("import torch", 0),
    ],
)
def test_the_uses_of_an_import(code: str, count: int) -> None:
    scopes = scopes_of(code)
    (binding,) = scopes.module.bindings["torch"]
    assert len(scopes.uses(binding)) == count


def test_names_that_are_taken() -> None:
    scopes = scopes_of("import a as b\ndef c(d, *e): f = g\nclass h: pass\nwith i as j: pass")
    assert all(scopes.is_taken(name) for name in ("b", "c", "d", "e", "f", "g", "h", "i", "j"))
    assert scopes.is_taken("print")
    assert not scopes.is_taken("a")


@pytest.mark.parametrize(
    "code",
    [
        "x = 'é'; y = torch.cuda\n",
        "x = 'é' + f'{torch.cuda} ü'\r\ny = '😀', torch.cuda\r\n",
        "s = f'''é\n{torch.cuda\n}'''\n",
        "def é(): return torch.cuda\n",
        "x = (\n 'é'\n , torch.cuda)",
        "x = 1\x0c\ny = torch.cuda\n",
    ],
)
def test_places_are_right_behind_characters_of_several_bytes(code: str) -> None:
    scopes = scopes_of(code)
    found = [n for n in scopes.nodes if isinstance(n, ast.Attribute) and n.attr == "cuda"]
    assert found
    assert all(scopes.text(node) == "torch.cuda" for node in found)


def test_columns_count_bytes_of_utf8_in_a_latin_1_file() -> None:
    source = read_python("# coding: latin-1\nx = 'éé', torch.cuda\n".encode("latin-1"))
    scopes = ModuleScopes(source, ast.parse(source.text))
    (node,) = (n for n in scopes.nodes if isinstance(n, ast.Attribute))
    assert scopes.text(node) == "torch.cuda"
