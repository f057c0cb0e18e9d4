"""The TensorFlow scripts of a project, which are read together: how one is written tells how all are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath

from lockstep_migrate.engine.own_names import OwnNames
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.collection import Found, Kind
from lockstep_migrate.files.framework import imports_torch, place_of_torch
from lockstep_migrate.plan import Edit, Mention, Outcome
from lockstep_migrate.tensorflow import (
    Generation,
    Project,
    project_of,
    required_generation,
    takes_from_tensorflow,
    tensorflow_mentions,
)
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.unit import Settings


class Reading:
    """Gathers the files of a project, and then gives what becomes of each.

    settings: Those of PyTorch's rules: they tell whether a script of PyTorch's stands among the files.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._modules: dict[PurePosixPath, ModuleScopes] = {}
        self._required: dict[PurePosixPath, Generation] = {}
        """Which TensorFlow the files of a folder ask for."""
        self._together: Project | None = None

    def gather(self, found: Found, source: SourceText) -> None:
        """Note what a file says of the whole project."""
        is_python = found.kind is Kind.PYTHON
        if not is_python or found.path.name == "setup.py":
            stated = required_generation(source.text)
            if stated is not None:
                self._required.setdefault(found.path.parent, stated)
        if is_python:
            with suppress(SyntaxError):  # said when the file's turn comes
                self._modules[found.path] = ModuleScopes(source, parse(source.text))

    def mentions(
        self, source: SourceText, path: PurePosixPath | None = None
    ) -> tuple[tuple[Mention, ...], tuple[Edit, ...]]:
        """Find what a file names of GPUs, or a text that is none: `path` is None then."""
        if path is None:
            scopes = ModuleScopes(source, parse(source.text))
            mentions, additions = tensorflow_mentions(scopes)
        else:
            if path not in self._modules:
                parse(source.text)  # raises what is wrong with it
            scopes = self._modules[path]
            if self._together is None:
                self._together = project_of(self._modules.values(), self._required)
            generation = self._together.generation_for(scopes, path)
            start = self._together.start_of(scopes)
            mentions, additions = tensorflow_mentions(scopes, generation, start)
        return (*mentions, *self._pytorch_script(source)), additions

    def _pytorch_script(self, source: SourceText) -> Iterator[Mention]:
        """A place to list where a module has work for `--from pytorch`, and none of TensorFlow."""
        if not imports_torch(source.text):
            return
        scopes = ModuleScopes(source, parse(source.text))
        span = place_of_torch(scopes)
        if takes_from_tensorflow(scopes) or span is None:
            return
        found = migrate_python(source, self._settings, OwnNames()).mentions
        if any(mention.outcome is not Outcome.KEPT for mention in found):
            reason = f"is a PyTorch script: give --from pytorch --to {self._settings.target.name}"
            yield Mention("framework/pytorch", Outcome.LISTED, span, reason)
