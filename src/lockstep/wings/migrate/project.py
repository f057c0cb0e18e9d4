"""A whole project: each file read by the reader for its kind, with what the project's files know of each other."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lockstep.core.errors import UsageError
from lockstep.core.progress import Progress
from lockstep.wings.migrate.distributed.roles import Roles, roles_of
from lockstep.wings.migrate.engine.own_names import OwnNames, merged_own, own_names
from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.engine.text import SourceText, UndecodableError, read_python
from lockstep.wings.migrate.files.collection import Collection, Found, Kind, failure, read
from lockstep.wings.migrate.files.framework import pytorch_script, tensorflow_script
from lockstep.wings.migrate.files.native import native_mentions
from lockstep.wings.migrate.files.notebook import NotebookError, notebook_mentions
from lockstep.wings.migrate.files.shell import shell_mentions
from lockstep.wings.migrate.files.surroundings import surroundings_of
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.options import Framework, MigrationOptions
from lockstep.wings.migrate.plan import Edit, Failure, FilePlan, Mention, Plan
from lockstep.wings.migrate.targets import migration_targets
from lockstep.wings.migrate.torch.python import Rule, migrate_python, parse
from lockstep.wings.migrate.torch.table import table_of
from lockstep.wings.migrate.torch.unit import Settings
from lockstep.wings.migrate.torch.vocabulary import names_a_device

if TYPE_CHECKING:
    from lockstep.wings.migrate.tensorflow import Project

_TREE_CHARACTERS = 1 << 20
"""Source text whose trees are kept between two readings; a tree takes about a hundred times as many bytes."""

TENSORFLOW_TARGETS = ("npu",)
"""Targets that TensorFlow scripts can be written for."""

Mentioned = tuple[tuple[Mention, ...], tuple[Edit, ...]]


def target_named(name: str) -> MigrationTarget:
    """The migration target of a name.

    Raises
    ------
    UsageError
        If nothing installed provides it.
    """
    known = migration_targets()
    if name not in known:
        raise UsageError(f"--to {name}: no such target; there are {', '.join(known)}")
    return known[name]


def plan_collection(
    collection: Collection, options: MigrationOptions, progress: Progress | None = None
) -> Plan:
    """Read everything that was collected and decide what becomes of each place that names the old device.

    Nothing is written, and nothing that is read is run.

    Parameters
    ----------
    collection
        Files, folders and notebooks.
    options
        The target and what else was asked for.
    progress
        Told the file, how many are done, and of how many.

    Raises
    ------
    UsageError
        If the target is unknown, or cannot have what was asked for.
    """
    target = target_named(options.target)
    framework = options.framework
    if framework is Framework.TENSORFLOW and target.name not in TENSORFLOW_TARGETS:
        known = ", ".join(TENSORFLOW_TARGETS)
        raise UsageError(f"--from tensorflow --to {target.name}: TensorFlow is written for {known}")
    if options.distribution is not None:
        _check_devices(target)
    settings = Settings(
        target,
        table_of(target),
        similar=options.similar,
        user_rules=options.user_rules,
        advice_apply=options.advice_apply,
    )
    return _Project(collection, settings, roles_of(collection, options), framework).plan(progress)


def _check_devices(target: MigrationTarget) -> None:
    from lockstep.wings.migrate.distributed import takes_devices  # it loads what nothing else needs

    if not takes_devices(target):
        raise UsageError(
            f"--distributed --to {target.name}: a machine has one device, and no collective backend serves it; "
            "leave out --distributed"
        )


@dataclass(slots=True)
class _Project:
    collection: Collection
    settings: Settings
    roles: Roles
    framework: Framework
    modules: dict[PurePosixPath, ModuleScopes] = field(default_factory=dict)
    """Of TensorFlow scripts, which are read together: how one is written tells how all are."""
    together: Project | None = None
    trees: dict[PurePosixPath, ast.Module] = field(default_factory=dict)
    """Parsed modules of the first reading, as many as there is room for."""
    budget_characters: int = _TREE_CHARACTERS
    own: OwnNames = field(default_factory=OwnNames)
    failures: list[Failure] = field(default_factory=list)

    def plan(self, progress: Progress | None) -> Plan:
        sources = self._read(progress)
        files = []
        for number, (found, source) in enumerate(sources):
            if progress is not None:
                progress(str(found.path), len(sources) + number, 2 * len(sources))
            file = self._file(found, source)
            if file is not None:
                files.append(file)
        failures = sorted(
            [*self.collection.failures, *self.failures], key=lambda item: (item.path, item.line)
        )
        added = self.roles.launch(files, self.settings.target)
        return Plan(self.settings.target.name, tuple(files), tuple(failures), added)

    def _read(self, progress: Progress | None) -> list[tuple[Found, SourceText]]:
        """Read every file that has a reader, and gather what the project defines itself."""
        sources, own = [], []
        readable = [found for found in self.collection.files if found.kind is not Kind.OTHER]
        for number, found in enumerate(readable):
            if progress is not None:
                progress(str(found.path), number, 2 * len(readable))
            try:
                source = read(found)
            except (OSError, UndecodableError) as error:
                self.failures.append(failure(found, error))
                continue
            sources.append((found, source))
            if found.kind is not Kind.PYTHON:
                continue
            if self.framework is Framework.TENSORFLOW:
                self._gather(found.path, source)
            elif names_a_device(source.text):
                own += self._own(found.path, source)
        self.own = merged_own(own)
        return sources

    def _own(self, path: PurePosixPath, source: SourceText) -> list[OwnNames]:
        try:
            tree = parse(source.text)
        except SyntaxError:
            return []  # said when the file's turn comes
        if self.budget_characters >= len(source.text):
            self.budget_characters -= len(source.text)
            self.trees[path] = tree
        return [own_names(tree, path)]

    def _gather(self, path: PurePosixPath, source: SourceText) -> None:
        with suppress(SyntaxError):  # said when the file's turn comes
            self.modules[path] = ModuleScopes(source, parse(source.text))

    def _file(self, found: Found, source: SourceText) -> FilePlan | None:
        try:
            mentions, additions = self._mentions(found, source)
        except SyntaxError as error:
            reason = f"{error.msg}: is no Python of this version; it stays as it is"
            self.failures.append(Failure(found.path, reason, error.lineno or 0))
            return None
        except NotebookError as error:
            self.failures.append(Failure(found.path, str(error), error.line))
            return None
        plan = FilePlan(found.path, source, mentions, additions)
        reason = _why_not(plan, found.kind)
        if reason:
            self.failures.append(Failure(found.path, reason))
            return None
        return plan

    def _mentions(self, found: Found, source: SourceText) -> Mentioned:
        target, tables = self.settings.target.name, surroundings_of(self.settings.target)
        if found.kind is Kind.PYTHON and self.framework is Framework.TENSORFLOW:
            return self._tensorflow(found.path, source)
        if found.kind is Kind.PYTHON:
            tree = self.trees.pop(found.path, None)
            path = found.path
            name = path.parent.name if path.stem == "__init__" else path.stem
            return self._python(source, self.roles.rules(path), tree, name)
        if found.kind is Kind.NOTEBOOK:
            return notebook_mentions(
                source.text, self._python_text, lambda text: shell_mentions(text, target, tables)
            )
        if found.kind is Kind.SHELL:
            return shell_mentions(source.text, target, tables), ()
        if found.kind is Kind.NATIVE:
            return native_mentions(source.text, found.path.name, target), ()
        from lockstep.wings.migrate.files.config import (  # loads a YAML scanner
            config_kind,
            config_mentions,
        )

        return config_mentions(source.text, config_kind(found.path), target, tables), ()

    def _tensorflow(self, path: PurePosixPath, source: SourceText) -> Mentioned:
        from lockstep.wings.migrate.tensorflow import (
            project_of,
            tensorflow_mentions,
        )  # loaded if asked for

        if path not in self.modules:
            parse(source.text)  # raises what is wrong with it
        scopes = self.modules[path]
        if self.together is None:
            self.together = project_of(self.modules.values())
        mentions, additions = tensorflow_mentions(
            scopes, self.together.generation, self.together.start_of(scopes)
        )
        return (*mentions, *pytorch_script(source, self.settings)), additions

    def _python(
        self,
        source: SourceText,
        first: Sequence[Rule] = (),
        tree: ast.Module | None = None,
        module: str = "",
    ) -> Mentioned:
        result = migrate_python(source, self.settings, self.own, first, tree, module)
        return (*result.mentions, *tensorflow_script(source)), result.additions

    def _python_text(self, text: str) -> Mentioned:
        source = SourceText(text.encode("utf-8", "surrogatepass"), text, "utf-8")
        if self.framework is Framework.TENSORFLOW:
            from lockstep.wings.migrate.tensorflow import tensorflow_mentions

            mentions, additions = tensorflow_mentions(ModuleScopes(source, parse(text)))
            return (*mentions, *pytorch_script(source, self.settings)), additions
        return self._python(source, self.roles.rules())


def _why_not(plan: FilePlan, kind: Kind) -> str:
    """Why a file has to stay as it is: its edits cannot be made, or would leave no Python; empty if all is well."""
    try:
        data = plan.migrated()
        if kind is Kind.PYTHON and plan.edits:
            parse(read_python(data).text)
    except UndecodableError as error:
        return str(error)
    except SyntaxError as error:
        return f"Lockstep's own edits would leave no Python here, please report it: {error}"
    except ValueError as error:
        return f"two rules of Lockstep contradict each other here, please report it: {error}"
    return ""
