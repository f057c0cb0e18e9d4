"""A whole project: each file read by the reader for its kind, with what the project's files know of each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lockstep.errors import UsageError
from lockstep.terminal import Progress
from lockstep_migrate.distributed.head import takes_devices
from lockstep_migrate.distributed.roles import Roles, roles_of
from lockstep_migrate.engine.own_names import OwnNames, merged_own, own_names
from lockstep_migrate.engine.text import SourceText, UndecodableError, read_python
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.collection import Collection, Found, Kind, failure, read
from lockstep_migrate.files.framework import tensorflow_script
from lockstep_migrate.files.native import native_mentions
from lockstep_migrate.files.notebook import NotebookError, notebook_mentions
from lockstep_migrate.files.packages import unknown_packages
from lockstep_migrate.files.shell import shell_mentions
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.options import Framework, MigrationOptions
from lockstep_migrate.plan import Edit, Failure, FilePlan, Mention, NewFile, Outcome, Plan
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.apex import MARK as AMP_MARK
from lockstep_migrate.torch.apex import MODULE as AMP_MODULE
from lockstep_migrate.torch.apex import has_equal, imports_amp, needs_apex, new_module
from lockstep_migrate.torch.compiled import compiled_names, may_compile
from lockstep_migrate.torch.doubles import converts_first
from lockstep_migrate.torch.libraries import libraries
from lockstep_migrate.torch.python import Rule, migrate_python
from lockstep_migrate.torch.shared_head import Head, imported_words, new_heads, shared_heads
from lockstep_migrate.torch.table import table_of
from lockstep_migrate.torch.unit import Settings, chooses_cards, forks
from lockstep_migrate.torch.vocabulary import names_a_device

if TYPE_CHECKING:
    from lockstep_migrate.tensorflow.reading import Reading

_TREE_CHARACTERS = 1 << 20
"""Source text whose trees are kept between two readings; a tree takes about a hundred times as many bytes."""

_INSTALLING = frozenset({"setup.py", "setup.cfg", "pyproject.toml"})
"""Files by which a folder is installed as a package."""

_KEY = re.compile(r"([\w-]*(?:cuda|nccl|nvidia|cudnn|gpu)[\w-]*)[\"']?[ \t]*[:=]", re.IGNORECASE)
"""A key of a settings file that has the device in its name."""

TENSORFLOW_TARGETS = ("npu",)
"""Targets that TensorFlow scripts can be written for."""

Mentioned = tuple[tuple[Mention, ...], tuple[Edit, ...]]


def target_named(name: str) -> MigrationTarget:
    """The migration target of a name. Raises UsageError if nothing installed provides it."""
    known = migration_targets()
    if name not in known:
        raise UsageError(f"--to {name}: no such target; there are {', '.join(known)}")
    return known[name]


def plan_collection(
    collection: Collection, options: MigrationOptions, progress: Progress | None = None
) -> Plan:
    """Read everything that was collected and decide what becomes of each place that names the old device.

    Nothing is written, and nothing that is read is run.

    Raises UsageError if the target is unknown, or cannot have what was asked for.
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
        advice=options.advice or options.advice_apply,
        advice_apply=options.advice_apply,
    )
    project = _Project(collection, settings, roles_of(collection, options))
    if framework is Framework.TENSORFLOW:
        from lockstep_migrate.tensorflow.reading import Reading  # loaded if asked for

        project.tensorflow = Reading(settings)
    return project.plan(progress)


