"""Facts that hold for all modules of a project."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.tensorflow.generation import generation_of, tells
from lockstep_migrate.tensorflow.program import is_program
from lockstep_migrate.tensorflow.script import Generation, Start, takes_from_tensorflow


@dataclass(frozen=True, slots=True)
class Project:
    """Modules that belong together.

    generation: Which TensorFlow they are written for.
    has_program: Whether a program that takes something from TensorFlow starts in one of them.
    required: Which TensorFlow the files of a folder ask for, by folder.
    """

    generation: Generation
    has_program: bool
    required: Mapping[PurePosixPath, Generation] = field(default_factory=dict)

    def generation_for(self, scopes: ModuleScopes, path: PurePosixPath) -> Generation:
        """Which TensorFlow one module is written for: by itself, by what is required nearest to it, by the project."""
        stated = next((self.required[one] for one in path.parents if one in self.required), None)
        if stated is None and not tells(scopes):
            return self.generation
        return generation_of([scopes], stated)

    def start_of(self, scopes: ModuleScopes) -> Start:
        """Where the program starts that a module of the project belongs to."""
        if is_program(scopes):
            return Start.HERE
        return Start.ELSEWHERE if self.has_program else Start.UNKNOWN


def project_of(
    modules: Iterable[ModuleScopes], required: Mapping[PurePosixPath, Generation] | None = None
) -> Project:
    """What holds for modules together; those that take nothing from TensorFlow count for nothing."""
    found = [scopes for scopes in modules if takes_from_tensorflow(scopes)]
    has_program = any(is_program(scopes) for scopes in found)
    return Project(generation_of(found), has_program, required or {})
