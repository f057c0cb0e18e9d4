"""Which names of torch and of vendors' packages a migrated script says, and which of them its device lacks.

The lists of names are those that Lockstep ships; they are read here as plain text, and names are resolved here by
imports alone, so that a fault of the resolver in Lockstep shows.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

LISTS = Path(__file__).resolve().parents[2] / "packages/migrate/src/lockstep_migrate/names"
PACKAGES = ("torch", "torch_npu", "habana_frameworks")
_ANY_DEVICE = ("cuda", "npu", "xpu")
"""Where `torch.get_device_module` may lead in a script for any device."""


@functools.cache
def known(target: str) -> frozenset[str]:
    """Every listed name that a script for a target may say; a prefix of a name is a name."""
    lists = {"torch", "xpu", "mps", *({target} & {"npu", "hpu"})}
    return frozenset(_with_parents(lists))


@functools.cache
def _with_children(target: str) -> frozenset[str]:
    """Names below which everything is listed."""
    return frozenset(name.rpartition(".")[0] for name in known(target) if "." in name)


def _with_parents(lists: set[str]) -> Iterator[str]:
    for name in sorted(lists):
        for line in (LISTS / f"{name}.txt").read_text().splitlines():
            parts = line.split(".")
            if not line.startswith("#"):
                yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def missing(before: str, after: str, target: str) -> list[str]:
    """Names that migrating brought into a source and that its target lacks."""
    fresh = names(after) - names(before)
    return sorted(name for name in fresh if not _exists(name, target))


def _exists(name: str, target: str) -> bool:
    if name.startswith("DEVICE_MODULE"):
        rest = name.partition(".")[2]
        everywhere = known("npu") | known("hpu")
        return all(f"torch.{device}.{rest}" in everywhere for device in _ANY_DEVICE)
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        prefix = ".".join(parts[:length])
        if prefix not in known(target):
            # Below a function or an object nothing is listed, and nothing can be said.
            return ".".join(parts[: length - 1]) not in _with_children(target)
    return True


def names(source: str) -> Counter[str]:
    """How often a source says each dotted name of `PACKAGES`.

    `DEVICE_MODULE.x` stands for x of `torch.get_device_module(...)`.
    """
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    said: Counter[str] = Counter(
        name for name in imported.values() if name.split(".")[0] in PACKAGES
    )
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
            name = _dotted(node, imported)
            if name:
                said[name] += 1
    return said


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
                yield f"import {alias.name}", alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.AST, imported: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, imported)
        return before and f"{before}.{node.attr}"
    if isinstance(node, ast.Name):
        name = imported.get(node.id, "")
        return name if name.split(".")[0] in PACKAGES else None
    if isinstance(node, ast.Call) and _dotted(node.func, imported) == "torch.get_device_module":
        return "DEVICE_MODULE"
    return None