def _check_devices(target: MigrationTarget) -> None:
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
    tensorflow: Reading | None = None
    """What reads the scripts if they are TensorFlow's."""
    trees: dict[PurePosixPath, ast.Module] = field(default_factory=dict)
    """Parsed modules of the first reading, as many as there is room for."""
    budget_characters: int = _TREE_CHARACTERS
    own: OwnNames = field(default_factory=OwnNames)
    failures: list[Failure] = field(default_factory=list)
    heads: dict[PurePosixPath, Head] = field(default_factory=dict)
    amp_files: set[PurePosixPath] = field(default_factory=set)
    """Files that import apex.amp."""
    keeps_apex: bool = False
    """Whether one of them needs apex itself: a project has one mixed precision."""
    amp: dict[PurePosixPath, Head] = field(default_factory=dict)
    """The module that stands for apex.amp, of each of them; empty where apex stays."""
    shared: dict[PurePosixPath, tuple[Edit, ...]] = field(default_factory=dict)
    """What the head of a file becomes where it imports the names that ask for the device."""

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
        self._tell_unknown(files)
        added = (
            *self._share_heads(files),
            *self._amp_modules(files),
            *self.roles.launch(files, self.settings.target),
        )
        return Plan(self.settings.target.name, tuple(files), tuple(failures), added)

    def _tell_unknown(self, files: list[FilePlan]) -> None:
        """List what no table knows among the imports of a project that has something to migrate."""
        found = any(one.outcome is not Outcome.KEPT for file in files for one in file.mentions)
        if not found or self.tensorflow is not None:
            return
        words = {name.split(".")[0] for name in (*libraries(), *self.settings.table.words)}
        python = [file for file in files if file.path.suffix == ".py"]
        words |= {rule.old.split(".")[0] for rule in self.settings.user_rules}
        unknown = unknown_packages(python, self.own.modules | words)
        for place, file in enumerate(files):
            if unknown and file.path == unknown[0]:
                files[place] = replace(file, mentions=(*file.mentions, unknown[1]))

    def _share_heads(self, files: list[FilePlan]) -> Iterator[NewFile]:
        """Let files that can import them share the names that ask for the device; the modules that hold those."""
        needing = [file.path for file in files if self.shared.get(file.path)]
        modules = new_heads(self.heads[path] for path in needing)
        for place, file in enumerate(files):
            if file.path in needing and self.heads[file.path].file in modules:
                files[place] = replace(file, additions=self.shared[file.path])
        there = {found.path for found in self.collection.files}
        reason = "the names that ask for the device, for every file that needs them"
        for path, data in modules.items():
            if path not in there:
                yield NewFile(path, data, reason)

    def _amp_modules(self, files: list[FilePlan]) -> Iterator[NewFile]:
        """The modules that stand for apex.amp, where a file came to import one."""
        there = {found.path for found in self.collection.files}
        needed = {
            head.file
            for file in files
            if (head := self.amp.get(file.path)) is not None
            and any(head.source in edit.text for edit in file.edits)
        }
        for file in sorted(needed - there):
            yield new_module(file, self.settings.target.device)

    def _read(self, progress: Progress | None) -> list[tuple[Found, SourceText]]:
        """Read every file that has a reader, and gather what the project defines itself."""
        sources, own = [], []
        configured: dict[str, str] = {}
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
            if found.kind is Kind.CONFIG and names_a_device(source.text):
                configured.update(dict.fromkeys(_device_settings(source.text), str(found.path)))
                keys = frozenset(_KEY.findall(source.text))
                own.append(OwnNames(given=keys, keys=keys))
            if self.tensorflow is not None:
                self.tensorflow.gather(found, source)
            elif found.kind is Kind.PYTHON and names_a_device(source.text):
                own += self._own(found.path, source)
        python = [found.path for found, _ in sources if found.kind is Kind.PYTHON]
        names = {part for path in python for part in path.with_suffix("").parts}
        if PurePosixPath("__init__.py") in python:
            names.add(self.collection.root.name)
        texts = {found.path: source.text for found, source in sources}
        self.own = replace(
            merged_own(own),
            configured=configured,
            modules=frozenset(names),
            chooses_cards=any(chooses_cards(texts[path]) for path in python),
            forks=any(forks(texts[path]) for path in python),
            imported=imported_words(texts[path] for path in python),
            compiled=_compiled([texts[path] for path in python]),
            moves_as_is=any(names_a_device(texts[path]) for path in python)
            and not any(converts_first(texts[path]) for path in python),
        )
        if not self.settings.target.device and self.tensorflow is None:
            installed = {
                found.path.parent
                for found in self.collection.files
                if found.path.name in _INSTALLING
            }
            modules = {path: texts[path] for path in python}
            self.heads = shared_heads(modules, installed=installed)
        if self.amp_files and not self.keeps_apex and has_equal(self.settings.table):
            modules = {path: texts[path] for path in python}
            heads = shared_heads(modules, AMP_MODULE, AMP_MARK, alone=True)
            if self.amp_files <= heads.keys():
                self.amp = {path: heads[path] for path in self.amp_files}
        return sources

    def _own(self, path: PurePosixPath, source: SourceText) -> list[OwnNames]:
        try:
            tree = parse(source.text)
        except SyntaxError:
            return []  # said when the file's turn comes
        if self.budget_characters >= len(source.text):
            self.budget_characters -= len(source.text)
            self.trees[path] = tree
        if "apex" in source.text and imports_amp(tree):
            self.amp_files.add(path)
            self.keeps_apex |= needs_apex(tree)
        return [own_names(tree, path)]

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
        target = self.settings.target
        if found.kind is Kind.PYTHON and self.tensorflow is not None:
            return self.tensorflow.mentions(source, found.path)
        if found.kind is Kind.PYTHON:
            tree = self.trees.pop(found.path, None)
            path = found.path
            name = path.parent.name if path.stem == "__init__" else path.stem
            return self._python(source, self.roles.rules(path), tree, name, path)
        if found.kind is Kind.NOTEBOOK:
            return notebook_mentions(
                source.text, self._python_text, lambda text: shell_mentions(text, target)
            )
        if found.kind is Kind.SHELL:
            return shell_mentions(source.text, target), ()
        if found.kind is Kind.NATIVE:
            return native_mentions(source.text, found.path.name, target), ()
        from lockstep_migrate.files.config import (  # loads a YAML scanner
            config_kind,
            config_mentions,
        )

        kind = config_kind(found.path)
        own = self.own.modules | self.own.asked
        return config_mentions(source.text, kind, target, own), ()

    def _python(
        self,
        source: SourceText,
        first: Sequence[Rule] = (),
        tree: ast.Module | None = None,
        module: str = "",
        path: PurePosixPath | None = None,
    ) -> Mentioned:
        head = self.heads.get(path) if path else None
        name = head.source if head else ""
        amp = self.amp[path].source if path in self.amp else ""
        result = migrate_python(source, self.settings, self.own, first, tree, module, name, amp)
        if path is not None:
            self.shared[path] = result.shared
        serves = self.settings.target.name in TENSORFLOW_TARGETS
        found = tensorflow_script(source, serves=serves)
        return (*result.mentions, *found), result.additions

    def _python_text(self, text: str) -> Mentioned:
        source = SourceText(text.encode("utf-8", "surrogatepass"), text, "utf-8")
        if self.tensorflow is not None:
            return self.tensorflow.mentions(source)
        return self._python(source, self.roles.rules())


def _compiled(texts: Sequence[str]) -> frozenset[str]:
    """The names of what a project compiles as a whole."""
    if not any(map(may_compile, texts)):
        return frozenset()
    trees = []
    for text in texts:
        with suppress(SyntaxError):  # said when the file's turn comes
            trees.append(parse(text))
    return compiled_names(trees)


def _device_settings(text: str) -> Iterator[str]:
    from lockstep_migrate.files.config import device_settings  # loads a YAML scanner

    return device_settings(text)


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
