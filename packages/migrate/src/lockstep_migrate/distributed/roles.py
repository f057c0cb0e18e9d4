"""The role of a file in a migration to many devices: main script, its module, or neither."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from lockstep.errors import UsageError
from lockstep_migrate.distributed.launch import launch_script
from lockstep_migrate.distributed.models import assigned_names, likely_models
from lockstep_migrate.distributed.project_modules import imported_modules, list_imported
from lockstep_migrate.distributed.script import WRAP, distribute
from lockstep_migrate.engine.text import UndecodableError
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.collection import Collection, Found, Kind, read
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.options import Distribution, MigrationOptions
from lockstep_migrate.plan import FilePlan, NewFile
from lockstep_migrate.torch.python import Rule

_USUAL_MODEL = Distribution(Path()).model


@dataclass(frozen=True, slots=True)
class Roles:
    """Rules that hold for some files only.

    main: The script that becomes a training on many cards; `None` for none.
    names: The variables that hold its models.
    modules: The project's files that it imports.
    taken: Files that are there already.
    started: What the main script will be called; empty where it keeps its name.
    """

    main: PurePosixPath | None = None
    names: tuple[str, ...] = ()
    modules: frozenset[PurePosixPath] = frozenset()
    taken: frozenset[PurePosixPath] = frozenset()
    started: str = ""

    def rules(self, path: PurePosixPath | None = None) -> tuple[Rule, ...]:
        """The rules for one file, or for a text that is none."""
        if path is not None and path == self.main:
            return (partial(distribute, names=self.names),)
        return (list_imported,) if path in self.modules else ()

    def launch(self, files: Sequence[FilePlan], target: MigrationTarget) -> tuple[NewFile, ...]:
        """The launch script, where the main script became one for many processes."""
        if self.main is None:
            return ()
        for file in files:
            if file.path == self.main and any(
                item.rule == WRAP and item.outcome.is_change for item in file.mentions
            ):
                started = file.path.with_name(self.started or file.path.name)
                return (launch_script(started, target, self.taken),)
        return ()


def roles_of(collection: Collection, options: MigrationOptions) -> Roles:
    """Say what each file is.

    Raises UsageError if the main script is none of the files, or has no variable of a name that was given.
    """
    if options.distribution is None:
        return Roles()
    main = _main(collection, options.distribution)
    trees = _trees(collection)
    names = tuple(name.strip() for name in options.distribution.model.split(","))
    if options.distribution.model != _USUAL_MODEL and main in trees:
        _check_names(main, trees[main], names)
    return Roles(
        main=main,
        names=names,
        modules=imported_modules(main, trees),
        taken=frozenset(found.path for found in collection.files),
        started=options.distribution.started,
    )


def _main(collection: Collection, distribution: Distribution) -> PurePosixPath:
    """The main script among the files, given from where the command runs or from the project's root."""
    scripts = [found for found in collection.files if found.kind is Kind.PYTHON]
    for start in (Path.cwd(), collection.root):
        wanted = (start / distribution.main).resolve()
        for found in scripts:
            if found.location.resolve() == wanted:
                return found.path
    raise UsageError(
        f"--main {distribution.main}: is not a Python file among those to migrate; "
        f"give its path inside {collection.root}"
    )


def _check_names(main: PurePosixPath, tree: ast.Module, names: Sequence[str]) -> None:
    """The name that holds where none is given is not checked: the report says what is wrong with it."""
    missing = [name for name in names if name not in assigned_names(tree)]
    if not missing:
        return
    likely = ", ".join(likely_models(tree))
    help_text = (
        f"these look like models: {likely}" if likely else "give the name of the model's variable"
    )
    raise UsageError(f"--model {missing[0]}: {main} assigns no such variable; {help_text}")


def _trees(collection: Collection) -> Mapping[PurePosixPath, ast.Module]:
    trees = {found.path: _tree(found) for found in collection.files if found.kind is Kind.PYTHON}
    return {path: tree for path, tree in trees.items() if tree is not None}


def _tree(found: Found) -> ast.Module | None:
    try:
        return parse(read(found).text)
    except (OSError, UndecodableError, SyntaxError):
        return None  # said when the file's turn comes
