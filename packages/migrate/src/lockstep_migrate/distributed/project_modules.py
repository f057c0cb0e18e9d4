"""Modules that the main script imports from its project: what they hold of a training is listed, never changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from lockstep_migrate.distributed.training import LOADERS
from lockstep_migrate.torch.unit import Unit


def list_imported(unit: Unit) -> None:
    """List loaders, training loops and checkpoints of a module that the main script imports."""
    for call in unit.scopes.of(ast.Call):
        name = unit.scopes.name(call.func)
        if name in LOADERS:
            unit.note(
                call,
                "distributed/loader",
                "makes a loader outside the main script: without a DistributedSampler every process sees all samples",
                "sampler=DistributedSampler(dataset) for the training, with set_epoch in the loop over epochs",
            )
        elif name == "torch.save":
            unit.note(
                call,
                "distributed/saving",
                "saves outside the main script: every process would write this file",
                'if os.environ.get("RANK", "0") == "0":',
            )
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            unit.note(
                call,
                "distributed/elsewhere",
                "computes gradients outside the main script; they are averaged where the wrapped model is called",
                "call the wrapped model itself, and its own methods through .module",
            )


def imported_modules(
    main: PurePosixPath, trees: Mapping[PurePosixPath, ast.Module]
) -> frozenset[PurePosixPath]:
    """The project's files that a script imports, also through each other.

    `main`: the script; it is not part of the result.
    """
    found: set[PurePosixPath] = set()
    waiting = [main]
    while waiting:
        current = waiting.pop()
        for path in _imports(current, main.parent, trees):
            if path not in found and path != main:
                found.add(path)
                waiting.append(path)
    return frozenset(found)


def _imports(
    path: PurePosixPath, root: PurePosixPath, trees: Mapping[PurePosixPath, ast.Module]
) -> Iterator[PurePosixPath]:
    for node in ast.walk(trees[path]) if path in trees else ():
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files([root], alias.name, trees)
        elif isinstance(node, ast.ImportFrom):
            folder = path.parent
            for _ in range(node.level - 1):
                folder = folder.parent
            bases = [folder] if node.level else [root]
            yield from _files(bases, node.module or "", trees)
            for alias in node.names:
                yield from _files(bases, f"{node.module or ''}.{alias.name}".lstrip("."), trees)


def _files(
    bases: Iterable[PurePosixPath], name: str, trees: Mapping[PurePosixPath, ast.Module]
) -> Iterator[PurePosixPath]:
    for base in bases:
        path = base.joinpath(*name.split(".")) if name else base
        candidates = [path / "__init__.py"]
        if name:
            candidates.append(path.with_name(path.name + ".py"))
        yield from (candidate for candidate in candidates if candidate in trees)
