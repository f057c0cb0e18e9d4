"""The tables in docs/internals.md: every name of every face, with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lockstep.core.faces import sources_of

FACES = (
    "plugin", "errors", "options", "terminal", "files", "launch", "compare", "recordings", "page", "judging", "rerun",
    "recorder",
)  # fmt: skip
"""In the order in which a plug-in needs them."""


def tables() -> str:
    """A heading and a table for each face."""
    return "\n\n".join(_table(face) for face in FACES)


def rows(face: str) -> dict[str, str]:
    """Return what each name of a face is for, by the name; "" for one of which nothing is written."""
    sources = sources_of(file_of(f"lockstep.{face}"))
    return {name: first_sentence(*sources[name]) for name in sorted(sources, key=str.lower)}


def file_of(module: str) -> Path:
    """Return the file of a module, which is not loaded; the packages around it are."""
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


def first_sentence(module: str, name: str) -> str:
    """Return the first sentence of what is written of a name where it is defined."""
    tree = _tree(file_of(module))
    told = _written_of(tree, name)
    if told is None:
        for source, original in _imported(tree, name):
            return first_sentence(source, original)
    paragraph = " ".join((told or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z`)\]\"])\.(?= |$)|(?<=[a-z`)]);(?= )", paragraph)[0]


def _table(face: str) -> str:
    about = " ".join((ast.get_docstring(_tree(file_of(f"lockstep.{face}"))) or "").split())
    lines = [f"| `{name}` | {_cell(text)} |" for name, text in rows(face).items()]
    return "\n".join(
        [f"### lockstep.{face}", "", about, "", "| name | what it is |", "|---|---|", *lines]
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _written_of(tree: ast.Module, name: str) -> str | None:
    """The docstring of a function or class, or the text that stands after a constant."""
    for place, one in enumerate(tree.body):
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name:
            return ast.get_docstring(one) or ""
        if name in _assigned(one):
            after = tree.body[place + 1 : place + 2]
            return next(map(_text_of, after), "")
    return None


def _assigned(one: ast.stmt) -> list[str]:
    targets = (
        one.targets
        if isinstance(one, ast.Assign)
        else [one.target]
        if isinstance(one, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text_of(one: ast.stmt) -> str:
    is_text = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    return str(one.value.value) if is_text else ""  # type: ignore[attr-defined]


def _imported(tree: ast.Module, name: str) -> Iterator[tuple[str, str]]:
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom) and one.module:
            yield from (
                (one.module, each.name) for each in one.names if (each.asname or each.name) == name
            )


if __name__ == "__main__":
    print(tables())
