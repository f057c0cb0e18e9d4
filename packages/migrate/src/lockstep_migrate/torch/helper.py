"""The helper that migrated code asks for the device: one module of a project, or a class at a module's head."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from lockstep_migrate.torch.table import built_in

HELPER = "accelerator"
"""What the helper is called: the module, and the class."""
MODULE_DOC = built_in(f"{HELPER}.py").partition("\n")[0]
"""The first line of the module, by which it is known again."""
_CLASS_DOC = "This machine's accelerator, asked for when a function is called and never earlier."
_ASKED = re.compile(r"torch\.accelerator\.(?:current_accelerator|device_count)\(\)")
_PARTS = (ast.FunctionDef, ast.ClassDef)
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class _Part:
    """A function or class of the helper: its text, the other parts that it names, and the modules that it needs."""

    text: str
    names: tuple[ast.Name, ...]
    needs: frozenset[str]
    imports: frozenset[str]


def helper_module() -> bytes:
    """Return the module, as it stands beside a project's entry point."""
    return built_in(f"{HELPER}.py").encode()


def is_helper_module(text: str) -> bool:
    """Whether a file is the module that an earlier run wrote."""
    return text.startswith(MODULE_DOC)


def helper_class(tree: ast.Module) -> ast.ClassDef | None:
    """Return the class at the head of a module that an earlier run wrote."""
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef) and ast.get_docstring(statement) == _CLASS_DOC:
            return statement
    return None


def helper_functions() -> Collection[str]:
    """Return the names of the helper's functions and classes."""
    return _parts().keys()


def asked_of(name: str, texts: Iterable[str]) -> frozenset[str]:
    """Return the functions of the helper that some texts call, where it has this name."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(name)}\.(\w+)")
    found = {match for text in texts for match in pattern.findall(text)}
    return frozenset(found & _parts().keys())


def with_needs(asked: Iterable[str]) -> list[str]:
    """Return functions with those that they call, in the helper's order."""
    waiting, found = list(asked), set[str]()
    while waiting:
        part = waiting.pop()
        if part not in found:
            found.add(part)
            waiting += _parts()[part].needs
    return [part for part in _parts() if part in found]


def imports_of(parts: Iterable[str]) -> list[str]:
    """Return the modules besides torch that some functions need."""
    return sorted({module for part in parts for module in _parts()[part].imports})


def class_lines(name: str) -> list[str]:
    """Return the first lines of the class at a module's head."""
    return [f"class {name}:", f'{_INDENT}"""{_CLASS_DOC}"""']


def method_lines(parts: Iterable[str], name: str, torch: str, *, optional: bool) -> Iterator[str]:
    """Give the lines of functions inside the class."""
    for part in parts:
        text = _spelled(_parts()[part], name, torch)
        if optional:
            text = _ASKED.sub(lambda match: f'(globals().get("{torch}") and {match[0]})', text)
        yield ""
        if text.startswith("def "):
            yield f"{_INDENT}@staticmethod"
        yield from textwrap.indent(text, _INDENT).splitlines()


def _spelled(part: _Part, name: str, torch: str) -> str:
    """Return the text of a part in which other parts are attributes of the class, and torch has the module's name."""
    lines = part.text.splitlines()
    for node in sorted(part.names, key=lambda node: -node.col_offset):
        line = lines[node.lineno - 1]
        new = torch if node.id == "torch" else f"{name}.{node.id}"
        lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
    return "\n".join(lines)


@lru_cache(maxsize=1)
def _parts() -> dict[str, _Part]:
    text = built_in(f"{HELPER}.py")
    tree = ast.parse(text)
    modules = {node.names[0].name for node in tree.body if isinstance(node, ast.Import)} - {"torch"}
    known = {node.name for node in tree.body if isinstance(node, _PARTS)}
    found = {}
    for node in tree.body:
        if isinstance(node, _PARTS):
            source = ast.get_source_segment(text, node) or ""
            names = list(_names(ast.parse(source).body[0], known | modules | {"torch"}))
            used = {name.id for name in names}
            spelled = tuple(name for name in names if name.id not in modules)
            found[node.name] = _Part(
                source, spelled, frozenset(used & known), frozenset(used & modules)
            )
    return found


def _names(part: ast.stmt, known: Collection[str]) -> Iterator[ast.Name]:
    """Give the names of the helper's own in a part, without those that its parameters hide."""
    for function in ast.walk(part):
        if isinstance(function, ast.FunctionDef):
            hidden = {
                argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and node.id in known and node.id not in hidden:
                    yield node
